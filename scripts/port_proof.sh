#!/usr/bin/env bash
# Ports candle-transformers' own models by `dynquant port`, with no edit by hand, and compiles the
# result against this library. Its sources are those in the cargo registry; what is made of them
# stays under target/.
#
#   scripts/port_proof.sh          a table: model, file, lines changed, what is left, compiles
#   scripts/port_proof.sh --run    random models too: outputs of small ones, ported against original
#                                  and quantized; times of larger ones, in turns
#   scripts/port_proof.sh --json   the rows as a JSON array; --markdown: the table of docs/porting.md
#   scripts/port_proof.sh --size base      the size that is timed: minilm (the default), minilm-16,
#                                          base, base-16 (tokens; 128 otherwise) or small
#   scripts/port_proof.sh --only bert,t5   the models that are run
#   scripts/port_proof.sh --no-compile     without the compilation of all ported files
#   scripts/port_proof.sh --dev            runs a build for tests, whose times say nothing
#   scripts/port_proof.sh --patterns       only crates/port/proof/patterns: code of other shapes, written for this
#
# It exits with 1 where a ported file does not compile, a float port is not its original, a quantized
# one has less than 20 dB, a layer is neither swapped nor named, or a quantized model that is saved and
# read back by its own load, its float weights gone, gives other bits or is refused for no known reason;
# and where crates/port/proof/patterns are ported otherwise than patterns/left.txt and patterns/proof.rs say.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.11.1
root="$PWD"
scratch="$root/target/port-proof"
# Ported code is formatted by its own project's settings, not by this one's.
mkdir -p "$scratch"
: >"$scratch/rustfmt.toml"

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

run="" only="" size=minilm form="" compile=1 profile=--release patterns=""
while [ "$#" -gt 0 ]; do
    case "$1" in
    --run) run=1 ;;
    --json | --markdown) form="$1" ;;
    --no-compile) compile="" ;;
    --dev) run=1 profile="" ;;
    --patterns) patterns=only profile="" ;;
    --size) run=1 size="$2" && shift ;;
    --only) run=1 only="${2//,/ }" && shift ;;
    *) echo "unknown argument $1" >&2 && exit 2 ;;
    esac
    shift
done

dependencies() {
    cat <<TOML
[package]
name = "$1"
version = "0.0.0"
edition = "2024"

[features]
flash-attn = []
cuda = []
metal = []

[dependencies]
anyhow = "1.0"
byteorder = "1.4.3"
candle = { version = "$version", package = "candle-core", default-features = false }
candle-dynquant = { path = "$root" }
candle-dynquant-io = { path = "$root/crates/io", features = ["child"] }
candle-nn = { version = "$version", default-features = false }
fancy-regex = "0.19.0"
num-traits = "0.2.15"
rand = "0.9.0"
rayon = "1.7.0"
serde = { version = "1.0.171", features = ["derive"] }
serde_json = "1.0.99"
serde_plain = "1.0.2"
tempfile = "3.27"
clap = { version = "4.6", default-features = false, features = ["std", "derive", "help", "usage", "error-context", "suggestions"] }
tracing = { version = "0.1.37", default-features = false }
TOML
}

# A program that sees candle by the name of its package.
program() {
    dependencies "$1" | sed 's/^candle = {\(.*\), package = "candle-core"/candle-core = {\1/' >"$scratch/$1/Cargo.toml"
}

# The crate $1 of the sources in $2, in edition 2021.
crate_of() {
    rm -rf "$scratch/$1"
    mkdir -p "$scratch/$1"
    # With their times, so that cargo compiles what has changed.
    cp -rp "$2" "$scratch/$1/src"
    chmod -R u+w "$scratch/$1/src"
    dependencies "$1" | sed 's/2024/2021/' >"$scratch/$1/Cargo.toml"
}

# Only the models that are run, so that little is compiled.
only_run() {
    local models='with_tracing|bert|distilbert|xlm_roberta|modernbert|debertav2|t5|marian|whisper|vit'
    models+='|dinov2|clip|openclip|siglip|mimi|llama|qwen2|mixtral|phi|encodec|snac|dac|segformer|segment_anything'
    models+='|depth_anything_v2|efficientnet|resnet|convnext|repvgg|mobileone|wuerstchen'
    sed -Ei "/^pub mod ($models);/!{/^pub mod/d}" "$scratch/$1/src/models/mod.rs"
    sed -Ei '/^pub mod (models|object_detection|quantized_nn|quantized_var_builder|utils);/!{/^pub mod/d}' \
        "$scratch/$1/src/lib.rs"
    touch -r "$root/scripts/port_proof.sh" "$scratch/$1/src/models/mod.rs" "$scratch/$1/src/lib.rs"
}

mkdir -p "$scratch"
members='"all"'
[ "$patterns" = only ] || crate_of all "$sources/src"
[ -z "$run" ] || patterns="${patterns:-1}"
if [ -n "$patterns" ]; then
    crate_of patterns_original crates/port/proof/patterns/src
    crate_of patterns_ported crates/port/proof/patterns/src
    rm -rf "$scratch/patterns_proof"
    mkdir -p "$scratch/patterns_proof/src"
    cp crates/port/proof/patterns/proof.rs "$scratch/patterns_proof/src/main.rs"
    cp crates/port/proof/random.rs "$scratch/patterns_proof/src"
    program patterns_proof
    for one in original ported; do
        echo "$one = { package = \"patterns_$one\", path = \"../patterns_$one\" }"
    done >>"$scratch/patterns_proof/Cargo.toml"
fi
if [ -n "$run" ]; then
    members='"all", "original", "ported", "proof"'
    crate_of original "$sources/src"
    only_run original
    rm -rf "$scratch/proof"
    mkdir -p "$scratch/proof"
    cp -r crates/port/proof "$scratch/proof/src"
    program proof
    echo "candle-dynquant-support = { path = \"$root/crates/support\" }" >>"$scratch/proof/Cargo.toml"
    printf '%s = { path = "../%s" }\n' original original ported ported >>"$scratch/proof/Cargo.toml"
fi
if [ -n "$patterns" ]; then
    members="$members, \"patterns_original\", \"patterns_ported\", \"patterns_proof\""
    [ "$patterns" != only ] || members="${members#*, }"
fi
cp Cargo.lock "$scratch/Cargo.lock"
cat >"$scratch/Cargo.toml" <<TOML
[workspace]
members = [$members]
resolver = "3"

# As in apps, so that the library and its dependencies are compiled once.
$(awk '/^\[/ { wanted = /^\[profile\.dev[].]/ } wanted' apps/Cargo.toml)
TOML
for member in ${members//[\",]/}; do
    printf '\n[profile.dev.package.%s]\nopt-level = 0\n' "$member" >>"$scratch/Cargo.toml"
done

# One target directory for all, so that the library's dependencies are compiled once.
cargo_there() { cargo "$1" --manifest-path "$scratch/Cargo.toml" --target-dir "$root/target" "${@:2}"; }

cargo build --quiet --bin dynquant
if [ "$patterns" != only ]; then
    target/debug/dynquant port --write --json "$scratch/all/src" >"$scratch/port.json"
fi
if [ -n "$run" ]; then
    crate_of ported "$scratch/all/src"
    only_run ported
fi

if [ -n "$patterns" ]; then
    target/debug/dynquant port --write "$scratch/patterns_ported/src" 2>"$scratch/patterns.txt"
    # Without the last line, which counts.
    sed "s,$scratch/patterns_ported/,,; \$d" "$scratch/patterns.txt" | diff crates/port/proof/patterns/left.txt -
    # shellcheck disable=SC2086
    cargo_there run $profile --quiet --package patterns_proof
fi
[ "$patterns" != only ] || exit 0
: >"$scratch/check.json"
status=""
if [ -n "$compile" ]; then
    status=0
    cargo_there check --package all --message-format=json \
        >"$scratch/check.json" 2>"$scratch/check.log" || status=$?
    [ -s "$scratch/check.json" ] || { cat "$scratch/check.log" >&2; exit "$status"; }
    if [ "$status" -ne 0 ] && ! grep -q '"name":"all"' "$scratch/check.json"; then
        tail -20 "$scratch/check.log" >&2
        exit "$status"
    fi
fi

: >"$scratch/run.jsonl"
if [ -n "$run" ]; then
    export RAYON_NUM_THREADS="${RAYON_NUM_THREADS:-2}" CANDLE_NUM_THREADS="${CANDLE_NUM_THREADS:-2}"
    # shellcheck disable=SC2086
    cargo_there run $profile --quiet --package proof -- --size "$size" $only >"$scratch/run.jsonl"
fi

python3 - "$scratch" "$status" "$form" <<'PY'
import collections
import json
import os
import sys

scratch, status, options = sys.argv[1], sys.argv[2], sys.argv[3:]
source = os.path.join(scratch, "all", "src")
errors, warnings = collections.Counter(), collections.Counter()
kinds = collections.Counter()
for line in open(os.path.join(scratch, "check.json")):
    record = json.loads(line)
    if record.get("reason") != "compiler-message" or record["target"]["name"] != "all":
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

if status not in ("", "0") and not errors:
    # Such as a full disk: an error without a place.
    log = open(os.path.join(scratch, "check.log")).read()
    sys.exit(f"{log[-2000:]}\nport_proof.sh: cargo check ended with {status}, without an error in a ported file")

runs = [json.loads(line) for line in open(os.path.join(scratch, "run.jsonl"))]
runs = {run["model"]: run for run in runs}
rows = []
for file in json.load(open(os.path.join(scratch, "port.json")))["files"]:
    name = os.path.relpath(file["file"], source)
    if not name.startswith("models/") or not file["changed"]:
        continue
    model = name.removeprefix("models/").removesuffix(".rs").removesuffix("/mod").removesuffix("/model")
    run = runs.get(model, {})
    row = {
        "model": model,
        "file": name,
        "lines_changed": max(file["lines_added"], file["lines_removed"]),
        "lines_added": file["lines_added"],
        "lines_removed": file["lines_removed"],
        "left": len(file["todo"]),
        "errors": errors[name],
        "warnings": warnings[name],
    }
    # `null` where nothing was run.
    for key in ["found", "swapped", "named", "sqnr_db", "float_difference", "saved", "size",
                "original_ms", "float_ms", "int8_ms", "by_hand_ms", "error"]:
        row[key] = run.get(key)
    rows.append(row)

def as_table(rows, columns):
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell(row)) for cell in columns.values()) + " |")

def ratio(row, key):
    return f"{row['original_ms'] / row[key]:.1f}x" if row[key] else ""

def times(row, key):
    return f"{row[key]:.2f} ({ratio(row, key)})" if row[key] else ""

if "--json" in options:
    json.dump(rows, sys.stdout, indent=1)
    print()
elif "--markdown" in options:
    as_table([row for row in rows if row["sqnr_db"]], {
        "model": lambda row: f"`{row['model']}`",
        "lines": lambda row: f"+{row['lines_added']} -{row['lines_removed']}",
        "swapped": lambda row: f"{row['swapped']} of {row['found']}",
        "SQNR, dB": lambda row: f"{row['sqnr_db']:.1f}",
        "float, faster than candle": lambda row: ratio(row, "float_ms"),
        "int8, faster than candle": lambda row: ratio(row, "int8_ms"),
    })
else:
    number = lambda key, form: lambda row: "" if row[key] is None else format(row[key], form)
    as_table(rows, {
        "model": lambda row: row["model"],
        "+": lambda row: row["lines_added"],
        "-": lambda row: row["lines_removed"],
        "left": lambda row: row["left"],
        "compiles": lambda row: f"{row['errors']} errors" if row["errors"] else "yes" if status else "",
        "found": lambda row: row["error"] or number("found", "")(row),
        "swapped": number("swapped", ""),
        "named": number("named", ""),
        "largest float difference": number("float_difference", ".1e"),
        "SQNR dB": number("sqnr_db", ".1f"),
        "saved": lambda row: {None: "", True: "same bits", False: "other bits"}.get(row["saved"], "refused"),
        "candle ms": number("original_ms", ".2f"),
        "float": lambda row: times(row, "float_ms"),
        "int8": lambda row: times(row, "int8_ms"),
        "int8 against examples/bert": lambda row: (
            f"{row['int8_ms'] / row['by_hand_ms']:.2f}" if row["by_hand_ms"] else ""),
    })
good = sum(not row["errors"] for row in rows)
if status:
    print(f"{good} of {len(rows)} ported files without an error, {sum(errors.values())} errors, "
          f"{sum(warnings.values())} warnings", file=sys.stderr)
else:
    print(f"{len(rows)} ported files, not compiled", file=sys.stderr)
for kind, count in kinds.most_common(30):
    print(f"{count:4} {kind}", file=sys.stderr)

# Matrices that are added or looked up in, and multiply nothing: of positions, of a bias, of codes.
added = {"whisper": ["model.decoder.embed_positions.weight"], "marian": ["final_logits_bias"],
         "openclip/text_model": ["positional_embedding"],
         "siglip": ["embeddings.position_embedding.weight"],
         "segment_anything/image_encoder": [
             f"blocks.{i}.attn.rel_pos_{axis}" for i in range(2) for axis in "hw"],
         "segment_anything/tiny_vit": [f"layers.{i}.blocks.0.attn.attention_biases" for i in (1, 2, 3)],
         "mimi/encodec": ["quantizer.semantic_residual_vector_quantizer.layers.0.codebook.embed_sum"] + [
             f"quantizer.acoustic_residual_vector_quantizer.layers.{i}.codebook.embed_sum" for i in range(3)]}
# Refused with a reason: a table, or the sum of several convolutions, that is computed.
refused = ["marian", "mobileone", "repvgg"]
bad = []
for run in runs.values():
    def wrong(what):
        bad.append(f"{run['model']}: {what}")
    if "error" in run:
        wrong(run["error"])
        continue
    if not run["sqnr_db"] >= 20:
        wrong(f"{run['sqnr_db']:.1f} dB")
    if run["saved"] is not True and not (run["model"] in refused and run["saved"]):
        wrong(f"saved and read back: {run['saved'] or 'other bits'}")
    if not run["float_difference"] <= 1e-5 * run["largest"]:
        wrong(f"float differs by {run['float_difference']:.1e} of {run['largest']:.1e}")
    silent = set(run["silent"]) - set(added.get(run["model"], []))
    # Cut into layers that the report names by their paths.
    silent = {name for name in silent if not name.endswith(".in_proj_weight")}
    if silent:
        wrong("neither swapped nor named: " + ", ".join(sorted(silent)))
for line in bad:
    print(line, file=sys.stderr)
sys.exit(0 if good >= 40 and not errors and not bad else 1)
PY
