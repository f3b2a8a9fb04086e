#!/usr/bin/env bash
# Times this crate against its rivals, side by side in one run:
#
#   benches/peers/run.sh [--quick] [--only GROUP] [--threads N] [--json | --markdown] [--plot FILE]
#
# Installs the rivals at pinned versions into a virtual environment, target/peers/venv (several
# GB the first time), builds our side and the rivals in Rust (minutes the first time), and hands
# over to run.py, which explains the rest. PERFORMANCE.md is what
#
#   benches/peers/run.sh --markdown --plot assets/peak.svg
#
# prints.
set -euo pipefail
cd "$(dirname "$0")/../.."

venv="target/peers/venv"
requirements="benches/peers/requirements.txt"
if ! cmp -s "$requirements" "$venv/installed.txt"; then
    echo "installing the rivals into $venv" >&2
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --requirement "$requirements" >&2
    cp "$requirements" "$venv/installed.txt"
fi

# Builds with the given arguments and prints where the executable is.
build() {
    cargo build --quiet --release "$@" --message-format=json | "$venv/bin/python" -c 'import json, sys
found = [json.loads(line).get("executable") for line in sys.stdin]
print([path for path in found if path][-1])'
}
echo "building" >&2
arguments=(--ours "$(build --bench peers)")
rivals=(--manifest-path benches/peers/rivals/Cargo.toml --locked --target-dir target/peers/rust)
# Both builds have one name, so each is copied before the next.
cp "$(build "${rivals[@]}")" target/peers/rivals
arguments+=(--rival target/peers/rivals)
if grep -qs avx512f /proc/cpuinfo; then
    cp "$(build "${rivals[@]}" --features x86-v4)" target/peers/rivals-x86-v4
    arguments+=(--rival target/peers/rivals-x86-v4)
fi
exec "$venv/bin/python" benches/peers/run.py "${arguments[@]}" "$@"
