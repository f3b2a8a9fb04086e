"""The command line options that run.py and pair.py share."""

import os
import sys

# The groups of cases that every contender gets; groups.py makes the cases.
CASED = ("linear", "int4", "bert", "conv", "recurrent", "decoder", "ops")
# Of these, what takes too long to be run unasked.
LONG = ("decoder",)


def add(parser, groups):
    parser.add_argument("--only", metavar="GROUP", choices=groups, help=", ".join(groups))
    parser.add_argument("--rows", metavar="ROWS", help="of --only GROUP, as its table names them: '128,768,768;1,100,100'")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender (2)")


def check(parser, args):
    if args.rows is not None and args.only not in CASED:
        parser.error(f"--rows: expected --only with one of {', '.join(CASED)}, got {args.only or 'no --only'}")
    if not 1 <= args.threads <= os.cpu_count():
        parser.error(f"--threads: expected 1 to {os.cpu_count()}, the cores of this machine, got {args.threads}")


def cases(args):
    """The functions that make the cases of each selected group."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    # Progress bars of libraries, which read it while they are imported.
    os.environ["TQDM_DISABLE"] = "1"
    import torch

    import groups

    torch.set_num_threads(args.threads)
    wanted = [group for group in CASED if args.only == group or args.only is None and group not in LONG]
    try:
        selected = {group: groups.select(group, args.rows) for group in wanted}
    except ValueError as error:
        sys.exit(f"--rows: {error}")
    return {group: lambda group=group: groups.GROUPS[group].cases(selected[group]) for group in selected}
