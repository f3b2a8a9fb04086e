"""Checks the machine code of the inner loops: no timing, the same answer on every run.

Usage: check_tile.py BINARY..       optimised x86-64 programs that link the crate
       cargo .. --message-format=json | check_tile.py --cargo         the programs that cargo built

For each kernel the loop over inputs of its highest tile must do as many dot products as the tile has
registers, with no more instructions around them than stated, and must put no vector register on the stack:
sums that do not stay in registers once made large products 1.6 times as slow.

No kernel may gather or scatter: a loop over blocks that the compiler vectorised across blocks once made norms
6.7 times as slow with AVX-512.
"""

import json
import re
import subprocess
import sys

# kernel, its dot product; dot products and broadcasts of the highest tile, two for each row of widened codes;
# other instructions allowed
TILES = [
    ("avx512_vnni::multiply", "vpdpbusd", 24, 6, 20),
    ("avx512_bf16::multiply_bf16", "vdpbf16ps", 16, 2, 16),
    ("avx512_bf16::attend", "vdpbf16ps", 16, 4, 24),
    ("avx512::multiply_bytes", "vpmaddubsw", 16, 4, 50),
    ("avx512::multiply_split", "vpmaddubsw", 16, 4, 50),
    ("avx512::multiply_widened", "vpmaddwd", 32, 8, 62),
    ("avx512::multiply_f16", "vfmadd", 24, 6, 24),
    ("avx_vnni::multiply", "vpdpbusd", 12, 6, 18),
    ("avx2::multiply_bytes", "vpmaddubsw", 8, 4, 30),
    ("avx2::multiply_split", "vpmaddubsw", 8, 4, 30),
    ("avx2::multiply_widened", "vpmaddwd", 16, 8, 40),
    ("avx2::multiply_f16", "vfmadd", 8, 4, 14),
]


def functions(binary):
    """The instructions of each function of our kernels: (address, mnemonic, operands)."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "-C", binary], check=True, capture_output=True, text=True
    ).stdout
    found, name = {}, None
    for line in listing.splitlines():
        if start := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            kernel = re.search(r"kernels::arch::x86_64::(\w+::\w+)", start[1])
            name = kernel and kernel[1]
            if name:
                found.setdefault(name, [])
        elif name and (code := re.match(r"\s+([0-9a-f]+):\s+(?:\{\w+\} )?(\S+)\s*(.*)", line)):
            found[name].append((int(code[1], 16), code[2], code[3]))
    return found


def inner_loops(code):
    """Runs of instructions that end in a jump back to their first, with no such run inside."""
    index = {address: i for i, (address, _, _) in enumerate(code)}
    loops = []
    for i, (address, mnemonic, operands) in enumerate(code):
        target = re.match(r"([0-9a-f]+)", operands) if mnemonic.startswith("j") else None
        if target and (start := index.get(int(target[1], 16), len(code))) <= i:
            loops.append((start, i))
    return [
        code[a : b + 1] for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)
    ]


def shape(loop, dot):
    """Its dot products, and its broadcasts of activations; constants are beside the code."""
    broadcasts = [operands for _, mnemonic, operands in loop if "broadcast" in mnemonic]
    dots = sum(dot in mnemonic for _, mnemonic, _ in loop)
    return dots, sum("%rip" not in operands for operands in broadcasts)


def main():
    binaries = sys.argv[1:]
    if binaries == ["--cargo"]:
        binaries = [path for line in sys.stdin if (path := json.loads(line).get("executable"))]
    found = [functions(binary) for binary in binaries]
    faults = []
    for kernel, code in (item for of_one in found for item in of_one.items()):
        if count := sum("gather" in mnemonic or "scatter" in mnemonic for _, mnemonic, _ in code):
            faults.append(f"{kernel}: {count} gathers and scatters")
    for kernel, dot, dots, broadcasts, others in TILES:
        loops = [loop for of_one in found for loop in inner_loops(of_one.get(kernel, []))]
        tiles = [loop for loop in loops if shape(loop, dot) == (dots, broadcasts)]
        if not tiles:
            shapes = sorted({shape(loop, dot) for loop in loops})
            faults.append(f"{kernel}: no loop of {dots} {dot} and {broadcasts} broadcasts; there are {shapes}")
        for loop in tiles:
            stored = [f"{m} {o}" for _, m, o in loop if re.search(r"[xyz]mm\d+,.*\(%r[sb]p", o)]
            around = len(loop) - dots
            if stored:
                faults.append(f"{kernel}: registers on the stack: {'; '.join(stored)}")
            if around > others:
                faults.append(f"{kernel}: {around} instructions around {dots} {dot}, at most {others} expected")
            print(f"{kernel}: {dots} {dot} and {broadcasts} broadcasts in {len(loop)} instructions")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
