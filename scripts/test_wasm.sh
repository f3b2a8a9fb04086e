#!/usr/bin/env bash
# The WebAssembly kernels under Node: against the oracle and against the bits of other CPUs, with relaxed
# SIMD and without.
#
#   scripts/test_wasm.sh             the kernels' tests, and the bits of layers; recorded in scripts/tested
#   scripts/test_wasm.sh --check     what .ci/run runs: nothing if just that was tested before
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
options=(--no-default-features --target "$target")
# In several processes: behind a minute of tests in one, Node 20.20 ends with a fault of its own memory.
groups=(tests::attention tests::convolution tests::products tests::recurrences)
for group in "${groups[@]}"; do
    test_kernels "$group" --skip threads::
done
test_kernels "${groups[@]/#/--skip=}" --skip threads::
[ -z "$all" ] || test_library
for isa in portable simd128; do
    test_bits "$isa" "DYNQUANT_ISA=$isa"
done
test_bits relaxed_simd
record
