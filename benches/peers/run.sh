#!/usr/bin/env bash
# Times this crate against its rivals, side by side in one run:
#
#   benches/peers/run.sh [--quick] [--only GROUP] [--threads N] [--json]
#
# Installs the rivals at pinned versions into a virtual environment, target/peers/venv (several
# GB the first time), builds our side, and hands over to run.py, which explains the rest.
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
cargo build --quiet --release --bench peers
ours=$(cargo build --quiet --release --bench peers --message-format=json |
    "$venv/bin/python" -c 'import json, sys
found = [json.loads(line).get("executable") for line in sys.stdin]
print([path for path in found if path][-1])')
exec "$venv/bin/python" benches/peers/run.py --ours "$ours" "$@"
