# Sourced by scripts whose tests take long: what they tested is recorded, and `--check` tests what was not.
#
# What was tested is a fingerprint, a hash of files with their names, which is committed with the change. Whoever
# forgets that has CI run the tests.

# The files at paths that git knows or does not ignore; no prose, and no record.
fingerprint() {
    git ls-files --cached --others --exclude-standard -- "$@" |
        grep -v -e '\.md$' -e '\(^\|/\)tested\(/\|\.txt$\)' | LC_ALL=C sort -u |
        while IFS= read -r file; do [ ! -f "$file" ] || sha256sum "$file"; done |
        sha256sum | cut -d ' ' -f 1
}

# Begins tests of what is at paths: begin OPTION RECORD PATH..; with the option --check it ends the script if just
# that was tested.
begin() {
    recorded="$2" paths=("${@:3}")
    now="$(fingerprint "${paths[@]}")"
    if [ "$1" = --check ] && [ "$now" = "$(cat "$recorded" 2>/dev/null)" ]; then
        echo "skipped: just that was tested ($recorded)"
        exit 0
    fi
}

# Records that the tests passed.
record() {
    [ "$now" = "$(fingerprint "${paths[@]}")" ] || { echo "sources changed while they were tested: run it again" >&2; exit 1; }
    if [ "$now" != "$(cat "$recorded" 2>/dev/null)" ]; then
        mkdir -p "$(dirname "$recorded")"
        echo "$now" >"$recorded"
        echo "recorded in $recorded: commit it with the change"
    fi
}
