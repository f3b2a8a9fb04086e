"""Checks the JSON object that the tune example prints: `... --json | check_tune.py STRATEGY`, or of a search that
is interrupted: `check_tune.py --interrupt COMMAND..`, which runs the example and sends it ctrl-c after a trial.
"""

import json
import math
import signal
import subprocess
import sys


def interrupted(command):
    """The object of a search that gets ctrl-c when it has made a trial."""
    run = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    next(line for line in run.stderr if "trial 1/" in line)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=600)
    if run.returncode:
        sys.exit(f"failed: ended with {run.returncode}")
    return json.loads(out)


def main():
    files = {
        "a line for each trial": lambda: sum(1 for _ in open(result["history"])) == result["trials"] + 1,
        "a page with the search": lambda: "best so far" in open(result["page"]).read(),
    }
    if sys.argv[1] == "--interrupt":
        result = interrupted(sys.argv[2:])
        checks = {
            "stopped because of it": result["stopped"]["reason"] == "cancelled",
            "soon": 1 <= result["trials"] <= 3,
        }
    else:
        result = json.load(sys.stdin)
        layers = result["layers"]
        checks = {
            "criterion met": result["met"] and result["best"] >= result["target"],
            "stopped because of it": result["stopped"]["reason"] == "criterion_met",
            "a mix": layers.get("int8", 0) > 0 and layers.get("float16", 0) > 0,
        }
        if sys.argv[1] == "sensitivity":
            checks["few evaluations"] = result["evals"] <= math.log2(sum(layers.values())) + 3
    checks |= {name: holds() for name, holds in files.items()}
    print(json.dumps(result))
    failed = [name for name, holds in checks.items() if not holds]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


main()
