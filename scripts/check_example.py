#!/usr/bin/env python3
"""Checks the JSON object that an example prints: `... --json | check_example.py EXAMPLE PRESET`.

    check_example.py bert PRESET         of LIMITS, for assets/bert; or minilm, for all-MiniLM-L6-v2 with int8 or bfloat16
    check_example.py lstm PRESET         of LIMITS, for either network of assets/lstm
    check_example.py generate PRESET     of LIMITS, for assets/decoder with --perplexity
    check_example.py generate answer WORDS      for a text that has to contain all of them
    .. | check_example.py presets EXAMPLE       prints those presets of a list that have a limit for an example
    check_example.py pitch PRESET        for assets/pitch
    check_example.py tune STRATEGY
    check_example.py interrupted COMMAND..      runs the example tune, and sends it ctrl-c after a trial

The promises of bert's `--embeddings` and `--equalize` are checked if the object says that they were given.
"""

import json
import math
import signal
import subprocess
import sys

# For each preset the max loss of bert's held-out accuracy, in points, and the greatest rises of held-out perplexity of
# lstm and generate, as shares of the float model's. None: not run, since another preset has such products.
EXAMPLES = ("bert", "lstm", "generate")
LIMITS = {
    "int8": (0.3, 0.003, 0.002),
    "int8_reduce_range": (0.4, 0.003, None),
    "int8_groups": (0.1, 0.001, 0.002),
    "int4": (0.3, 0.015, 0.02),
    "pytorch": (0.5, 0.003, None),
    "per_channel": (0.5, 0.003, None),
    "onnxruntime": (0.5, 0.003, None),
    "float16": (0.05, 0.0001, 0.0001),
    "bfloat16": (0.1, 0.0005, None),
}

# Greatest share of float's bytes: codes or halves, scales and padding.
SHARE = {"float16": 0.52, "bfloat16": 0.52, "int8_groups": 0.29, "int4": 0.18}

# Least share of characters of which float has the same best guess.
AGREEMENT = {"int4": 0.94}

# Stages of generate --profile, and how often each is called in a step: once, or once a layer.
STAGES = {
    "embedding model.embed_tokens": 1,
    "rms-norm model.layers.*.input_layernorm": "layers",
    "linear model.layers.*.self_attn.q_proj": "layers",
    "rope": "layers",
    "cache": "layers",
    "attention": "layers",
    "linear model.layers.*.self_attn.o_proj": "layers",
    "rms-norm model.layers.*.post_attention_layernorm": "layers",
    "linear model.layers.*.mlp.gate_proj": "layers",
    "activation": "layers",
    "linear model.layers.*.mlp.down_proj": "layers",
    "rms-norm model.norm": 1,
    "sampling": 1,
    "between the layers": 1,
}


def row(preset):
    """The limits of a preset by example."""
    if preset not in LIMITS:
        sys.exit(f"the preset {preset} has no row in LIMITS")
    return dict(zip(EXAMPLES, LIMITS[preset], strict=True))


def limit_of(example, preset):
    limit = row(preset)[example]
    if limit is None:
        sys.exit(f"{example} has no limit for the preset {preset} in LIMITS")
    return limit


def presets(example):
    """Prints the presets of a list that have a limit for an example; each row of LIMITS has to be in the list."""
    names = sys.stdin.read().split()
    limits = {name: row(name)[example] for name in names}
    if unknown := sorted(LIMITS.keys() - limits.keys()):
        sys.exit(f"not among the presets {', '.join(names) or '(none)'}: {', '.join(unknown)}")
    print(*(name for name, limit in limits.items() if limit is not None))
    if left := [name for name, limit in limits.items() if limit is None]:
        print(f"{example} is not run with {', '.join(left)}", file=sys.stderr)


def named(result, *more):
    return {"names": all(result[key] for key in ("model", "preset", "isa", "threads", *more))}


def sizes(result):
    float_, quantized = result["float"], result["quantized"]
    share = SHARE.get(result["preset"], 0.27)
    return {
        f"weights below {share:.0%} of float": quantized["weight_bytes"] < share * float_["weight_bytes"],
        "total shrinks by what the weights do": float_["total_bytes"] - quantized["total_bytes"]
        == float_["weight_bytes"] - quantized["weight_bytes"],
    }


def perplexity(result, most, limit):
    float_, quantized = (result[side]["perplexity"] for side in ("float", "quantized"))
    rise = quantized / float_ - 1
    print(f"perplexity {rise:+.2%}")
    return {
        f"float perplexity of at most {most}": 1 < float_ <= most,
        f"perplexity at most {limit:.2%} above float": rise <= limit,
    }


def bert(result, preset):
    float_, quantized = result["float"], result["quantized"]
    checks = named(result) | sizes(result)
    checks["latencies"] = all(0 < side["p50_ms"] <= side["p95_ms"] for side in (float_, quantized))
    if result["embeddings"]:
        checks["whole model below 27 % of float"] = quantized["total_bytes"] < 0.27 * float_["total_bytes"]
    if "stages" in result:
        stages = {stage["stage"]: stage for stage in result["stages"]}
        checks["time of each stage"] = all(
            min(stage["calls"], stage["float_ms"], stage["quantized_ms"]) >= 0 for stage in stages.values()
        )
        checks["stages"] = "attention" in stages and any(
            name.startswith("linear ") and name.endswith(".*.intermediate.dense") and stage["calls"] > 1
            for name, stage in stages.items()
        )
    if preset == "minilm":
        bound = {"int8": 27 if result["equalized"] else 23, "bfloat16": 44}[result["preset"]]
        checks[f"SQNR of at least {bound} dB"] = quantized["sqnr_db"] >= bound
        checks["mean cosine of at least 0.998"] = quantized["cosine_mean"] >= 0.998
    else:
        loss, limit = 100 * (float_["accuracy"] - quantized["accuracy"]), limit_of("bert", preset)
        checks["float accuracy of at least 75 %"] = float_["accuracy"] >= 0.75
        checks[f"loss of at most {limit} points"] = loss <= limit
        checks["agreement"] = quantized["agreement"] >= 0.9
    return checks


def lstm(result, preset):
    float_, quantized = sides = result["float"], result["quantized"]
    checks = named(result, "kind") | sizes(result) | perplexity(result, 2.6, limit_of("lstm", preset))
    return checks | {
        "speeds": all(0 < side[key] for side in sides for key in ("tokens_per_s", "scored_tokens_per_s")),
        "the preset asked for": result["preset"] == preset,
        "a text that is long enough": result["tokens"] >= 100_000,
        "bits are the logarithm of perplexity": all(
            math.isclose(2 ** side["bits_per_token"], side["perplexity"], rel_tol=1e-6) for side in sides
        ),
        "texts of one length": len(float_["text"]) == len(quantized["text"]) > 0,
        "agreement": quantized["agreement"] >= AGREEMENT.get(preset, 0.97),
    }


def of_profile(profile):
    """Checks that the stages are all of a step."""
    checks = {}
    for step in ("prompt", "token"):
        times = profile[step]
        stages = {stage["stage"]: stage for stage in times["stages"]}
        own = [stage["ms"] for stage in times["stages"]]
        layers = stages["attention"]["calls"]
        expected = {name: layers if calls == "layers" else calls for name, calls in STAGES.items()}
        # Queries and keys.
        expected["rope"] = 2 * layers
        # A head that is tied to the embeddings has no name.
        heads = [name for name in stages if name not in STAGES]
        checks |= {
            f"{step}: the stages": {name: stages[name]["calls"] for name in STAGES} == expected,
            f"{step}: and one head": heads in (["linear"], ["linear lm_head"]),
            f"{step}: own times": min(own) >= 0 and abs(sum(own) / times["recorded_ms"] - 1) < 1e-6,
            f"{step}: most of it in stages": stages["between the layers"]["ms"] < 0.2 * sum(own),
        }
    return checks


def generate(result, preset, *words):
    checks = named(result) | of_profile(result["profile"]) if "profile" in result else named(result)
    checks["times"] = result["first_token_ms"] > 0 and result["token_ms"] > 0
    checks["a text"] = result["tokens"] > 0 and result["text"].strip() != ""
    if preset == "answer":
        return checks | {f"the word {word}": word.lower() in result["text"].lower() for word in words}
    float_, quantized = result["float"], result["quantized"]
    checks["a text that is long enough"] = quantized["tokens"] == float_["tokens"] > 40_000
    return checks | perplexity(result, 11.9, limit_of("generate", preset))


def files(result):
    """Checks of what a search leaves."""
    with open(result["history"]) as history, open(result["page"]) as page:
        return {
            "a line for each trial": sum(1 for _ in history) == result["trials"] + 1,
            "a page with the search": "best so far" in page.read(),
        }


def tune(result, strategy):
    layers = result["layers"]
    checks = files(result) | {
        "criterion met": result["met"] and result["best"] >= result["target"],
        "stopped because of it": result["stopped"]["reason"] == "criterion_met",
        "a mix": layers.get("int8", 0) > 0 and layers.get("float16", 0) > 0,
    }
    if strategy == "sensitivity":
        checks["few evaluations"] = result["evals"] <= math.log2(sum(layers.values())) + 3
    return checks


def pitch(result, preset):
    float_, quantized = sides = result["float"], result["quantized"]
    return named(result) | {
        "the preset asked for": result["preset"] == preset,
        "times": min(result["candle_ms"], *(side["ms"] for side in sides)) > 0,
        "the melody": all(side["accuracy"] >= 0.99 for side in sides) and result["frames"] == 570,
        "the same notes": result["same_note"] >= 0.99,
        "weights below 30 % of float": quantized["weight_bytes"] < 0.3 * float_["weight_bytes"],
    }


def interrupted(result, *_):
    return files(result) | {
        "stopped because of it": result["stopped"]["reason"] == "cancelled",
        "soon": 1 <= result["trials"] <= 3,
    }


def interrupt(command):
    """The object of a search that gets ctrl-c when it has made a trial."""
    run = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    next(line for line in run.stderr if "trial 1/" in line)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=600)
    if run.returncode:
        sys.exit(f"failed: ended with {run.returncode}")
    return json.loads(out)


def main():
    kind, *arguments = sys.argv[1:]
    if kind == "presets":
        return presets(*arguments)
    check = {own.__name__: own for own in (bert, lstm, generate, pitch, tune, interrupted)}[kind]
    result = interrupt(arguments) if check is interrupted else json.load(sys.stdin)
    print(json.dumps(result))
    checks = check(result, *arguments)
    failed = [name for name, holds in checks.items() if not holds]
    if failed:
        sys.exit(f"{kind} {arguments[0]}: fails: {'; '.join(failed)}")
    print(f"{kind} {arguments[0]}: {len(checks)} checks hold")


if __name__ == "__main__":
    main()
