"""Copies programs so that they find a CPU of AVX2, or of AVX512 without VNNI, on a newer one.

    hold.py FOLDER VENV ARGUMENT..

Copies the virtual environment VENV to FOLDER, and what run.py's ARGUMENTs name: programs, and the
environments of rivals whose PACKAGES this file knows; the others are left out. Prints the arguments
with the copies' paths, each followed by a zero byte. In the copies' machine code every CPUID
instruction becomes one of the same length that no CPU knows; hold.c, preloaded, answers it. Needs
cc and objdump.
"""

import os
import re
import shutil
import struct
import subprocess
import sys

CPUID, UNKNOWN = b"\x0f\xa2", b"\x0f\x04"
# The packages that compute; Python itself and NumPy only prepare inputs.
PACKAGES = re.compile(r"/(torch|onnxruntime|openvino|ctranslate2)[^/]*/")


def segments(binary):
    """The address, file offset and length of each loaded segment of a 64-bit ELF file."""
    start, = struct.unpack_from("<Q", binary, 32)
    size, count = struct.unpack_from("<HH", binary, 54)
    for index in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", binary, start + index * size)
        if kind == 1:
            yield address, offset, length


def held(path):
    """The file without its CPUID instructions, or None if it has none."""
    with open(path, "rb") as file:
        binary = bytearray(file.read())
    if binary[:5] != b"\x7fELF\x02" or CPUID not in binary:
        return None
    loaded = list(segments(binary))
    found = 0
    with subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", path], stdout=subprocess.PIPE, text=True) as listing:
        for line in listing.stdout:
            if not line.rstrip().endswith("\tcpuid"):
                continue
            at = int(line.split(":")[0], 16)
            place = next(at - address + offset for address, offset, length in loaded if address <= at < address + length)
            assert binary[place:place + 2] == CPUID, (path, hex(at))
            binary[place:place + 2] = UNKNOWN
            found += 1
    if listing.returncode:
        sys.exit(f"objdump failed at {path}")
    return binary if found else None


def replace(path):
    """Holds a file that may be a hard link to the original."""
    binary = held(path)
    if binary is not None:
        mode = os.stat(path).st_mode
        os.remove(path)
        with open(path, "wb") as file:
            file.write(binary)
        os.chmod(path, mode)


def environment(path, folder):
    """Copies a virtual environment, unless it was, and returns the copy's path."""
    target = os.path.join(folder, os.path.basename(path))
    with open(os.path.join(path, "installed.txt")) as file:
        installed = file.read()
    stamp = os.path.join(target, "held.txt")
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == installed:
                return target
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path, target, symlinks=True, copy_function=os.link)
    for parent, _, names in os.walk(target):
        for name in names if PACKAGES.search(parent + "/") else ():
            file = os.path.join(parent, name)
            if ".so" in name and "cuda" not in name and not os.path.islink(file):
                replace(file)
    with open(stamp, "w") as file:
        file.write(installed)
    return target


def program(path, folder):
    target = os.path.join(folder, os.path.basename(path))
    shutil.copy(path, target)
    replace(target)
    return target


def arguments(words, folder):
    """The arguments of run.py with the paths of copies."""
    words = iter(words)
    for word in words:
        if word in ("--ours", "--rival"):
            # The other build of the rivals needs AVX512.
            if not (path := next(words)).endswith("-x86-v4"):
                yield from (word, program(path, folder))
        elif word == "--python":
            name, python = next(words), next(words)
            if PACKAGES.search(f"/{name}/"):
                path = os.path.dirname(os.path.dirname(python))
                yield from (word, name, os.path.join(environment(path, folder), "bin", "python"))


def main():
    folder, venv, *words = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hold.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", os.path.join(folder, "hold.so")], check=True)
    environment(venv, folder)
    for word in arguments(words, folder):
        print(word, end="\0")


main()
