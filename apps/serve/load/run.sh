#!/usr/bin/env bash
# Loads the server with all-MiniLM-L6-v2 as its clients would, and compares; then with the decoder in
# assets/decoder, by streaming clients:
#
#   apps/serve/load/run.sh [--seconds N] [--clients N] [--stream-seconds N] [--streams N] [--json] [--no-rival]
#       [--only embeddings|generation|clients] [--decoder PATH]
#
# Installs the Python packages of requirements.txt at their pinned versions into target/load/venv, fetches
# the model into target/minilm, builds the server, and hands over to load.py, which explains the rest.
# --dev loads the development build, to try the script itself; then the figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/../../.."

profile=(--release)
folder=release
arguments=()
for argument in "$@"; do
    case "$argument" in
        --dev) profile=() folder=debug ;;
        *) arguments+=("$argument") ;;
    esac
done

venv="target/load/venv"
requirements="apps/serve/load/requirements.txt"
if ! cmp -s "$requirements" "$venv/installed.txt"; then
    echo "installing the clients and the rival into $venv" >&2
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements" >&2
    cp "$requirements" "$venv/installed.txt"
fi
if [[ " ${arguments[*]} " != *" generation "* && " ${arguments[*]} " != *" clients "* ]]; then
    scripts/fetch_minilm.sh target/minilm >&2
fi
target="${CARGO_TARGET_DIR:-target}"
echo "building" >&2
cargo build --quiet "${profile[@]}" --manifest-path apps/Cargo.toml --target-dir "$target" -p dynquant-serve
exec "$venv/bin/python" apps/serve/load/load.py --server "$target/$folder/dynquant-serve" \
    --model target/minilm --assets assets --decoder assets/decoder --folder target/load/decoder --texts assets/reference/minilm_sentences.txt "${arguments[@]}"
