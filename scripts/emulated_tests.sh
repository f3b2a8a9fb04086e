# Sourced by the scripts that test kernels by emulation: goes to the repository, and leaves the tests
# to run in `tests`, few or with `--all` all of the crate but those that build or fetch.

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
    # The script's head says how it is called.
    sed -n '2,/^set /{/^#/s/^# \?//p}' "$0" >&2
    exit 2
    ;;
esac
