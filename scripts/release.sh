#!/usr/bin/env bash
# Checks what a release needs beyond .ci/run, and makes its artefacts under target/release-artefacts:
# the packages of the crates, the command `dynquant` for this machine, the notes, and checksums.
#
#     scripts/release.sh
#
# Licences and advisories are checked by cargo-deny, which downloads RustSec's advisories. Nothing is
# published: the last lines say what to type.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n== %s\n' "$*"; }

version="$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)"
crates=(candle-dynquant-derive candle-dynquant-io candle-dynquant-kernels candle-dynquant-port candle-dynquant candle-dynquant-decoder dynquant)
out="target/release-artefacts"
rm -rf "$out" && mkdir -p "$out"

step "CHANGELOG.md has a dated section $version"
notes="$(awk -v head="## [$version]" 'index($0, head) == 1 {on = 1; next} /^## \[/ {on = 0} on' CHANGELOG.md)"
if [ -z "$notes" ] || ! grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md; then
    echo "expected '## [$version] - YYYY-MM-DD' with notes below" >&2
    exit 1
fi
printf '%s\n' "$notes" >"$out/NOTES.md"

step "licences, sources and advisories"
command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
for manifest in Cargo.toml apps/Cargo.toml apps/cluster/Cargo.toml; do
    cargo deny --manifest-path "$manifest" check
done

step "the oldest versions of the dependencies that Cargo.toml allows"
rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
oldest="target/oldest-versions"
rm -rf "$oldest" && mkdir -p "$oldest"
git archive HEAD | tar -x -C "$oldest"
(cd "$oldest" && cargo +nightly update -Z direct-minimal-versions)
cargo check --manifest-path "$oldest/Cargo.toml" --target-dir target --package candle-dynquant --package dynquant

step "changes of the public surface since the last release"
last="$(git tag --list 'v*' --sort=-v:refname | head -1)"
if [ -n "$last" ]; then
    command -v cargo-semver-checks >/dev/null || cargo install --locked cargo-semver-checks
    cargo semver-checks --package candle-dynquant --baseline-rev "$last"
else
    echo "none has been released: docs/public-api.txt is the first one's"
fi

step "packages"
selected=()
for crate in "${crates[@]}"; do selected+=(--package "$crate"); done
cargo package "${selected[@]}"
for crate in "${crates[@]}"; do cp "target/package/$crate-$version.crate" "$out"; done

step "the library's package runs its own tests"
scripts/test_package.sh "$out/candle-dynquant-$version.crate"

step "the command"
cargo build --release --package dynquant
host="$(rustc -vV | sed -n 's/^host: //p')"
tar -czf "$out/dynquant-$version-$host.tar.gz" -C target/release dynquant
(cd "$out" && sha256sum ./*.crate ./*.tar.gz >SHA256SUMS && cat SHA256SUMS)

printf '\nTo publish, in this order:\n'
for crate in "${crates[@]}"; do echo "    cargo publish --package $crate"; done
printf '    cargo publish --manifest-path crates/embed/Cargo.toml\n'
printf '    git tag v%s\n' "$version"
