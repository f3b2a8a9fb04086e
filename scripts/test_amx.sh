#!/usr/bin/env bash
# The AMX kernels on an x86-64 CPU that has no AMX: tile instructions raise SIGILL there, and a
# handler executes them in memory. Where the CPU has AMX, `cargo test` runs them on it.
#
#   scripts/test_amx.sh             the kernels' tests; recorded in scripts/tested
#   scripts/test_amx.sh --check     what .ci/run runs: nothing if just that was tested before
#   scripts/test_amx.sh --all       all tests of the crate but those that build or fetch
set -euo pipefail
# shellcheck source=scripts/emulated_tests.sh
source "$(dirname "$0")/emulated_tests.sh"

[ "$(uname -sm)" = "Linux x86_64" ] || skip "AMX is emulated on x86-64 Linux only"
if grep -qw amx_int8 /proc/cpuinfo; then
    skip "this CPU has AMX, and cargo test runs the kernels on it"
fi
options=(--features candle-dynquant-kernels/emulate-amx)
# What is above the kernels is the same code as on this CPU.
[ -n "$all" ] || packages=(--package candle-dynquant-kernels)
test_kernels
if [ -n "$all" ]; then
    test_library
    test_bits amx_int8
fi
record
