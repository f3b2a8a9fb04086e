#!/usr/bin/env bash
# The AArch64 kernels, cross-compiled and emulated: against the oracle and against the bits of other CPUs, on a
# CPU with dot products and on one without.
#
#   scripts/test_aarch64.sh             the kernels' tests, and the bits of layers; recorded in scripts/tested
#   scripts/test_aarch64.sh --check     what .ci/run runs: nothing if just that was tested before
#   scripts/test_aarch64.sh --all       all tests of the crate but those that build or fetch
#
# Installs the target's standard library, a cross compiler and qemu-user; where they are not to be
# had it says so and succeeds. Emulated times mean nothing: nothing is timed.
set -euo pipefail
# shellcheck source=scripts/emulated_tests.sh
source "$(dirname "$0")/emulated_tests.sh"

target=aarch64-unknown-linux-gnu
compiler=aarch64-linux-gnu-gcc
emulator=qemu-aarch64

if ! command -v "$compiler" >/dev/null || ! command -v "$emulator" >/dev/null; then
    command -v apt-get >/dev/null || skip "no $compiler or $emulator, and no apt-get"
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo="sudo"
    { $sudo apt-get update -q && $sudo apt-get install -qy gcc-aarch64-linux-gnu qemu-user; } ||
        skip "gcc-aarch64-linux-gnu and qemu-user cannot be installed"
fi
if [ ! -d "$(rustc --print target-libdir --target "$target")" ]; then
    command -v rustup >/dev/null || skip "no standard library of $target, and no rustup"
    rustup target add "$target" || skip "the standard library of $target is not to be had"
fi

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$compiler"
runner=CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER
export "$runner=$emulator -L /usr/aarch64-linux-gnu -cpu max"
options=(--no-default-features --target "$target")
test_kernels
[ -z "$all" ] || test_library
for isa in portable neon; do
    test_bits "$isa" "DYNQUANT_ISA=$isa"
done
test_bits dotprod
test_bits neon "$runner=$emulator -L /usr/aarch64-linux-gnu -cpu cortex-a72"
record
