#!/usr/bin/env python3
"""The start and the end of a product on many threads, simulated: `scripts/simulate_start.py [--threads N] [--json]`.

Of a call's shared lines only the one with the job's state is written by all threads (crates/kernels/src/threads/job.rs):
once by the caller, who opens the job, twice by each thread that joins, once by the caller, who closes it. A
core owns a line while it writes it, and to pass it on takes some 50 ns between cores of a large machine, so
these writes queue. What a thread computes does not. A thread that comes after the work
is done writes nothing.

The simulation gives the time of a call, for all threads of the machine and for as many as `Threads::for_multiply_adds`
asks.
"""

import argparse
import json
import math

TRANSFER = 0.05  # us
JOIN = 1.45 * TRANSFER  # The one to leave, and what the work of others does not hide of the one to join.
WORK = [8, 16, 32, 64, 128, 256, 512, 1024]  # us on one thread


def call(work, threads):
    """Microseconds of a call of that work, which is shared equally by all that have joined at the time."""
    now = 2 * TRANSFER  # The caller writes the job's line, and the tasks' are fetched.
    joined = 0
    while joined < threads - 1 and work > TRANSFER * (joined + 1):
        work -= TRANSFER * (joined + 1)
        now += TRANSFER
        joined += 1
    now += work / (joined + 1)
    # All are done at once: they leave, and the caller closes, one after another.
    return now + (joined + 2) * TRANSFER


def asked(work, threads):
    return max(1, min(threads, math.isqrt(int(work / JOIN))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="prints an array of rows")
    arguments = parser.parse_args()
    rows = []
    for work in WORK:
        few = asked(work, arguments.threads)
        rows.append({
            "alone_us": work,
            "all_threads_us": round(call(work, arguments.threads), 2),
            "asked": few,
            "asked_us": round(call(work, few), 2),
            "best": min(range(1, arguments.threads + 1), key=lambda threads: call(work, threads)),
        })
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"| alone, us | all {arguments.threads} threads, us | threads asked | us | best number |")
    print("|---|---|---|---|---|")
    for row in rows:
        print("|", " | ".join(str(value) for value in row.values()), "|")


if __name__ == "__main__":
    main()
