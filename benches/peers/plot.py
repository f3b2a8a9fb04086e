"""The fraction of the int8 peak that each contender reaches, against the rows of the input."""


def draw(rows, path):
    import matplotlib

    matplotlib.use("svg")
    # The same rows give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "peers"
    import matplotlib.pyplot as plt

    lines = {}
    for row in rows:
        m, k, n = row["case"].split(",")
        lines.setdefault("ours", {})[int(m)] = row["ours_of_peak"]
        lines.setdefault(row["rival"], {})[int(m)] = row["rival_of_peak"]
    figure, axes = plt.subplots(figsize=(7, 4))
    for name in ("ours", "torch int8", "onnxruntime QInt8", "candle Q8_0"):
        points = sorted(lines[name].items())
        style = {"linewidth": 2.5, "color": "black"} if name == "ours" else {"linewidth": 1.5}
        axes.plot(*zip(*points), marker="o", markersize=4, label=name, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(lines["ours"]), sorted(lines["ours"]))
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    axes.set_xlabel(f"m, rows of the input; k = {k}, n = {n}")
    axes.set_ylabel("of the int8 peak")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
