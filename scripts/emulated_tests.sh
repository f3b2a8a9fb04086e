# Sourced by the scripts that test kernels by emulation: goes to the repository, and defines what they run.

cd "$(dirname "$0")/.."

skip() {
    printf 'skipped: %s\n' "$*"
    exit 0
}

all=""
case "${1:-}" in
"" | --check) ;;
--all) all="$1" ;;
*)
    # The script's head says how it is called.
    sed -n '2,/^set /{/^#/s/^# \?//p}' "$0" >&2
    exit 2
    ;;
esac

# Above the kernels no code is a CPU's own.
# shellcheck source=scripts/recorded.sh
source scripts/recorded.sh
script="scripts/$(basename "$0")"
begin "${1:-}" "scripts/tested/$(basename "$0" .sh)" crates/kernels tests/isa scripts/emulated_tests.sh "$script"

# The options of cargo that choose the target and the features: the script sets them. Both packages are named
# wherever one is tested, so that they have the same features and are compiled once.
options=()
packages=(--package candle-dynquant --package candle-dynquant-kernels)

# The kernels against the oracle, and the library's unit tests. Without `--all` neither sizes that take an
# emulator minutes nor the accuracy of code that is the same on every CPU: `cargo test` has both.
test_kernels() {
    local left=(large_ bound_of_f64 functions_that_vanish smaller_errors first_channel_at_fault)
    [ -z "$all" ] || left=()
    cargo test "${options[@]}" "${packages[@]}" --lib -- "${left[@]/#/--skip=}" "$@"
}

# The bits of every layer and function on the instruction set $1, which the environment that follows chooses.
test_bits() {
    printf '\n-- %s\n' "$*"
    env "${@:2}" cargo test "${options[@]}" "${packages[@]}" --test isa -- --nocapture bits_are |
        grep "instruction set: $1\$"
}

# The tests of the library but those that build or fetch.
test_library() {
    local tests=(isa pytorch onnxruntime linear recurrent embedding ops observers spec walk derive)
    cargo test "${options[@]}" "${packages[@]}" "${tests[@]/#/--test=}"
}
