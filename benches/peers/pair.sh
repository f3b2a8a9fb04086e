#!/usr/bin/env bash
# Times two builds of ours in turns, for "no row is slower than before":
#
#   benches/peers/pair.sh OLD [NEW] [--only GROUP [--rows ROWS]] [--threads N] [--allowed PERCENT]
#
# OLD and NEW are revisions, built below target/peers/revisions (minutes the first time), or
# executables that such a build has made; NEW is the working tree if it is left out. pair.py
# explains the rest and ends with 1 if a row is slower by more than 2 %.
#
#   benches/peers/pair.sh main --only linear --rows '128,768,768;1,4096,4096'
set -euo pipefail
cd "$(dirname "$0")/../.."
source benches/peers/setup.sh

# Prints where the executable of a revision is, or of the working tree for "".
executable() {
    local folder="target/peers/revisions" hash
    if [ -z "$1" ]; then
        build --bench peers
    elif [ -f "$1" ]; then
        echo "$1"
    elif hash="$(git rev-parse --verify --quiet "$1^{commit}")"; then
        if [ ! -f "$folder/$hash" ]; then
            rm -rf "$folder/source"
            mkdir -p "$folder/source"
            # With the time of today: cargo takes files that are older than its last build for unchanged.
            git archive "$hash" | tar -x -m -C "$folder/source"
            cp "$(build --manifest-path "$folder/source/Cargo.toml" --target-dir "$folder/target" --bench peers)" "$folder/$hash"
        fi
        echo "$folder/$hash"
    else
        echo "pair.sh: expected an executable or a revision, got $1" >&2
        exit 2
    fi
}

builds=()
while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
    builds+=("$1")
    shift
done
install
if [ ${#builds[@]} -lt 1 ] || [ ${#builds[@]} -gt 2 ]; then
    # Its usage says what is missing.
    exec "$venv/bin/python" benches/peers/pair.py "${builds[@]}" "$@"
fi
echo "building" >&2
old="$(executable "${builds[0]}")"
new="$(executable "${builds[1]:-}")"
exec "$venv/bin/python" benches/peers/pair.py "$old" "$new" "$@"
