"""Times this crate against its rivals on the same weights and inputs, in one run.

Run it through run.sh. What is written in Rust are processes of their own that answer on their
standard output (protocol.rs), and so are OpenVINO, CTranslate2 and zentorch (protocol.py), each
with packages of its own; torch and ONNX Runtime run here. Every round times each contender
once, A B A B, so that a machine's drift hits all alike; the table gives medians, and of each
round's ratio the quartiles. Before a case is timed, its outputs are compared: ours with PyTorch's
preset against torch's own (equal but for the last places of sigmoid and tanh), all others against
float.

Ratios above 1 mean that ours is faster: rival_us / ours_us. Of a rival with variants (torch's
engines, ONNX Runtime's plain and fused graph, OpenVINO's precisions) the fastest counts, and the row names it.

A Linear's share of the peak is that of int8 products on registers or tiles alone; its limit is the
longer of its operations at that peak and its weights, a byte each, at the speed at which memory
of their size is read. Both are measured in the rounds of its case, at best of several tries.
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from functools import partial

import install
import machine
import options
import table
from process import Failed, Process
from sampling import PAUSE, Contender, rounds, timed

PROTOCOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "protocol.py")

GROUPS = (*options.CASED, "concurrency", "peak")


def arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--ours", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rival", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--python", action="append", nargs=2, default=[], help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--hold", choices=("avx2", "avx512"), help="the newest instruction set that ours and rivals find: see hold/hold.py")
    options.add(parser, GROUPS)
    parser.add_argument("--plot", metavar="FILE", help="draw shares of the peak by rows of the input, as SVG")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="an array of rows instead of the table")
    output.add_argument("--markdown", action="store_true", help="the tables of benches/peers/RESULTS.md, at the end")
    args = parser.parse_args()
    options.check(parser, args)
    if args.hold != os.environ.get("HOLD"):
        parser.error("--hold: expected to be read by run.sh, as in `run.sh --hold avx2`")
    if args.plot and not os.path.isdir(os.path.dirname(args.plot) or "."):
        parser.error(f"--plot: no such folder: {os.path.dirname(args.plot)}")
    return args


class Run:
    def __init__(self, args):
        self.threads = args.threads
        self.fresh = partial(Process, args.ours, args.threads)
        self.ours = self.fresh()
        self.processes = [self.ours, *(Process(path, args.threads) for path in args.rival)]
        self.optional = [Process(path, args.threads, PROTOCOL, name) for name, path in args.python]
        for process in list(self.optional):
            self.attempt(process, process.ask, op="start")
        self.rounds = 7 if args.quick else 21
        # A case that lasts longer gets fewer rounds, but three.
        self.seconds = 3 if args.quick else 60

    def attempt(self, process, call, *args, **kwargs):
        """The result of the call, or None once the process is skipped."""
        try:
            return call(*args, **kwargs)
        except Failed as error:
            print(f"skipped: {error}", file=sys.stderr)
            self.optional.remove(process)
            process.close()

    def rows(self, case):
        """The rows of one case: each rival against ours."""
        timers, outputs = {}, {}
        # First, since other processes read the graphs that ONNX Runtime gets.
        for name, call in case.rivals().items():
            timers[name] = partial(timed, call)
            outputs[name] = call()
        with tempfile.TemporaryDirectory() as folder:
            loaded = [(process, process.load(case, folder)) for process in self.processes]
            loaded += [(process, self.attempt(process, process.load, case, folder)) for process in list(self.optional)]
        for process, result in loaded:
            names, made = result or ((), {})
            timers |= {name: partial(process.time, name) for name in names}
            outputs |= made
        for name in case.check(outputs) or ():
            del timers[name]
        contenders = {name: Contender(timer) for name, timer in timers.items()}
        count = rounds(contenders.values(), self.rounds, self.seconds)
        samples, limits = {name: [] for name in contenders}, []
        for _ in range(count):
            for name, contender in contenders.items():
                samples[name].append(contender.sample())
            if hasattr(case, "operations"):
                limits.append(self.limits(case))
        facts = {"group": case.group, "case": case.name, "threads": self.threads, "rounds": count}
        if hasattr(case, "memory"):
            fresh = self.fresh()
            facts |= case.memory(fresh)
            fresh.close()
        return [facts | row | shares(case, row, limits) for row in against_ours(samples)]

    def limits(self, case):
        """Operations per second at best, and seconds to read the weights."""
        time.sleep(PAUSE)
        peak = self.ours.peak("int8", self.threads)
        rate, _ = self.ours.peak("read", self.threads, case.weight_bytes)
        return peak and peak[0], case.weight_bytes / rate

    def concurrency(self, path):
        from concurrency import Concurrency

        group = Concurrency(self.ours, path, self.threads)
        samples = {"ours": [], "a process a core": []}
        for _ in range(self.rounds):
            samples["ours"].append(group.together())
            samples["a process a core"].append(group.apart())
        group.close()
        facts = {"group": "concurrency", "case": group.name, "threads": self.threads, "rounds": self.rounds}
        return [facts | row for row in against_ours(samples)]


def against_ours(samples):
    """A row for each rival, or for the fastest of its variants."""
    medians = {name: statistics.median(values) for name, values in samples.items()}
    best = {}
    for name in samples:
        rival, _, variant = name.partition("/")
        if rival not in best or medians[name] < medians[best[rival]]:
            best[rival] = name
    ours = samples["ours"]
    for rival, name in best.items():
        if rival == "ours":
            continue
        ratios = [theirs / our for theirs, our in zip(samples[name], ours)]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        yield {
            "rival": rival,
            "variant": name.partition("/")[2],
            "ours_us": round(medians["ours"], 2),
            "rival_us": round(medians[name], 2),
            "ratio": round(medians[name] / medians["ours"], 3),
            "ratio_quartiles": [round(low, 3), round(high, 3)],
            "ours_spread_us": [round(min(ours), 2), round(max(ours), 2)],
            "rival_spread_us": [round(min(samples[name]), 2), round(max(samples[name]), 2)],
        }


def shares(case, row, limits):
    """Of the peak of the machine and of the limit of the case, where there is one."""
    if not limits or limits[0][0] is None:
        return {}
    peak = statistics.median(rate for rate, _ in limits)
    reading = statistics.median(seconds for _, seconds in limits)
    limit = 1e6 * max(case.operations / peak, reading)
    of = {"peak_gops": round(peak / 1e9, 1), "limit_us": round(limit, 2)}
    for side in ("ours", "rival"):
        us = row[f"{side}_us"]
        of[f"{side}_of_peak"] = round(1e6 * case.operations / us / peak, 3)
        of[f"{side}_of_limit"] = round(limit / us, 3)
    return of


def main():
    args = arguments()
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"the machine is busy (load {load:.1f}): outputs are checked, but times will not hold", file=sys.stderr)
    groups = options.cases(args)
    import onnxruntime
    import torch

    import linear
    import peak

    run = Run(args)
    if args.plot and not run.ours.peak("int8", args.threads):
        sys.exit("--plot: expected a machine whose int8 peak is measured; this one has none")
    isa = run.ours.ask(op="isa")["isa"]
    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__} | machine.crates("candle-core", "rten-gemm")
    for process in run.optional:
        # A rival's own torch does not stand for torch.
        versions = install.pins(process.name) | versions
    preset = "int4(), attention in 8 bits," if args.only == "decoder" else "int8()"
    about = (f"ours: {preset} on {isa}; {', '.join(' '.join(pair) for pair in versions.items())}; {args.threads} threads; "
             f"medians of {run.rounds} rounds, fewer of long cases")
    text = None if args.json else table.Text()
    rows = []

    def add(new):
        for row in new:
            rows.append(row)
            if text:
                text.show(row)

    if text:
        print(f"{machine.describe()}\n{about}")
    with torch.inference_mode():
        if args.only in (None, "peak"):
            add(peak.rows(run.ours, args.threads, run.rounds))
        for cases in groups.values():
            for case in cases():
                add(run.rows(case))
        if args.only in (None, "concurrency"):
            add(run.concurrency(args.ours))
        if args.plot:
            for case in linear.sweep():
                add(run.rows(case))
    if args.plot:
        import plot

        plot.draw([row for row in rows if row["group"] == "sweep"], args.plot)
    if args.json:
        print(json.dumps(rows))
    if args.markdown:
        print(f"\n{command()}\n\non {machine.describe()}.\n{about}.\n\n{table.markdown(rows)}")


def command():
    """The command of this run, in Markdown."""
    words = sys.argv[1:]
    passed = {"--ours": 2, "--rival": 2, "--python": 3}
    while words and words[0] in passed:
        words = words[passed[words[0]] :]
    return f"```\n{shlex.join(['benches/peers/run.sh', *words])}\n```"


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(str(error))
