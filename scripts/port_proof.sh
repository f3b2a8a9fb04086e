#!/usr/bin/env bash
# Ports candle-transformers' own models by `dynquant port`, with no edit by hand, and compiles the
# result against this library. Its sources are those in the cargo registry; what is made of them
# stays under target/.
#
#   scripts/port_proof.sh          a table: model, file, lines changed, what is left, compiles
#   scripts/port_proof.sh --run    small random models too: ported against original, and quantized;
#                                  compiles candle-transformers twice
#   scripts/port_proof.sh --json   the rows as a JSON array
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.11.1
root="$PWD"
scratch="$root/target/port-proof"

find_sources() {
    find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -maxdepth 2 -type d \
        -name "candle-transformers-$version" -print -quit 2>/dev/null || true
}
sources="$(find_sources)"
if [ -z "$sources" ]; then
    # cargo fetches it for a package that names it and nothing else.
    mkdir -p "$scratch/fetch/src"
    : >"$scratch/fetch/src/lib.rs"
    cat >"$scratch/fetch/Cargo.toml" <<TOML
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[dependencies]
candle-transformers = "=$version"
[workspace]
TOML
    cargo fetch --quiet --manifest-path "$scratch/fetch/Cargo.toml"
    sources="$(find_sources)"
fi

# The crate as it is, and once more for the port, with this library beside its dependencies.
manifest() {
    cat <<TOML
[package]
name = "$1"
version = "0.0.0"
edition = "2021"

[features]
flash-attn = []
cuda = []
metal = []

[dependencies]
byteorder = "1.4.3"
candle = { version = "0.11.1", package = "candle-core", default-features = false }
candle-nn = { version = "0.11.1", default-features = false }
fancy-regex = "0.19.0"
num-traits = "0.2.15"
rand = "0.9.0"
rayon = "1.7.0"
serde = { version = "1.0.171", features = ["derive"] }
serde_json = "1.0.99"
serde_plain = "1.0.2"
tracing = "0.1.37"
TOML
}
mkdir -p "$scratch/original" "$scratch/ported" "$scratch/proof"
for crate in original ported; do
    rm -rf "$scratch/$crate/src"
    cp -r "$sources/src" "$scratch/$crate/src"
    chmod -R u+w "$scratch/$crate/src"
    manifest "$crate" >"$scratch/$crate/Cargo.toml"
done
echo "candle-dynquant = { path = \"$root\" }" >>"$scratch/ported/Cargo.toml"
rm -rf "$scratch/proof/src"
cp -r cli/proof "$scratch/proof/src"
cat >"$scratch/proof/Cargo.toml" <<TOML
[package]
name = "proof"
version = "0.0.0"
edition = "2021"

[dependencies]
anyhow = "1.0"
candle = { version = "0.11.1", package = "candle-core", default-features = false }
candle-dynquant = { path = "$root" }
candle-nn = { version = "0.11.1", default-features = false }
original = { path = "../original" }
ported = { path = "../ported" }
serde_json = "1.0.99"
TOML
cp Cargo.lock "$scratch/Cargo.lock"
cat >"$scratch/Cargo.toml" <<TOML
[workspace]
members = ["original", "ported", "proof"]
resolver = "3"

[profile.dev.package."*"]
opt-level = 2
debug = false
TOML

cargo build --quiet --package dynquant --bin dynquant
target/debug/dynquant port --write --json "$scratch/ported/src" >"$scratch/port.json"

# One target directory for both, so that the library's dependencies are compiled once.
status=0
cargo check --manifest-path "$scratch/ported/Cargo.toml" --target-dir "$root/target" \
    --message-format=json >"$scratch/check.json" 2>"$scratch/check.log" || status=$?
[ -s "$scratch/check.json" ] || { cat "$scratch/check.log" >&2; exit "$status"; }
if [ "$status" -ne 0 ] && ! grep -q '"name":"ported"' "$scratch/check.json"; then
    tail -20 "$scratch/check.log" >&2
    exit "$status"
fi

: >"$scratch/run.jsonl"
case " $* " in *" --run "*)
    cargo run --quiet --manifest-path "$scratch/proof/Cargo.toml" --target-dir "$root/target" \
        >"$scratch/run.jsonl"
    ;;
esac

python3 - "$scratch" "$@" <<'PY'
import collections
import json
import os
import sys

scratch, options = sys.argv[1], sys.argv[2:]
source = os.path.join(scratch, "ported", "src")
errors, warnings = collections.Counter(), collections.Counter()
kinds = collections.Counter()
for line in open(os.path.join(scratch, "check.json")):
    record = json.loads(line)
    if record.get("reason") != "compiler-message" or record["target"]["name"] != "ported":
        continue
    message = record["message"]
    if message["level"] == "error" and not message["spans"]:
        continue  # "aborting due to ..": a count of the others
    spans = [span for span in message["spans"] if span["is_primary"]]
    name = spans[0]["file_name"] if spans else ""
    # Relative to the workspace or to the package, as cargo is run.
    name = name.rpartition("src/")[2] if "src/" in name else name
    if message["level"] == "error" and spans:
        errors[name] += 1
        code = (message["code"] or {}).get("code", "")
        kinds[f"{code} {message['message']}"] += 1
    elif message["level"] == "warning" and spans:
        warnings[name] += 1

runs = [json.loads(line) for line in open(os.path.join(scratch, "run.jsonl"))]
runs = {run["model"]: run for run in runs}
rows = []
for file in json.load(open(os.path.join(scratch, "port.json")))["files"]:
    name = os.path.relpath(file["file"], source)
    if not name.startswith("models/") or not file["changed"]:
        continue
    model = name.removeprefix("models/").removesuffix(".rs").removesuffix("/mod").removesuffix("/model")
    run = runs.get(model, {})
    rows.append({
        "model": model,
        "file": name,
        "lines_changed": max(file["lines_added"], file["lines_removed"]),
        "lines_added": file["lines_added"],
        "lines_removed": file["lines_removed"],
        "left": len(file["todo"]),
        "errors": errors[name],
        "warnings": warnings[name],
        # `null` where nothing was run or measured.
        "found": run.get("found"), "swapped": run.get("swapped"), "named": None,
        "sqnr_db": run.get("sqnr_db"), "float_difference": run.get("float_difference"),
        "original_ms": None, "float_ms": None, "int8_ms": None,
    })

if "--json" in options:
    json.dump(rows, sys.stdout, indent=1)
    print()
else:
    print("| model | + | - | left | compiles | found | swapped | largest float difference | SQNR dB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        run = runs.get(row["model"], {})
        cells = [row["model"], row["lines_added"], row["lines_removed"], row["left"],
                 f"{row['errors']} errors" if row["errors"] else "yes"]
        if "error" in run:
            cells += [run["error"], "", "", ""]
        elif run:
            cells += [run["found"], run["swapped"], f"{run['float_difference']:.1e}",
                      f"{run['sqnr_db']:.1f}"]
        else:
            cells += [""] * 4
        print("| " + " | ".join(map(str, cells)) + " |")
good = sum(not row["errors"] for row in rows)
print(f"{good} of {len(rows)} ported files without an error, {sum(errors.values())} errors, "
      f"{sum(warnings.values())} warnings", file=sys.stderr)
for kind, count in kinds.most_common(30):
    print(f"{count:4} {kind}", file=sys.stderr)
bad = [run["model"] for run in runs.values()
       if "error" in run or run["sqnr_db"] < 20 or run["float_difference"] > 1e-5 * run["largest"]]
if bad:
    print(f"not as the original: {', '.join(bad)}", file=sys.stderr)
sys.exit(0 if good >= 40 and not errors and not bad else 1)
PY
