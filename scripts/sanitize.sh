#!/usr/bin/env bash
# Runs tests under the tools that see what an assertion does not. Each needs a nightly toolchain,
# which is installed if it is missing.
#
#     scripts/sanitize.sh asan    accesses beyond an allocation, on every instruction set
#     scripts/sanitize.sh tsan    data races between the threads of a call
#     scripts/sanitize.sh miri    undefined behaviour in the portable kernels and the threads
set -euo pipefail
cd "$(dirname "$0")/.."

# Several, on a machine of one core as well.
# Panics on purpose have no backtrace, which takes Miri minutes.
export CANDLE_NUM_THREADS=4 RUST_BACKTRACE=0

host="$(rustc -vV | sed -n 's/^host: //p')"
# All `unsafe` of the library is in a crate without candle, which is built in a minute.
kernels=(--package candle-dynquant-kernels --lib)

# each LIMIT WITHOUT COMMAND..: the tests that `cargo test` or `cargo miri test` has, but those whose names
# have WITHOUT, each in a process of its own, which may take so many seconds of the CPU. Prints a line for
# each, and fails at the end if one did.
each() {
    local limit="$1" without="$2" failed=0 log name names start told
    shift 2
    log="$(mktemp)"
    names="$("$@" -- --list | sed -n 's/: test$//p' | grep -v "$without")"
    [ -n "$names" ] || return 1
    for name in $names; do
        start=$SECONDS
        if (ulimit -t "$limit" && "$@" -- --exact "$name") >"$log" 2>&1; then
            told="$(sed -n 's/^test .* \.\.\. //p' "$log" | head -1)"
        else
            told="FAILED, or took more than $limit s"
            failed=1
            cat "$log"
        fi
        printf '%5d s  %s: %s\n' $((SECONDS - start)) "$name" "$told"
    done
    rm "$log"
    return "$failed"
}

nightly() {
    rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
    rustup component add --toolchain nightly "$@"
}

# AddressSanitizer sees compiled code, intrinsics included. It does not see `asm!`: the loads and
# stores of tiles, whose bounds are checked before the loop (crates/kernels/src/arch/x86_64/amx). Threads
# of the pool live until the process ends, so what they hold is not a leak. First the kernels, then what
# calls them; there dependencies are not optimized, which halves the time of the build.
asan() {
    nightly rust-src
    export RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS="detect_leaks=0"
    local build=(-Zbuild-std --target "$host" --target-dir target/asan --config 'profile.dev.debug="line-tables-only"')
    cargo +nightly test "${build[@]}" "${kernels[@]}"
    build+=(--config 'profile.dev.package."*".opt-level=0' --no-default-features --package candle-dynquant)
    cargo +nightly test "${build[@]}" --lib -- tensor::
    cargo +nightly test "${build[@]}" --test empty --test isa
}

# The standard library and rayon are built with the sanitizer too: it has to see how locks and
# queues order what threads do.
tsan() {
    nightly rust-src
    RUSTFLAGS="-Zsanitizer=thread" cargo +nightly test -Zbuild-std --target "$host" --target-dir target/tsan \
        "${kernels[@]}" -- threads::
}

# By tree borrows: crossbeam, inside rayon, breaks the rules of stacked borrows. Tests take fewer cases
# there, or are ignored with a reason.
miri() {
    nightly miri rust-src
    export MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation"
    # Bits are compared, also of functions that Miri rounds otherwise at each call.
    MIRIFLAGS+=" -Zmiri-deterministic-floats"
    each 600 none cargo +nightly miri test --target-dir target/miri "${kernels[@]}"
}

case "${1:-}" in
asan | tsan | miri) "$1" ;;
*)
    sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
    ;;
esac
