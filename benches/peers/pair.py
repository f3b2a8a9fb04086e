"""Times two builds of ours in turns: is one of them slower, and where?

Run it through pair.sh, which builds them. Both are started anew several times, since where a
process happens to have its memory moves a row by percents for as long as it lives; within a
launch they take turns, and the one that begins changes from round to round. A row's ratio is the
median of old over new of all rounds: above 1 the new build is faster. Outputs are compared too.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from functools import partial

import options
import table
from process import Failed, Process
from sampling import Contender, rounds


def arguments():
    parser = argparse.ArgumentParser(prog="pair.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("old", help="an executable of benches/peers/ours.rs, or a revision to build it from")
    parser.add_argument("new", help="the same; of pair.sh the default is the working tree")
    options.add(parser, options.CASED)
    parser.add_argument("--launches", type=int, default=3, help="how often both are started (3)")
    parser.add_argument("--rounds", type=int, default=11, help="of each launch, fewer of long cases (11)")
    parser.add_argument("--allowed", type=float, default=2, help="percent by which a row may be slower (2)")
    parser.add_argument("--json", action="store_true", help="an array of rows instead of the table")
    args = parser.parse_args()
    options.check(parser, args)
    for path in (args.old, args.new):
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            parser.error(f"expected an executable, got {path}")
    for name in ("launches", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(args, name)}")
    return args


class Pair:
    def __init__(self, args):
        self.args = args
        self.processes = {"old": Process(args.old, args.threads), "new": Process(args.new, args.threads)}

    def samples(self, case):
        """Pairs of microseconds, and whether both give the same bits."""
        import torch

        outputs = {}
        with tempfile.TemporaryDirectory() as folder:
            for side, process in self.processes.items():
                _, outputs[side] = process.load(case, folder)
        same = torch.equal(outputs["old"]["ours"], outputs["new"]["ours"])
        contenders = {side: Contender(partial(process.time, "ours")) for side, process in self.processes.items()}
        # Both do the same number of calls: a sample of more calls is less noisy.
        calls = max(contender.calls for contender in contenders.values())
        for contender in contenders.values():
            contender.calls = calls
        pairs = []
        for index in range(rounds(contenders.values(), self.args.rounds, seconds=20)):
            order = ("old", "new") if index % 2 else ("new", "old")
            taken = {side: contenders[side].sample() for side in order}
            pairs.append((taken["old"], taken["new"]))
        return pairs, same

    def close(self):
        for process in self.processes.values():
            process.close()


def row(group, case, threads, pairs, same):
    ratios = [old / new for old, new in pairs]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    old, new = (statistics.median(side) for side in zip(*pairs))
    return {
        "group": group, "case": case, "threads": threads, "rounds": len(pairs),
        "old_us": round(old, 2), "new_us": round(new, 2),
        "ratio": round(statistics.median(ratios), 4), "ratio_quartiles": [round(low, 4), round(high, 4)],
        "same_bits": same,
    }


def show(row):
    low, high = row["ratio_quartiles"]
    note = "" if row["same_bits"] else "  other bits"
    print(f"{row['case']:<28} {table.us(row['old_us']):>10} {table.us(row['new_us']):>10} {row['ratio']:>7.3f} "
          f"{f'{low:.3f}-{high:.3f}':>13}{note}")


def main():
    args = arguments()
    groups = options.cases(args)
    import torch

    found = {}
    for launch in range(args.launches):
        print(f"launch {launch + 1} of {args.launches}", file=sys.stderr)
        pair = Pair(args)
        with torch.inference_mode():
            for group, cases in groups.items():
                for case in cases():
                    pairs, same = found.get((group, case.name), ([], True))
                    more, equal = pair.samples(case)
                    found[group, case.name] = pairs + more, same and equal
        pair.close()
    rows = [row(*key, args.threads, *value) for key, value in found.items()]
    slower = [row for row in rows if row["ratio"] < 1 - args.allowed / 100]
    if args.json:
        print(json.dumps(rows))
    else:
        print(f"{'case':<28} {'old us':>10} {'new us':>10} {'old/new':>7} {'quartiles':>13}")
        for each in rows:
            show(each)
    names = "; ".join(each["case"] for each in slower)
    verdict = f"slower by more than {args.allowed:g} %: {names}" if slower else f"no row is slower by more than {args.allowed:g} %"
    print(verdict, file=sys.stderr)
    return bool(slower)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(str(error))
