#!/usr/bin/env bash
# The AMX kernels on an x86-64 CPU that has no AMX: tile instructions raise SIGILL there, and a
# handler executes them in memory. Where the CPU has AMX, `cargo test` runs them on it.
#
#   scripts/test_amx.sh             what .ci/run runs
#   scripts/test_amx.sh --all       all tests of the crate but those that build or fetch
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    printf 'skipped: %s\n' "$*"
    exit 0
}

tests=(--lib --test isa --test pytorch --test onnxruntime)
case "${1:-}" in
"") ;;
--all)
    tests+=(--test linear --test recurrent --test recurrent_api --test embedding --test ops
        --test observers --test spec --test walk --test derive)
    ;;
*)
    sed -n '2,6s/^# \?//p' "$0" >&2
    exit 2
    ;;
esac

[ "$(uname -sm)" = "Linux x86_64" ] || skip "AMX is emulated on x86-64 Linux only"
if grep -qw amx_int8 /proc/cpuinfo; then
    skip "this CPU has AMX, and cargo test runs the kernels on it"
fi
cargo test --package candle-dynquant --features emulate-amx "${tests[@]}"
