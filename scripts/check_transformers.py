#!/usr/bin/env python3
"""Whether transformers reads what this crate writes, and this crate what compressed-tensors writes.

    scripts/check_transformers.py [--debug] [--only NAME] [--json]
    scripts/check_transformers.py --fixture      writes assets/reference/transformers.json, for `cargo test`

Installs the packages below into target/transformers, the oldest transformers that is promised beside the newest, and
builds the command `dynquant` and the example bert (--debug: without optimization). Then:

- assets/bert is quantized by both libraries, and each folder answered by both readers.
- Small models of each architecture, random by a seed, are saved, quantized by the command in each way of WAYS, and read
  by `from_pretrained`, as the class that they were saved as and as the other classes that are listed.

SQNR is that of the answer against the float model's. Our own answer is that of a model whose weights are those of
`dynquant dequantize` of the same folder and whose activations are rounded as this crate does it, which is in torch, since
few of these architectures have a model in Rust. What must hold of each folder: no missing keys, no unexpected ones but
`weight_zero_point_unsigned`, no NaN, an answer no more than 1 dB below ours (or beyond 60 dB). Ends with 1 where it
does not, but for the folders in KNOWN. Prints the tables in docs/checkpoints.md, or one JSON object.
"""

import argparse
import inspect
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

NEWEST = {"torch": "2.10.0", "transformers": "5.24.0", "compressed-tensors": "0.20.0", "accelerate": "1.15.0", "requests": "2.34.2"}
# Beside the packages of the newest, whose torch is used.
OLDEST = {"transformers": "4.57.6", "huggingface-hub": "0.36.2", "tokenizers": "0.22.2"}
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "target/transformers"
MODEL = ROOT / "assets/bert"
WAYS = {
    "int8": [],
    "int8, embeddings": ["--embeddings"],
    "pytorch": ["--preset", "pytorch"],
    "float16": ["--preset", "float16"],
}
# dB that an answer may be below ours, and that are as good as none.
NEAR, EXACT = 1, 60
TEXTS = [
    "fast key-value store with an HTTP interface",
    "board game with hexagonal fields and dice",
    "library of numerical routines for sparse matrices",
    "plugin that highlights syntax in the editor",
    "fonts for mathematical typesetting",
    "mail transport agent for small servers",
    "bindings of the graphics toolkit for Python",
    "tools to inspect packages and their dependencies",
]

SIZES = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
TEXT = dict(vocab_size=256, max_position_embeddings=64, **SIZES)
DECODER = dict(num_key_value_heads=2, head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, **TEXT)
TIED, UNTIED = dict(tie_word_embeddings=True), dict(tie_word_embeddings=False)
IMAGE = dict(image_size=32, patch_size=8, num_labels=3, **SIZES)
ENCODER_DECODER = dict(
    vocab_size=256, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1, forced_eos_token_id=None,
)  # fmt: skip
TWO_TOWERS = dict(
    text_config=dict(projection_dim=64, eos_token_id=2, bos_token_id=1, pad_token_id=0, **TEXT),
    vision_config=dict(projection_dim=64, image_size=32, patch_size=8, **SIZES),
)
# What transformers does not read, listed in docs/checkpoints.md.
KNOWN = {
    NEWEST["transformers"]: ["dinov2", "mixtral", "qwen3-moe"],
    OLDEST["transformers"]: ["clip", "marian", "modernbert-masked", "pegasus", "siglip", "t5"],
}
# Saved without its head, and read with one that is tied to the table.
HEADLESS = "bloom", "AutoModelForCausalLM", "int8, embeddings"
# Name, model_type, class that it is saved as, other classes that it is read as, configuration.
CAUSAL, MASKED, BASE, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModel", "AutoModelForSeq2SeqLM"
CLASSIFIER, IMAGES = "AutoModelForSequenceClassification", "AutoModelForImageClassification"
MODELS = [
    ("bert", "bert", BASE, [], TEXT),
    ("bert-classifier", "bert", CLASSIFIER, [BASE], TEXT),
    ("bert-masked", "bert", MASKED, [BASE], TEXT),
    ("roberta-masked", "roberta", MASKED, [BASE], TEXT),
    ("xlm-roberta-classifier", "xlm-roberta", CLASSIFIER, [BASE], TEXT),
    ("distilbert-masked", "distilbert", MASKED, [BASE], dict(vocab_size=256, dim=64, n_layers=2, n_heads=4, hidden_dim=128)),
    ("mpnet", "mpnet", BASE, [], TEXT),
    ("albert-masked", "albert", MASKED, [BASE], dict(embedding_size=32, **TEXT)),
    ("electra-masked", "electra", MASKED, [BASE], dict(embedding_size=32, **TEXT)),
    ("deberta-v2-masked", "deberta-v2", MASKED, [BASE], dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=16, share_att_key=True, **TEXT)),
    ("modernbert-masked", "modernbert", MASKED, [BASE], dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, reference_compile=False, **TEXT)),
    ("esm-masked", "esm", MASKED, [BASE], dict(pad_token_id=0, mask_token_id=3, position_embedding_type="rotary", **TEXT)),
    ("gpt2", "gpt2", CAUSAL, [BASE], dict(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64)),
    ("llama-tied", "llama", CAUSAL, [BASE], DECODER | TIED),
    ("llama-untied", "llama", CAUSAL, [BASE], DECODER | UNTIED),
    ("mistral", "mistral", CAUSAL, [BASE], DECODER | UNTIED),
    ("qwen2-tied", "qwen2", CAUSAL, [BASE], DECODER | TIED),
    ("qwen3-tied", "qwen3", CAUSAL, [BASE], DECODER | TIED),
    ("gemma-tied", "gemma", CAUSAL, [BASE], DECODER | TIED),
    ("gemma3-tied", "gemma3_text", CAUSAL, [], dict(layer_types=["sliding_attention", "full_attention"], sliding_window=8, **DECODER) | TIED),
    ("phi3", "phi3", CAUSAL, [BASE], DECODER | UNTIED),
    ("gpt-neox", "gpt_neox", CAUSAL, [BASE], dict(TEXT, pad_token_id=0)),
    ("opt", "opt", CAUSAL, [BASE], dict(vocab_size=256, max_position_embeddings=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128, word_embed_proj_dim=32)),
    ("bloom", "bloom", BASE, [CAUSAL], dict(vocab_size=256, hidden_size=64, n_layer=2, n_head=4)),
    ("falcon", "falcon", CAUSAL, [BASE], dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)),
    ("mamba", "mamba", CAUSAL, [BASE], dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, state_size=8)),
    ("mixtral", "mixtral", CAUSAL, [], dict(num_local_experts=4, **DECODER) | UNTIED),
    ("qwen3-moe", "qwen3_moe", CAUSAL, [], dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, **DECODER) | UNTIED),
    ("gpt-oss", "gpt_oss", CAUSAL, [], dict(num_local_experts=4, layer_types=["sliding_attention", "full_attention"], **DECODER) | UNTIED),
    ("t5", "t5", SEQ2SEQ, [], dict(vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)),
    ("bart", "bart", SEQ2SEQ, [BASE], ENCODER_DECODER),
    ("marian", "marian", SEQ2SEQ, [BASE], ENCODER_DECODER),
    ("whisper", "whisper", "AutoModelForSpeechSeq2Seq", [], dict(ENCODER_DECODER, max_source_positions=32, max_target_positions=64, num_mel_bins=16, suppress_tokens=None, begin_suppress_tokens=None)),
    ("wav2vec2", "wav2vec2", "AutoModelForCTC", [BASE], dict(vocab_size=32, conv_dim=(64, 64), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, **SIZES)),
    ("vit", "vit", IMAGES, [], IMAGE),
    ("beit", "beit", IMAGES, [BASE], IMAGE),
    ("yolos", "yolos", BASE, [], dict(image_size=[32, 32], patch_size=8, num_detection_tokens=4, **SIZES)),
    ("gemma2-tied", "gemma2", CAUSAL, [BASE], dict(query_pre_attn_scalar=16, **DECODER) | TIED),
    ("olmo2", "olmo2", CAUSAL, [BASE], DECODER | UNTIED),
    ("gptj", "gptj", CAUSAL, [BASE], dict(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, rotary_dim=8)),
    ("mbart", "mbart", SEQ2SEQ, [BASE], ENCODER_DECODER),
    ("pegasus", "pegasus", SEQ2SEQ, [BASE], ENCODER_DECODER),
    ("dinov2", "dinov2", IMAGES, [BASE], dict(IMAGE, mlp_ratio=2)),
    ("swin", "swin", IMAGES, [BASE], dict(image_size=32, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=3)),
    ("clip", "clip", BASE, [], dict(projection_dim=64, **TWO_TOWERS)),
    ("siglip", "siglip", BASE, [], TWO_TOWERS),
]  # fmt: skip


def install():
    """Runs this script again where the packages are; ends it."""
    python, done = VENV / "bin/python", VENV / "installed.json"
    wanted = json.dumps([NEWEST, OLDEST])
    if not done.exists() or done.read_text() != wanted:
        packages = lambda versions: [f"{name}=={version}" for name, version in versions.items()]
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([*pip, *packages(NEWEST)], check=True)
        subprocess.run([*pip, "--no-deps", "--target", VENV / "oldest", *packages(OLDEST)], check=True)
        done.write_text(wanted)
    sys.exit(subprocess.run([python, *sys.argv]).returncode)


def build(debug):
    profile = [] if debug else ["--release"]
    cargo = ["cargo", "build", "--quiet", *profile]
    subprocess.run([*cargo, "--package", "dynquant"], cwd=ROOT, check=True)
    subprocess.run([*cargo, "--example", "bert"], cwd=ROOT, check=True)
    return ROOT / "target" / ("debug" if debug else "release")


def sqnr(expected, got):
    """In dB; None of a NaN, EXACT at most."""
    noise, signal = (expected - got).double().square().sum().item(), expected.double().square().sum().item()
    if not math.isfinite(noise):
        return None
    return round(min(10 * math.log10(signal / noise), EXACT), 1) if noise else EXACT


# assets/bert, by both libraries and both readers.


def logits_of_bert(folder):
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForSequenceClassification

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.enable_padding()
    tokens = tokenizer.encode_batch(TEXTS)
    ids, mask = (torch.tensor([getattr(t, name) for t in tokens]) for name in ("ids", "attention_mask"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits


def answers_of_example(folder, built, parent):
    import torch

    texts = parent / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text in TEXTS))
    command = [built / "examples/bert", "--model-dir", folder, "--texts", texts, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return torch.tensor(json.loads(done.stdout)["answers"])


def write_theirs(out):
    """assets/bert as compressed-tensors quantizes it: the preset W8A8, the classifier float."""
    import torch
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationStatus,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(MODEL, dtype=torch.float32).eval()
    scheme = preset_name_to_scheme("W8A8", ["Linear"])
    scheme.format = "int-quantized"
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["classifier"], format="int-quantized")
    apply_quantization_config(model, config)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        low, high = module.weight.amin(1, keepdim=True), module.weight.amax(1, keepdim=True)
        scale, _ = calculate_qparams(low, high, module.quantization_scheme.weights)
        module.weight_scale.data.copy_(scale)
        module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    model.save_pretrained(out)
    compressor.update_config(out)
    path = out / "config.json"
    written = json.loads(path.read_text())
    written.setdefault("quantization_config", compressor.quantization_config.model_dump(mode="json"))
    path.write_text(json.dumps(written, indent=1))
    (out / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())


def check_bert(parent, built):
    """Rows of the table of assets/bert."""
    written = {}
    for number, options in enumerate([[], ["--embeddings"]]):
        folder = written[" ".join(["dynquant quantize", *options])] = parent / str(number)
        quantize(built, MODEL, folder, options)
    written["compressed-tensors, W8A8"] = parent / "theirs"
    write_theirs(parent / "theirs")
    expected = logits_of_bert(MODEL)
    rows = []
    for writer, folder in written.items():
        theirs, ours = logits_of_bert(folder), answers_of_example(folder, built, parent)
        figures = sqnr(expected, theirs), sqnr(expected, ours), sqnr(theirs, ours)
        rows.append(dict(zip(("written_by", "theirs", "ours", "between"), (writer, *figures))))
    return rows


# Small models of many architectures.


def quantize(built, source, out, options):
    """None, or what the command said where it refuses."""
    command = [built / "dynquant", "quantize", source, "-o", out, *options]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return done.stderr.strip() if done.returncode else None


def make(folder, kind, saved_as, sizes):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = getattr(transformers, saved_as).from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Weights as large as trained ones, and biases that are not all 0.
            if parameter.dim() == 1 and name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif parameter.dim() == 2:
                parameter.normal_(std=0.6 / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder)


def answer(model):
    """What the model says of fixed inputs, as one tensor."""
    import torch

    torch.manual_seed(1)
    config = model.config
    ids = torch.randint(4, 32, (2, 16))
    named = inspect.signature(type(model).forward).parameters
    inputs = {}
    if "input_features" in named:
        inputs["input_features"] = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
    elif "input_values" in named:
        inputs["input_values"] = torch.randn(2, 2000)
    if "pixel_values" in named:
        inputs["pixel_values"] = torch.randn(2, 3, 32, 32)
    if "input_ids" in named and "input_features" not in inputs:
        inputs["input_ids"] = ids
    if "decoder_input_ids" in named:
        inputs["decoder_input_ids"] = ids[:, :8]
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
    names = ["logits", "text_embeds", "image_embeds", "last_hidden_state"]
    found = [out[name].flatten() for name in names if out.get(name) is not None]
    # Of a few logits the SQNR is chance.
    if sum(len(part) for part in found) < 200:
        found.append(out["hidden_states"][-1].flatten())
    return torch.cat(found).float()


def ours(floats, dequantized, model_class):
    """The answer with dequantized weights and activations rounded as this crate does it."""
    import torch

    model = model_class.from_pretrained(dequantized, dtype=torch.float32).eval()
    per_row = "tensor" not in [
        (group["input_activations"] or {}).get("strategy")
        for group in quantization(dequantized).get("config_groups", {}).values()
    ]

    def rounded(_, args):
        xs = args[0]
        low, high = (xs.amin(-1, True), xs.amax(-1, True)) if per_row else (xs.min(), xs.max())
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = ((high - low) / 255).clamp(min=1e-30)
        zero = (-low / scale).round()
        codes = ((xs / scale).round() + zero).clamp(0, 255)
        return ((codes - zero) * scale, *args[1:])

    tables = {module.weight.data_ptr() for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    originals = dict(floats.named_modules())
    for name, module in model.named_modules():
        is_linear = isinstance(module, torch.nn.Linear) and module.weight.data_ptr() not in tables
        if is_linear and is_int8(dequantized) and not torch.equal(module.weight, originals[name].weight):
            module.register_forward_pre_hook(rounded)
    return answer(model)


def quantization(dequantized):
    """The entry of the folder that a dequantized one was made of."""
    config = json.loads((dequantized.parent / "quantized/config.json").read_text())
    return config.get("quantization_config", {})


def is_int8(dequantized):
    return bool(quantization(dequantized))


def read(folder, model_class, baseline, expected, own):
    """The figures of one folder, read as one class; `baseline` is what loading the float model says."""
    import torch

    result = {"ours": sqnr(expected, own)}
    try:
        model, info = model_class.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        got = answer(model.eval())
    except Exception as error:
        return result | {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    keys = lambda what: sorted(map(str, set(info.get(what) or []) - set(baseline.get(what) or [])))
    # Those of a head that the class does not have are not for it, weights and scales.
    unused = tuple(key.removesuffix("weight") + "weight_" for key in baseline.get("unexpected_keys") or [])
    unexpected = [key for key in keys("unexpected_keys") if not key.endswith("weight_zero_point_unsigned")]
    unexpected = [key for key in unexpected if not key.startswith(unused)]
    result |= {"theirs": sqnr(expected, got), "missing": keys("missing_keys"), "unexpected": unexpected}
    return result | {"between": sqnr(own, got)}


def is_good(result):
    if "error" in result or result["missing"] or result["unexpected"] or result["theirs"] is None:
        return False
    return result["theirs"] >= min(result["ours"] - NEAR, EXACT)


def read_all(work):
    """Reads all folders with the transformers that this interpreter has, and prints the figures as JSON."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    results = []
    for model in json.loads((work / "models.json").read_text()):
        for class_name in [model["saved_as"], *model["read_as"]]:
            model_class = getattr(transformers, class_name)
            start = {"model": model["name"], "class": class_name}
            try:
                path = work / model["name"] / "float"
                floats, baseline = model_class.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
                expected = answer(floats.eval())
            except Exception as error:
                results.append(start | {"way": "float", "float": f"{type(error).__name__}: {error}".splitlines()[0][:200]})
                continue
            for way in model["ways"]:
                folder = work / model["name"] / way
                own = ours(floats, folder / "dequantized", model_class)
                result = read(folder / "quantized", model_class, baseline, expected, own)
                results.append(start | {"way": way} | result | {"good": is_good(result)})
    print(json.dumps(results))


def show(text):
    """One line that is replaced, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def write_all(work, built, only):
    """Makes the models and quantizes them. What is refused is returned."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    models, refused = [], []
    for name, kind, saved_as, read_as, sizes in MODELS:
        if only and only not in name:
            continue
        show(f"writing {name}")
        make(work / name / "float", kind, saved_as, sizes)
        ways = []
        for way, options in WAYS.items():
            folder = work / name / way
            folder.mkdir()
            said = quantize(built, work / name / "float", folder / "quantized", options)
            if said:
                refused.append({"model": name, "way": way, "said": said})
                continue
            command = [built / "dynquant", "dequantize", folder / "quantized", "-o", folder / "dequantized"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            ways.append(way)
        models.append({"name": name, "saved_as": saved_as, "read_as": read_as, "ways": ways})
    (work / "models.json").write_text(json.dumps(models))
    return refused


def fixture(work):
    """What `cargo test` knows of these models: tensors, and what the classes take for a Linear and a table."""
    import torch
    import transformers
    from safetensors import safe_open

    def kept(config):
        keys = ["architectures", "model_type", "tie_word_embeddings", "vocab_size"]
        parts = {key: kept(value) for key, value in config.items() if isinstance(value, dict)}
        return {key: config[key] for key in keys if key in config} | {key: part for key, part in parts.items() if part}

    rows = []
    for name, kind, saved_as, read_as, sizes in MODELS:
        show(f"writing {name}")
        folder = work / name
        make(folder, kind, saved_as, sizes)
        classes = {}
        for class_name in [saved_as, *read_as]:
            model = getattr(transformers, class_name).from_pretrained(folder)
            of = lambda own: [path for path, module in model.named_modules() if isinstance(module, own)]
            classes[class_name] = {"linears": of(torch.nn.Linear), "embeddings": of(torch.nn.Embedding)}
        with safe_open(folder / "model.safetensors", "pt") as file:
            tensors = {key: file.get_slice(key).get_shape() for key in file.keys()}
        config = kept(json.loads((folder / "config.json").read_text()))
        rows.append({"name": name, "config": config, "tensors": tensors, "classes": classes})
    path = ROOT / "assets/reference/transformers.json"
    path.write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


def table(results, refused):
    """Markdown: each model with the answers of both versions and ours."""
    versions = [NEWEST["transformers"], OLDEST["transformers"]]
    lines = ["| model | as | " + " | ".join(f"{way}: {', '.join(versions)}, ours" for way in WAYS) + " |"]
    lines.append("|---" * (2 + len(WAYS)) + "|")
    said = {(row["model"], row["way"]): "refused" for row in refused}
    by_key = {(row["version"], row["model"], row["class"], row["way"]): row for row in results}

    def figure(row):
        if row is None or "float" in row:
            return "-"
        if "error" in row:
            return "error"
        if row["missing"] or row["unexpected"]:
            return "keys"
        text = "NaN" if row["theirs"] is None else f"{row['theirs']:.1f}"
        return text if row["good"] else f"**{text}**"

    for model, class_name in dict.fromkeys((row["model"], row["class"]) for row in results):
        cells = []
        for way in WAYS:
            rows = [by_key.get((version, model, class_name, way)) for version in versions]
            own = next((f"{row['ours']:.1f}" for row in rows if row and "ours" in row), "-")
            cells.append(said.get((model, way)) or f"{', '.join(map(figure, rows))}, {own}")
        lines.append(f"| {model} | {class_name.removeprefix('AutoModel').removeprefix('For') or 'base'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debug", action="store_true", help="builds without optimization")
    parser.add_argument("--only", metavar="NAME", help="the models whose names contain this")
    parser.add_argument("--json", action="store_true", help="prints one JSON object")
    parser.add_argument("--fixture", action="store_true", help="writes what `cargo test` knows of the models")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if Path(sys.prefix) != VENV or not (VENV / "installed.json").exists():
        install()
    if args.read:
        return read_all(args.read)
    warnings.simplefilter("ignore")
    if args.fixture:
        with tempfile.TemporaryDirectory() as name:
            return fixture(Path(name))
    built = build(args.debug)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        bert = [] if args.only else check_bert(work, built)
        refused = write_all(work, built, args.only)
        results = []
        for version, paths in [(NEWEST, []), (OLDEST, [VENV / "oldest"])]:
            show(f"reading with transformers {version['transformers']}")
            env = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)))
            command = [sys.executable, __file__, "--read", work]
            # What the libraries say there is known by its effect.
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            results += [{"version": version["transformers"]} | row for row in json.loads(done.stdout)]
    show("")
    known = lambda row: row["model"] in KNOWN[row["version"]] or (row["model"], row["class"], row["way"]) == HEADLESS
    bad = [row for row in results if not row.get("good", True) and not known(row)]
    bad += [row for row in bert if min(row["theirs"], row["ours"], row["between"]) < 30]
    if args.json:
        print(json.dumps({"bert": bert, "results": results, "refused": refused}))
    else:
        if bert:
            print("| written by | transformers against float | this crate against float | one against the other |")
            print("|---|---|---|---|")
            for row in bert:
                print(f"| `{row['written_by']}` | " + " | ".join(f"{row[key]:.1f} dB" for key in ("theirs", "ours", "between")) + " |")
            print()
        print(table(results, refused))
        for row in [*bad, *refused]:
            print(row, file=sys.stderr)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
