#!/usr/bin/env bash
# Changes one expression of a room's code at a time and runs the tests that should notice:
#
#     scripts/mutants.sh [ROOM..]     rooms: quantize hidden names qparams schedule packed threads
#
# Needs `cargo install cargo-mutants`. Ends with 1 if a change went unnoticed that
# scripts/mutants_explained.txt does not list with a reason. A change in quantize is a build of the
# library, without optimization: hours. The other rooms are crates of their own, built in seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0

# check ROOM ARGUMENTS..: cargo-mutants with these arguments; changes that went unnoticed need a reason.
check() {
    local room="$1" out="target/mutants/$1"
    shift
    mkdir -p "$out"
    # Its exit status also tells of tests that took too long: a hang has been noticed.
    cargo mutants --output "$out" "$@" || true
    local tried all
    tried="$(cat "$out"/mutants.out/{caught,missed,timeout,unviable}.txt | wc -l)"
    all="$(grep -c '"package":' "$out/mutants.out/mutants.json" || true)"
    if [ "$tried" -ne "$all" ] || ! [ -s "$out/mutants.out/caught.txt" ]; then
        echo "$room: expected $all changes to be tried and a test to notice some, got $tried" >&2
        return 1
    fi
    sed 's/:[0-9]*:[0-9]*:/:/' "$out/mutants.out/missed.txt" | sort -u >"$out/missed"
    sed '/^#/d; s/  # .*//' scripts/mutants_explained.txt | sort -u >"$out/explained"
    if comm -23 "$out/missed" "$out/explained" | grep .; then
        echo "$room: these changes went unnoticed" >&2
        return 1
    fi
    echo "$room: every change was noticed or is explained"
}

# library ROOM 'FILES' 'TESTS' [NAMES..]: files, or `-` and one that is left out; the tests that are
# built, and which of them run.
library() {
    local room="$1" arguments=() item
    for item in $2; do
        case "$item" in
        -*) arguments+=(--exclude "${item#-}") ;;
        *) arguments+=(--file "$item") ;;
        esac
    done
    for item in $3; do
        arguments+=(--cargo-arg "$item")
    done
    shift 3
    check "$room" "${arguments[@]}" --baseline skip --timeout 120 -- "$@"
}

# sources ROOM 'FILES' 'MODULES': files whose tests need no more than these modules of the library, in a
# crate of their own.
sources() {
    local crate="target/mutants/$1/crate"
    rm -rf "$crate"
    mkdir -p "$crate/tests"
    cp -r src stress/sources/Cargo.* "$crate"
    sed -i "s|\.\./\.\./crates|$PWD/crates|" "$crate/Cargo.toml"
    cp -r tests/common "$crate/tests"
    cp stress/sources/src/others.rs "$crate/src"
    cat >"$crate/src/lib.rs" <<END
#![allow(dead_code, unused_imports, unused_macros)]
extern crate self as candle_core;
extern crate self as gemm;
mod others;
pub use others::*;
$3
END
    CARGO_TARGET_DIR="$PWD/target/mutants/sources" \
        check "$1" --dir "$crate" --in-place --file "$2" -- --lib
}

room() {
    case "$1" in
    quantize)
        library "$1" 'src/quantize/**/*.rs src/module/*.rs -src/quantize/hidden.rs' \
            '--test=spec --test=report --test=walk --test=tied_views --test=failure --test=derive --test=hidden'
        ;;
    hidden)
        sources "$1" src/quantize/hidden.rs 'pub mod quantize { mod hidden; pub use hidden::HiddenField;
            pub struct OpaqueField { pub path: String, pub type_name: String } }'
        ;;
    names)
        sources "$1" src/name_regex.rs 'mod error; mod sizes; mod words; mod name_regex;'
        ;;
    qparams)
        sources "$1" 'src/qparams/*.rs' 'mod error; mod words; mod qparams;'
        ;;
    schedule)
        sources "$1" src/nn/recurrent/schedule.rs \
            'mod error; mod nn { pub mod recurrent { mod schedule; } }'
        ;;
    packed)
        sources "$1" src/kernels/packed.rs 'mod error; mod sizes; mod words; mod qparams;
            mod kernels { mod isa; mod packed; pub mod reference; #[cfg(test)] mod tests { mod layout; } }'
        ;;
    threads)
        sources "$1" 'src/kernels/threads/*.rs' 'mod kernels { mod threads; }'
        ;;
    *)
        sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'
        exit 2
        ;;
    esac
}

[ $# -gt 0 ] || set -- quantize hidden names qparams schedule packed threads
failed=0
for name in "$@"; do
    room "$name" || failed=1
done
exit "$failed"
