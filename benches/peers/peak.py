"""The limits of the machine, which no layer can pass: measured on registers and on memory alone."""

import statistics

# Of all threads together: from a first-level cache to memory.
SIZES = [2**power for power in (16, 19, 20, 22, 24, 28)]


def rows(ours, threads, rounds):
    counts = sorted({1, threads})
    cases = [(kind, 0, count) for kind in ("int8", "f32") for count in counts]
    cases += [("read", size, count) for size in SIZES for count in counts]
    samples = {case: [] for case in cases}
    for _ in range(rounds):
        for kind, size, count in cases:
            if peak := ours.peak(kind, count, size):
                samples[kind, size, count].append(peak)
    for (kind, size, count), peaks in samples.items():
        if peaks:
            rates = [rate for rate, _ in peaks]
            what = f"read {size // 1024} KiB" if kind == "read" else f"{kind} {peaks[0][1]}"
            yield {
                "group": "peak",
                "case": what,
                "threads": count,
                "giga_per_second": round(statistics.median(rates) / 1e9, 1),
                "unit": "GB/s" if kind == "read" else "GOP/s",
                "spread": [round(min(rates) / 1e9, 1), round(max(rates) / 1e9, 1)],
            }
