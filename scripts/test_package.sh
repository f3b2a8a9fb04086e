#!/usr/bin/env bash
# Runs the library's own tests and those of the guide in the package as it is published, so that nothing
# which they need is left out of it:
#
#     scripts/test_package.sh [FILE.crate]    without a file, the package is made first
#
# The crates of this repository that the package needs are taken from here.
set -euo pipefail
cd "$(dirname "$0")/.."

target="${CARGO_TARGET_DIR:-$PWD/target}"
crate="${1:-}"
if [ -z "$crate" ]; then
    cargo package --no-verify --allow-dirty --target-dir "$target" \
        --package candle-dynquant-derive --package candle-dynquant-io --package candle-dynquant-kernels \
        --package candle-dynquant
    version="$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)"
    crate="$target/package/candle-dynquant-$version.crate"
fi
unpacked="$(mktemp -d)"
trap 'rm -rf "$unpacked"' EXIT
tar -xzf "$crate" -C "$unpacked" --strip-components 1
options=(--manifest-path "$unpacked/Cargo.toml" --target-dir "$target")
for own in crates/derive crates/io crates/kernels; do
    name="$(sed -n 's/^name = "\(.*\)"$/\1/p' "$own/Cargo.toml")"
    options+=(--config "patch.crates-io.$name.path='$PWD/$own'")
done
cargo test "${options[@]}" --lib
cargo test "${options[@]}" --doc
