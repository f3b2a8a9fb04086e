"""Rows for readers: one by one as they arrive, and as tables in Markdown."""


def percent(fraction):
    return "-" if fraction is None else f"{100 * fraction:.0f}%"


def us(value):
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def rival(row):
    return " ".join(filter(None, (row["rival"], row["variant"])))


class Text:
    """Prints a line for each row as it arrives."""

    def __init__(self):
        self.group = None

    def show(self, row):
        peak = row["group"] == "peak"
        if row["group"] != self.group:
            self.group = row["group"]
            print()
            if peak:
                print(f"{'peak':<28} {'threads':>7} {'a second':>16} {'spread':>17}")
            else:
                print(f"{self.group:<28} {'rival':<26} {'ours us':>10} {'rival us':>10} {'ratio':>7} "
                      f"{'quartiles':>13} {'of peak':>8} {'rival':>6} {'of limit':>8} {'rival':>6}")
        if peak:
            low, high = row["spread"]
            print(f"{row['case']:<28} {row['threads']:>7} {row['giga_per_second']:>10,.1f} {row['unit']:<5} "
                  f"{low:>8,.1f}-{high:,.1f}", flush=True)
            return
        low, high = row["ratio_quartiles"]
        shares = (percent(row.get(key)) for key in ("ours_of_peak", "rival_of_peak", "ours_of_limit", "rival_of_limit"))
        print(f"{row['case']:<28} {rival(row):<26} {us(row['ours_us']):>10} {us(row['rival_us']):>10} "
              f"{row['ratio']:>7.2f} {f'{low:.2f}-{high:.2f}':>13} {'{:>8} {:>6} {:>8} {:>6}'.format(*shares)}", flush=True)


TITLES = {
    "linear": "Linear: `m, k, n`",
    "sweep": "Linear by rows: `m, k, n`",
    "int4": "Linear of 4 bits in groups of 32: `m, k, n`",
    "bert": "BERT encoders: batch x sequence length",
    "conv": "Convolutions: input, output channels, kernel, stride, padding",
    "recurrent": "Recurrent layers: `input, hidden, layers, bidirectional, batch, steps`",
    "decoder": "Decoders: a prompt, or a token of each sequence after so many tokens",
    "ops": "Float operations",
    "concurrency": "Concurrent callers",
    "peak": "Limits of the machine",
}


def markdown(rows):
    """A table for each group, with a line for each case and a column for each rival."""
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    parts = []
    for group, rows in groups.items():
        lines = peak_lines(rows) if group == "peak" else case_lines(rows)
        parts.append("\n".join([f"#### {TITLES[group]}", "", *lines]))
    return "\n\n".join(parts)


def line(cells):
    return f"| {' | '.join(cells)} |"


def peak_lines(rows):
    counts = sorted({row["threads"] for row in rows})
    cases = {}
    for row in rows:
        cases.setdefault(f"{row['case']}, {row['unit']}", {})[row["threads"]] = f"{row['giga_per_second']:,.1f}"
    header = ["", *(f"{count} thread{'s' if count > 1 else ''}" for count in counts)]
    body = [[case, *(cells.get(count, "-") for count in counts)] for case, cells in cases.items()]
    return [line(header), "|---" * len(header) + "|", *map(line, body)]


def case_lines(rows):
    rivals = list(dict.fromkeys(row["rival"] for row in rows))
    shares = any("ours_of_peak" in row for row in rows)
    held = any("ours_resident_mb" in row for row in rows)
    memory = ["resident, MB", "weights, MB", "cache, MB"] if held else []
    header = ["case", "ours, us", *(["of peak", "of limit"] if shares else []), *memory, *rivals]
    cases = {}
    for row in rows:
        cells = cases.setdefault(row["case"], {})
        cells["ours, us"] = us(row["ours_us"])
        cells["of peak"], cells["of limit"] = (percent(row.get(f"ours_of_{key}")) for key in ("peak", "limit"))
        for column in memory:
            megabytes = row.get(f"ours_{column.removesuffix(', MB')}_mb")
            cells[column] = "-" if megabytes is None else f"{megabytes:,.0f}"
        variant = f", {row['variant']}" if row["variant"] else ""
        cells[row["rival"]] = f"{us(row['rival_us'])} ({row['ratio']:.2f}{variant})"
    body = [[case, *(cells.get(column, "-") for column in header[1:])] for case, cells in cases.items()]
    return [line(header), "|---" * len(header) + "|", *map(line, body)]
