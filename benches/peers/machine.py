"""The machine in one line, and the versions of the software on it."""

import glob
import os
import platform
import tomllib


def crates(*names):
    """The locked versions of the rivals in Rust."""
    with open(os.path.join(os.path.dirname(__file__), "rivals", "Cargo.lock"), "rb") as file:
        versions = {package["name"]: package["version"] for package in tomllib.load(file)["package"]}
    return {name: versions[name] for name in names}


def cpu():
    """The fields of the first core in /proc/cpuinfo."""
    fields = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return fields


def flags():
    """The instruction sets of the CPU, by Linux's names, up to what hold/hold.c leaves."""
    fields = cpu()
    found = set(fields.get("flags", fields.get("Features", "")).split())
    held = {"avx2": ("avx512", "avx_", "amx_"), "avx512": ("avx512_", "avx_", "amx_")}.get(os.environ.get("HOLD"), ())
    return {flag for flag in found if not flag.startswith(held)}


def saturates():
    """Whether x86-64's products of 8-bit codes, as the rivals compute them, saturate: without VNNI they do."""
    found = flags()
    return "avx2" in found and not found & {"avx_vnni", "avx512_vnni"}


def describe():
    name = cpu().get("model name", platform.processor() or platform.machine())
    known = {
        "avx2": "AVX2", "avx_vnni": "AVX-VNNI", "avx512f": "AVX-512", "avx512_vnni": "AVX512-VNNI",
        "amx_int8": "AMX", "asimddp": "dotprod", "i8mm": "i8mm",
    }
    found = flags()
    features = [word for flag, word in known.items() if flag in found]
    parts = [", ".join(features)] if features else []
    parts += caches()
    shared = "; a virtual machine" if "hypervisor" in found else ""
    if level := os.environ.get("HOLD"):
        shared += f"; held to {level}"
    return f"{os.cpu_count()} cores of {name} ({'; '.join(parts)}){shared}"


def caches():
    found = {}
    for index in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*")):
        level, kind, size = (read(index, key) for key in ("level", "type", "size"))
        if kind != "Instruction" and size.endswith("K"):
            kib = int(size[:-1])
            found[level] = f"{kib // 1024} MiB L{level}" if kib >= 1024 else f"{kib} KiB L{level}"
    return [", ".join(found.values())] if found else []


def read(folder, key):
    with open(os.path.join(folder, key)) as file:
        return file.read().strip()
