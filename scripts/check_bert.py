"""Checks the JSON object that the bert example prints: `... --json | check_bert.py PRESET`.

PRESET is one of LOSS for assets/bert, or minilm for all-MiniLM-L6-v2 with int8 or bfloat16. The
promises of `--embeddings` and `--equalize` are checked if the object says that they were given.
"""

import json
import sys

# Max loss of held-out accuracy, in points.
LOSS = {
    "int8": 0.3,
    "int8_reduce_range": 0.4,
    "int8_groups": 0.1,
    "int4": 0.3,
    "pytorch": 0.5,
    "per_channel": 0.5,
    "onnxruntime": 0.5,
    "float16": 0.05,
    "bfloat16": 0.1,
}

# Greatest share of float's bytes: codes or halves, scales and padding.
SHARE = {"float16": 0.52, "bfloat16": 0.52, "int8_groups": 0.29, "int4": 0.18}


def main():
    preset = sys.argv[1]
    result = json.load(sys.stdin)
    float_, quantized = result["float"], result["quantized"]
    share = SHARE.get(result["preset"], 0.27)
    checks = {
        f"weights below {share:.0%} of float": quantized["weight_bytes"] < share * float_["weight_bytes"],
        "total shrinks by what the weights do": float_["total_bytes"] - quantized["total_bytes"]
        == float_["weight_bytes"] - quantized["weight_bytes"],
        "latencies": all(0 < side["p50_ms"] <= side["p95_ms"] for side in (float_, quantized)),
        "names": all(result[key] for key in ("model", "preset", "isa", "threads")),
    }
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
        loss = 100 * (float_["accuracy"] - quantized["accuracy"])
        checks["float accuracy of at least 75 %"] = float_["accuracy"] >= 0.75
        checks[f"loss of at most {LOSS[preset]} points"] = loss <= LOSS[preset]
        checks["agreement"] = quantized["agreement"] >= 0.9
    print(json.dumps(result))
    failed = [name for name, holds in checks.items() if not holds]
    if failed:
        sys.exit(f"{preset}: fails: {'; '.join(failed)}")
    print(f"{preset}: {len(checks)} checks hold")


if __name__ == "__main__":
    main()
