#!/usr/bin/env bash
# The WebAssembly kernels under Node: against the oracle, against each other and against torch, with
# relaxed SIMD and without.
#
#   scripts/test_wasm.sh             what .ci/run runs
#   scripts/test_wasm.sh --all       all tests of the crate but those that build or fetch
#
# Installs the target's standard library and Node; where they are not to be had it says so and succeeds.
set -euo pipefail
# shellcheck source=scripts/emulated_tests.sh
source "$(dirname "$0")/emulated_tests.sh"

target=wasm32-wasip1

if ! command -v node >/dev/null; then
    command -v apt-get >/dev/null || skip "no node, and no apt-get"
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo="sudo"
    { $sudo apt-get update -q && $sudo apt-get install -qy nodejs; } || skip "nodejs cannot be installed"
fi
if [ ! -d "$(rustc --print target-libdir --target "$target")" ]; then
    command -v rustup >/dev/null || skip "no standard library of $target, and no rustup"
    rustup target add "$target" || skip "the standard library of $target is not to be had"
fi

# Both rows of the table are in one program, which is to run on either. There are no threads in it.
export CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS="-C target-feature=+simd128,+relaxed-simd"
export CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings $PWD/scripts/wasi_runner.mjs"
test() { cargo test --package candle-dynquant --package candle-dynquant-kernels --no-default-features --target "$target" "$@"; }

test "${tests[@]}" -- --skip threads::
for isa in portable simd128 relaxed_simd; do
    printf '\n-- %s\n' "$isa"
    DYNQUANT_ISA="$isa" test --test isa -- --nocapture bits_are | grep "instruction set: $isa\$"
done
# Without the variable it takes the best.
test --test isa -- --nocapture bits_are | grep "instruction set: relaxed_simd"
