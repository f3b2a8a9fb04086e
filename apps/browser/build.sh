#!/usr/bin/env bash
# Builds the page into target/browser, which any web server can serve as it is: `build.sh [MODEL]`.
#
# MODEL is a Hugging Face folder of a float BERT with a classification head; assets/bert without it.
set -euo pipefail
model="$(realpath "${1:-$(dirname "$0")/../../assets/bert}")"
cd "$(dirname "$0")/../.."

target="${CARGO_TARGET_DIR:-target}"
page="$target/browser"
cargo=(--manifest-path apps/Cargo.toml --locked --target-dir "$target" --package dynquant-browser)

if [ ! -d "$(rustc --print target-libdir --target wasm32-wasip1)" ]; then
    rustup target add wasm32-wasip1
fi
mkdir -p "$page"
cargo run "${cargo[@]}" -- prepare "$model" "$page/model"
# A program for each instruction set; model.js loads the one that the browser takes.
for isa in simd128 relaxed_simd; do
    features="+simd128"
    [ "$isa" = simd128 ] || features="+simd128,+relaxed-simd"
    CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS="-C target-feature=$features" \
        cargo build "${cargo[@]}" --lib --profile page --target wasm32-wasip1
    cp "$target/wasm32-wasip1/page/dynquant_browser.wasm" "$page/$isa.wasm"
done
cp apps/browser/page/* "$page/"
printf 'built %s: python3 -m http.server --directory %s\n' "$page" "$page"
