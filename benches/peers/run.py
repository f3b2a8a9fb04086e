"""Times this crate against its rivals on the same weights and inputs, in one run.

Run it through run.sh. Our side is a process of its own (ours.rs) that answers on its standard
output; torch runs here. Every round times each contender once, A B A B, so that a machine's
drift hits all alike; the table gives medians. Before a case is timed, its outputs are compared:
ours with PyTorch's preset against torch's own (equal but for the last places of sigmoid and
tanh), ours with int8() against float.

Ratios above 1 mean that ours is faster: rival_us / ours_us.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

# A sample lasts at least so long, in seconds.
SAMPLE = 0.01

# Between samples: threads of one contender's pool may spin for some milliseconds after its last
# call, and would take a core from the next.
PAUSE = 0.02


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ours", required=True, help="our side's executable")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", metavar="GROUP", choices=["linear", "recurrent"], help="linear or recurrent")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender (2)")
    parser.add_argument("--json", action="store_true", help="an array of rows instead of the table")
    return parser.parse_args()


class Ours:
    """Our side: one JSON object a line in, one out."""

    def __init__(self, path, threads):
        names = ("RAYON_NUM_THREADS", "CANDLE_NUM_THREADS")
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {name: str(threads) for name in names},
        )

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"our side ended at {request}")
        answer = json.loads(line)
        if "error" in answer:
            sys.exit(f"our side: {answer['error']} at {request}")
        return answer


def timed(call, calls):
    """Microseconds of one call, the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls


def calls_for(seconds_of_one):
    return max(1, round(SAMPLE / max(seconds_of_one, 1e-7)))


def compare(case, ours, rivals, rounds, torch):
    """The rows of one case: each rival against ours."""
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        path, answer = os.path.join(folder, "case.safetensors"), os.path.join(folder, "out.safetensors")
        save_file(case.tensors(), path)
        contenders = ours.ask(op="load", case=case.facts, file=path, out=answer)["contenders"]
        case.check(load_file(answer))

    # Several tries: the first calls of a pool have to wake its threads up.
    calls = {}
    for name in contenders:
        calls[name] = calls_for(1e-6 * min(ours.ask(op="time", contender=name, calls=5)["us"] for _ in range(3)))
    for name, call in rivals.items():
        calls[name] = calls_for(1e-6 * min(timed(call, 5) for _ in range(3)))
    samples = {name: [] for name in calls}
    for _ in range(rounds):
        for name in samples:
            time.sleep(PAUSE)
            # As many calls again before the clock runs: the first ones wake the contender's
            # threads up, and the system may take a while to give each a core of its own.
            if name in rivals:
                timed(rivals[name], calls[name])
                samples[name].append(timed(rivals[name], calls[name]))
            else:
                ours.ask(op="time", contender=name, calls=calls[name])
                samples[name].append(ours.ask(op="time", contender=name, calls=calls[name])["us"])
    medians = {name: statistics.median(values) for name, values in samples.items()}
    spread = {name: (min(values), max(values)) for name, values in samples.items()}
    for rival in medians:
        if rival != "ours":
            yield {
                "group": case.group,
                "case": case.name,
                "threads": torch.get_num_threads(),
                "rival": rival,
                "ours_us": round(medians["ours"], 2),
                "rival_us": round(medians[rival], 2),
                "ratio": round(medians[rival] / medians["ours"], 3),
                "ours_spread_us": [round(value, 2) for value in spread["ours"]],
                "rival_spread_us": [round(value, 2) for value in spread[rival]],
            }


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import torch

    import linear
    import recurrent

    torch.set_num_threads(args.threads)
    torch.backends.quantized.engine = "x86"
    ours = Ours(args.ours, args.threads)
    isa = ours.ask(op="isa")["isa"]
    rounds = 7 if args.quick else 21
    groups = {"linear": linear.cases, "recurrent": recurrent.cases}
    rows = []
    if not args.json:
        print(f"ours: int8() on {isa}; torch {torch.__version__}; {args.threads} threads; medians of {rounds}")
        print(f"{'case':<42} {'rival':<14} {'ours us':>10} {'rival us':>10} {'ratio':>7}")
    with torch.inference_mode():
        for group, cases in groups.items():
            if args.only not in (None, group):
                continue
            for case in cases():
                for row in compare(case, ours, case.rivals(), rounds, torch):
                    rows.append(row)
                    if not args.json:
                        print(f"{row['group'] + ' ' + row['case']:<42} {row['rival']:<14} {row['ours_us']:>10.1f} "
                              f"{row['rival_us']:>10.1f} {row['ratio']:>7.2f}", flush=True)
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
