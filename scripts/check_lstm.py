"""Checks the JSON object that the lstm example prints: `... --json | check_lstm.py PRESET`.

PRESET is one of RISE, for either network of assets/lstm.
"""

import json
import math
import sys

# Greatest rise of held-out perplexity, as a share of the float model's.
RISE = {
    "int8": 0.003,
    "int8_reduce_range": 0.003,
    "int8_groups": 0.001,
    "int4": 0.015,
    "pytorch": 0.003,
    "per_channel": 0.003,
    "onnxruntime": 0.003,
    "float16": 0.0001,
    "bfloat16": 0.0005,
}

# Greatest share of float's bytes: codes or halves, scales and padding.
SHARE = {"float16": 0.52, "bfloat16": 0.52, "int8_groups": 0.29, "int4": 0.18}

# Least share of characters of which float has the same best guess.
AGREEMENT = {"int4": 0.94}


def main():
    preset = sys.argv[1]
    result = json.load(sys.stdin)
    float_, quantized = result["float"], result["quantized"]
    sides = (float_, quantized)
    rise = quantized["perplexity"] / float_["perplexity"] - 1
    share = SHARE.get(preset, 0.27)
    checks = {
        f"weights below {share:.0%} of float": quantized["weight_bytes"] < share * float_["weight_bytes"],
        "total shrinks by what the weights do": float_["total_bytes"] - quantized["total_bytes"]
        == float_["weight_bytes"] - quantized["weight_bytes"],
        "speeds": all(0 < side[key] for side in sides for key in ("tokens_per_s", "scored_tokens_per_s")),
        "names": all(result[key] for key in ("model", "kind", "preset", "isa", "threads")),
        "the preset asked for": result["preset"] == preset,
        "a text that is long enough": result["tokens"] >= 100_000,
        "bits are the logarithm of perplexity": all(
            math.isclose(2 ** side["bits_per_token"], side["perplexity"], rel_tol=1e-6) for side in sides
        ),
        "texts of one length": len(float_["text"]) == len(quantized["text"]) > 0,
        "float perplexity of at most 2.6": 1 < float_["perplexity"] <= 2.6,
        f"perplexity at most {RISE[preset]:.2%} above float": rise <= RISE[preset],
        "agreement": quantized["agreement"] >= AGREEMENT.get(preset, 0.97),
    }
    print(json.dumps(result))
    failed = [name for name, holds in checks.items() if not holds]
    if failed:
        sys.exit(f"{preset}: fails: {'; '.join(failed)}")
    print(f"{preset}: {len(checks)} checks hold, perplexity {rise:+.2%}")


if __name__ == "__main__":
    main()
