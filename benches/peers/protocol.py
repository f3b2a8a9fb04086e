"""A process of contenders in Python, `protocol.py NAME`: speaks as protocol.rs does.

rivals/NAME.py has a function for each group that the rival can do, from a case (its facts) and
its tensors (NumPy arrays) to calls by name, each of which returns an array. A call of another
shape than what is timed has `microseconds`. What the module raises while it is imported is why the
rival is skipped.
"""

import importlib
import json
import os
import sys
import warnings

from sampling import timed


def main():
    # Libraries print their progress.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    calls = {}
    try:
        module = importlib.import_module(f"rivals.{sys.argv[1]}")
    except Exception as error:
        module, failed = None, one_line(error)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            match request["op"]:
                case "start":
                    answer = {} if module else {"error": failed}
                case "load":
                    calls = load(module, request)
                    answer = {"contenders": list(calls)}
                case "time":
                    call = calls[request["contender"]]
                    told = getattr(call, "microseconds", None)
                    answer = {"us": told() if told else timed(call, request["calls"])}
                case op:
                    answer = {"error": f"unknown op {op}"}
        except Exception as error:
            answer = {"error": one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)


def load(module, request):
    from safetensors.numpy import load_file, save_file

    case = request["case"]
    group = getattr(module, case["group"], None)
    calls = group(case, load_file(request["file"])) if group else {}
    save_file({name: call().copy() for name, call in calls.items()}, request["out"])
    return calls


def one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    main()
