#!/usr/bin/env bash
# Times the page's program beside onnxruntime-web's int8, the same models in the same browser, one thread:
#
#   apps/browser/compare/run.sh [--rounds N] [--json]
#
# Needs what apps/browser/build.sh needs, Python, npm and Chromium. Installs onnxruntime-web and the Python
# packages that make its models, at their pinned versions, into target/browser-compare.
set -euo pipefail
cd "$(dirname "$0")/../../.."

target="${CARGO_TARGET_DIR:-target}"
own="$target/browser-compare"
web="onnxruntime-web@1.30.0"
mkdir -p "$own"
if ! cmp -s apps/browser/compare/requirements.txt "$own/venv/installed.txt"; then
    python3 -m venv "$own/venv"
    "$own/venv/bin/pip" install --quiet --disable-pip-version-check \
        --requirement apps/browser/compare/requirements.txt >&2
    cp apps/browser/compare/requirements.txt "$own/venv/installed.txt"
fi
if [ "$(cat "$own/installed.txt" 2>/dev/null)" != "$web" ]; then
    npm install --prefix "$own" --no-save --no-audit --no-fund --ignore-scripts "$web" >&2
    echo "$web" >"$own/installed.txt"
fi
apps/browser/build.sh >&2
export="$own/venv/bin/python apps/browser/compare/export.py"
[ -f "$own/float/model.safetensors" ] || $export random "$own/float" assets/bert
for model in assets/bert "$own/float"; do
    to="$own/models/bert"
    [ "$model" = assets/bert ] || to="$own/models/minilm-sizes"
    "$target/debug/dynquant-browser" prepare "$model" "$to"
    for form in fused plain; do
        [ -f "$to/$form.onnx" ] || $export onnx "$model" "$to/$form.onnx" "$form" >&2
    done
done
exec python3 apps/browser/compare/compare.py --target "$target" "$@"
