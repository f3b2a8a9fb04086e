#!/usr/bin/env python3
"""Checks the JSON object that the example generate prints: `... --json | check_generate.py PRESET`.

PRESET is one of RISE, for assets/decoder with --perplexity; or `answer WORDS`, for a text that has to
contain all of them.
"""

import json
import sys

# Greatest rise of held-out perplexity, as a share of the float model's.
RISE = {"int8": 0.002, "int8_groups": 0.002, "int4": 0.02, "float16": 0.0001}

# Stages of --profile, and how often each is called in a step: once, or once a layer.
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


def main():
    preset, *words = sys.argv[1:]
    result = json.load(sys.stdin)
    checks = {
        "names": all(result[key] for key in ("model", "preset", "isa", "threads")),
        "times": result["first_token_ms"] > 0 and result["token_ms"] > 0,
        "a text": result["tokens"] > 0 and result["text"].strip() != "",
    }
    if "profile" in result:
        checks |= of_profile(result["profile"])
    if preset == "answer":
        checks |= {f"the word {word}": word.lower() in result["text"].lower() for word in words}
    else:
        float_, quantized = result["float"], result["quantized"]
        rise = quantized["perplexity"] / float_["perplexity"] - 1
        checks |= {
            "a text that is long enough": quantized["tokens"] == float_["tokens"] > 40_000,
            "float perplexity of at most 11.9": 1 < float_["perplexity"] <= 11.9,
            f"perplexity at most {RISE[preset]:.2%} above float": rise <= RISE[preset],
        }
    print(json.dumps(result))
    failed = [name for name, holds in checks.items() if not holds]
    if failed:
        sys.exit(f"{preset}: fails: {'; '.join(failed)}")
    print(f"{preset}: {len(checks)} checks hold")


if __name__ == "__main__":
    main()
