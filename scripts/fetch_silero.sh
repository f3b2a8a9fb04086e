#!/usr/bin/env bash
# Fetches the voice detector Silero VAD (MIT) for 16 kHz into a folder, with what ONNX Runtime computes of it.
#
#     scripts/fetch_silero.sh DIR
#
# Leaves model.safetensors and reference.safetensors in DIR. The weights come out of an ONNX file in the Python
# package silero-vad 6.2.3, which pip downloads and which is unpacked, not installed;
# assets/reference/silero.py converts them and runs that file.
#
# Needs python3 with pip, onnx, onnxruntime, numpy and safetensors, and about 30 MB of free disk while it runs
# (4 MB stay). PYTHON=... names another interpreter. Fetches nothing when DIR is complete; an interrupted run
# leaves no DIR.
set -euo pipefail

sums="138c500454717988f9488060a3a8191e077e1d5057003cef0c9a680aa5c2f81f  model.safetensors"
# shellcheck source=scripts/fetch.sh
source "$(dirname "$0")/fetch.sh"

"$python" -c "import onnx, onnxruntime, safetensors.numpy" 2>/dev/null ||
    fail "$python has no onnx, onnxruntime and safetensors"
unpacked "silero-vad==6.2.3"
file="silero_vad_16k_op15.onnx"
sums="7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49  $file" complete "$beside/silero_vad/data" ||
    fail "the package does not hold the files expected"
"$python" "$(dirname "$0")/../assets/reference/silero.py" "$beside/silero_vad/data/$file" "$beside/model" ||
    fail "the reference could not be computed"
place model
