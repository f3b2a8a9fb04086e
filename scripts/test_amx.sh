#!/usr/bin/env bash
# The AMX kernels on an x86-64 CPU that has no AMX: tile instructions raise SIGILL there, and a
# handler executes them in memory. Where the CPU has AMX, `cargo test` runs them on it.
#
#   scripts/test_amx.sh             what .ci/run runs
#   scripts/test_amx.sh --all       all tests of the crate but those that build or fetch
set -euo pipefail
# shellcheck source=scripts/emulated_tests.sh
source "$(dirname "$0")/emulated_tests.sh"

[ "$(uname -sm)" = "Linux x86_64" ] || skip "AMX is emulated on x86-64 Linux only"
if grep -qw amx_int8 /proc/cpuinfo; then
    skip "this CPU has AMX, and cargo test runs the kernels on it"
fi
# With the workspace, whose dependencies have the features of `cargo test --workspace`: candle is compiled once.
cargo test --workspace --features candle-dynquant-kernels/emulate-amx "${tests[@]}"
