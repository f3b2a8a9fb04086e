#!/usr/bin/env bash
# Changes one expression of a room's code at a time and runs the tests that should notice:
#
#     scripts/mutants.sh [ROOM..]     rooms: quantize qparams schedule packed threads; default: all
#
# Needs `cargo install cargo-mutants`. Ends with 1 if a change went unnoticed that
# scripts/mutants_explained.txt does not list with a reason. Minutes to hours a room: each change is
# a build of the library without optimization, for which a tenth of the time is enough.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0

# mutants ROOM 'FILES' 'TESTS' [NAMES..]: the tests that are built, and which of them run.
mutants() {
    local room="$1" arguments=() item out="target/mutants/$1"
    for item in $2; do
        arguments+=(--file "$item")
    done
    for item in $3; do
        arguments+=(--cargo-arg "$item")
    done
    shift 3
    mkdir -p "$out"
    # Its exit status also tells of tests that took too long: a hang has been noticed.
    cargo mutants "${arguments[@]}" --output "$out" --timeout 120 --baseline skip -- "$@" || true
    sed 's/:[0-9]*:[0-9]*:/:/' "$out/mutants.out/missed.txt" | sort >"$out/missed"
    sed '/^#/d; s/  # .*//' scripts/mutants_explained.txt | sort >"$out/explained"
    if comm -23 "$out/missed" "$out/explained" | grep .; then
        echo "$room: these changes went unnoticed" >&2
        return 1
    fi
    echo "$room: every change was noticed or is explained"
}

room() {
    case "$1" in
    quantize)
        mutants "$1" 'src/quantize/**/*.rs src/module/walk.rs src/module/tied.rs' \
            '--test=spec --test=report --test=walk --test=tied_views --test=failure --test=derive'
        ;;
    qparams)
        mutants "$1" src/qparams.rs '--lib --test=observers --test=onnxruntime --test=pytorch' \
            qparams observer onnx torch
        ;;
    schedule)
        mutants "$1" src/nn/recurrent/schedule.rs '--test=recurrent --test=recurrent_api'
        ;;
    *)
        sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'
        exit 2
        ;;
    esac
}

[ $# -gt 0 ] || set -- quantize qparams schedule
failed=0
for name in "$@"; do
    room "$name" || failed=1
done
exit "$failed"
