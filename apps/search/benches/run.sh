#!/usr/bin/env bash
# Measures dynquant-search on the texts of the crates that apps/Cargo.lock names, 20,000 passages and more:
#
#   apps/search/benches/run.sh [--json]
#
# With all-MiniLM-L6-v2, which it fetches into target/minilm. Ends with 1 if 1 % of the queries take
# 10 ms or more. search.rs has the rest.
set -euo pipefail
cd "$(dirname "$0")/../../.."

# Of the documents and sources together, which gives about 22,900 passages.
bytes=8500000
queries=1000

work="$PWD/target/search-bench"
scripts/fetch_minilm.sh target/minilm >&2
cargo fetch --quiet --locked --manifest-path apps/Cargo.toml
python3 - "$work/corpus" "$bytes" <<'PY'
import os, pathlib, shutil, sys, tomllib

corpus, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2])
home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
with open("apps/Cargo.lock", "rb") as file:
    packages = tomllib.load(file)["package"]
names = sorted(f"{it['name']}-{it['version']}" for it in packages if "source" in it)
folders = [folder for name in names for folder in home.glob(f"registry/src/*/{name}")]
files = [file for ending in ("md", "rs") for folder in folders for file in sorted(folder.rglob(f"*.{ending}"))]
shutil.rmtree(corpus, ignore_errors=True)
corpus.mkdir(parents=True)
size = 0
for number, file in enumerate(files):
    if size >= limit:
        break
    size += file.stat().st_size
    shutil.copyfile(file, corpus / f"{number:05}-{file.name}")
if size < limit:
    sys.exit(f"expected {limit} bytes of documents and sources in {home}/registry/src, got {size}")
PY
awk -F '\t' -v queries="$queries" 'NR % 3 == 0 && ++n <= queries {print $2}' assets/bert/heldout.tsv >"$work/queries.txt"

measure() {
    cargo bench --quiet --manifest-path apps/Cargo.toml --target-dir target -p dynquant-search --bench search -- \
        --corpus "$work/corpus" --queries "$work/queries.txt" "$@"
}
measure --model "$PWD/target/minilm" "$@"

