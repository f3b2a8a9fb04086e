#!/usr/bin/env bash
# Builds and tests apps/cluster: formatting, lints, and its tests, which start clusters on loopback.
#
#   scripts/test_cluster.sh             all of it, then records what was tested in apps/cluster/tested.txt
#   scripts/test_cluster.sh --check     nothing if just that was tested before
#
# datafusion compiles for many minutes, so this program is to be tested only where it or the public surface of the
# library changed: its sources, those of crates/embed and of what that shares with the library, the embedded model, this
# script, and docs/public-api.txt, which lists the public surface. A change of the library below an unchanged surface
# is left to the library's tests and those of the other programs.
#
# DYNQUANT_LONG=1 has the test of a killed executor take 100,000 rows instead of 20,000.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/recorded.sh
source scripts/recorded.sh

cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
manifest=apps/cluster/Cargo.toml
begin "${1:-}" apps/cluster/tested.txt \
    apps/cluster crates/embed/Cargo.toml crates/embed/src assets/bert crates/decoder docs/public-api.txt \
    scripts/test_cluster.sh

cargo fmt --manifest-path "$manifest" --check
# The release profile, for all: a second one would compile for as long, and this is the one that users get. For
# the same reason clippy runs as the compiler of this crate: `cargo clippy` would check all of datafusion again.
RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS="-Dwarnings__CLIPPY_HACKERY__" \
    cargo build --manifest-path "$manifest" --locked --target-dir target --release --all-targets
cargo test --manifest-path "$manifest" --locked --target-dir target --release

record
