#!/usr/bin/env python3
"""Checks the JSON object that the example generate prints: `... --json | check_generate.py PRESET`.

PRESET is one of RISE, for assets/decoder with --perplexity; or `answer WORDS`, for a text that has to
contain all of them.
"""

import json
import sys

# Greatest rise of held-out perplexity, as a share of the float model's.
RISE = {"int8": 0.002, "int8_groups": 0.002, "int4": 0.02, "float16": 0.0001}


def main():
    preset, *words = sys.argv[1:]
    result = json.load(sys.stdin)
    checks = {
        "names": all(result[key] for key in ("model", "preset", "isa", "threads")),
        "times": result["first_token_ms"] > 0 and result["token_ms"] > 0,
        "a text": result["tokens"] > 0 and result["text"].strip() != "",
    }
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
