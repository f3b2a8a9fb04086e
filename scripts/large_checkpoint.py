#!/usr/bin/env python3
"""The memory that `dynquant quantize` takes for a large checkpoint.

    cargo build --release --bin dynquant
    scripts/large_checkpoint.py target/release/dynquant                   # 4 GB in 8 shards
    scripts/large_checkpoint.py target/release/dynquant --shard-mb 16     # in seconds
    scripts/large_checkpoint.py target/release/dynquant --bf16 --shards 1 -- --preset pytorch
    scripts/large_checkpoint.py target/release/dynquant -- --preset onnxruntime --linear layers.0.mlp.up
    scripts/large_checkpoint.py target/release/dynquant --shards 1 --columns 1 --shard-mb 307   # [2^26, 1]

Writes a folder of f32 shards (--bf16 for bf16), each with one large matrix and some small ones, into a temporary folder (--dir for
another place; 1.3 times the size is needed), quantizes it, and prints the peak of resident memory. Ends with 1 where
that is above twice the largest tensor plus 200 MB, or where the output is not as many bytes as the input has elements.
"""

import argparse
import json
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

MB = 10**6


def write_shard(path, tensors, width, block):
    """A safetensors file of tensors, all of whose elements, of `width` bytes, come from one block."""
    header, at = {}, 0
    for name, shape in tensors.items():
        size = width * shape[0] * shape[1]
        header[name] = {"dtype": {2: "BF16", 4: "F32"}[width], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = at
        while left:
            file.write(block[: min(left, len(block))])
            left -= min(left, len(block))
    return at


def write(folder, shards, shard_mb, width, columns):
    folder.mkdir()
    random.seed(0)
    block = array("f", (random.gauss(0, 0.02) for _ in range(1 << 20)))
    if sys.byteorder == "big":
        block.byteswap()
    block = block.tobytes()
    if width == 2:
        # The upper half of an f32 is a bf16.
        block = b"".join(block[i + 2 : i + 4] for i in range(0, len(block), 4))
    weight_map, largest, total = {}, 0, 0
    rows = shard_mb * MB // (width * columns)
    for i in range(shards):
        # Seven eighths of a shard are one tensor.
        small = rows // 32
        shapes = {"mlp.up": rows - 4 * small, **{f"attention.{part}": small for part in ("q", "k", "v", "o")}}
        tensors = {f"layers.{i}.{name}.weight": [count, columns] for name, count in shapes.items()}
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        total += write_shard(folder / name, tensors, width, block)
        largest = max(largest, width * columns * (rows - 4 * small))
        weight_map |= {tensor: name for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"hidden_size": columns}))
    return total, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shard-mb", type=int, default=500)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--dir")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:end]), words[end + 1 :]
    width = 2 if args.bf16 else 4
    with tempfile.TemporaryDirectory(dir=args.dir) as parent:
        source, out = Path(parent) / "float", Path(parent) / "int8"
        total, largest = write(source, args.shards, args.shard_mb, width, args.columns)
        start = time.monotonic()
        command = [args.command, "quantize", source, "-o", out, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - start
        written = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    # Kilobytes on Linux; of the only child.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    bound = 2 * largest + 200 * MB
    print(f"{total / MB:.0f} MB in {args.shards} shards, largest tensor {largest / MB:.0f} MB -> {written / MB:.0f} MB")
    print(f"peak {peak / MB:.0f} MB, bound {bound / MB:.0f} MB; {seconds:.0f} s")
    # Of each row a scale besides, and perhaps a zero point.
    whole = written < (1.04 + 5 / args.columns) * total / width
    sys.exit(0 if peak <= bound and whole else 1)


if __name__ == "__main__":
    main()
