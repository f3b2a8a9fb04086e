#!/usr/bin/env bash
# Builds and tests apps/cluster: formatting, lints, and its tests, which start clusters on loopback.
#
#   scripts/test_cluster.sh             all of it, then records what was tested in apps/cluster/tested.txt
#   scripts/test_cluster.sh --check     nothing if just that was tested before
#
# datafusion compiles for many minutes, so this program is to be tested only where it or the public surface of the
# library changed. What was tested is a fingerprint: a hash of the sources of the program, those of
# apps/embed, the embedded model, this script, and docs/public-api.txt, which lists the public surface. The file is
# committed with the change. A change of the library below an unchanged surface is left to the library's
# tests and those of the other programs.
#
# DYNQUANT_LONG=1 has the test of a killed executor take 100,000 rows instead of 20,000.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
recorded=apps/cluster/tested.txt
manifest=apps/cluster/Cargo.toml

fingerprint() {
    # Files that git knows or does not ignore, with their names; not the record itself, and no prose.
    git ls-files --cached --others --exclude-standard -- \
        apps/cluster apps/embed assets/bert docs/public-api.txt scripts/test_cluster.sh |
        grep -v -e "^$recorded$" -e '\.md$' | LC_ALL=C sort -u |
        while IFS= read -r file; do [ ! -f "$file" ] || sha256sum "$file"; done |
        sha256sum | cut -d ' ' -f 1
}

now="$(fingerprint)"
if [ "${1:-}" = --check ] && [ "$now" = "$(cat "$recorded" 2>/dev/null)" ]; then
    echo "skipped: apps/cluster was tested as it is, with this public surface of the library ($recorded)"
    exit 0
fi

cargo fmt --manifest-path "$manifest" --check
# The release profile, for all: a second one would compile for as long, and this is the one that users get. For
# the same reason clippy runs as the compiler of this crate: `cargo clippy` would check all of datafusion again.
RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS="-Dwarnings__CLIPPY_HACKERY__" \
    cargo build --manifest-path "$manifest" --locked --target-dir target --release --all-targets
cargo test --manifest-path "$manifest" --locked --target-dir target --release

[ "$now" = "$(fingerprint)" ] || { echo "sources changed while they were tested: run it again" >&2; exit 1; }
if [ "$now" != "$(cat "$recorded" 2>/dev/null)" ]; then
    echo "$now" >"$recorded"
    echo "recorded in $recorded: commit it with the change"
fi
