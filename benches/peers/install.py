"""Installs the rivals in Python and prints which can be run, and by which interpreter.

    install.py SHARED VENVS

Each of rivals/*.py tells at its head what it depends on, as scripts do (PEP 723), and by `npm` which
packages of npm it needs, of which no script runs. It gets an environment of its own below VENVS, in
front of the packages of the environment SHARED: rivals that need other versions of one package do not
meet. One that cannot be installed, or is for other CPUs, is skipped with a line that says why.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import machine

RIVALS = Path(__file__).parent / "rivals"


def head(path):
    """The dependencies of a rival by installer, and what it needs of /proc/cpuinfo: `vendor_id`, one of the `flags`."""
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", path.read_text(), re.MULTILINE).group(1)
    meta = tomllib.loads("".join(line[2:] or "\n" for line in block.splitlines(keepends=True)))
    needs = meta.get("tool", {}).get("peers", {})
    return {"pip": meta["dependencies"], "npm": needs.pop("npm", [])}, needs


def pins(name):
    """The installed versions of a rival."""
    dependencies, _ = head(RIVALS / f"{name}.py")
    pairs = [dependency.split("==") for dependency in dependencies["pip"]]
    return dict(pairs + [package.lstrip("@").split("@") for package in dependencies["npm"]])


def unmet(needs):
    """What the CPU lacks of a rival's needs, if it lacks anything."""
    fields = machine.cpu()
    for key, word in needs.items():
        if word not in fields.get(key, "").split():
            return f"it is for CPUs with {word} among {key}"
    return None


def run(*command):
    """The reason why the command failed, if it did."""
    if not shutil.which(command[0]):
        return f"{command[0]} is not installed"
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (lines or ["no reason given"])[-1] if done.returncode else None


def install(shared, venv, dependencies):
    """The reason why it failed, if it did."""
    words = dependencies["pip"] + dependencies["npm"]
    stamp, wanted = venv / "installed.txt", "\n".join(words)
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    print(f"installing {' '.join(words)} into {venv}", file=sys.stderr)
    shutil.rmtree(venv, ignore_errors=True)
    if failed := run(sys.executable, "-m", "venv", venv):
        return failed
    (packages,) = venv.glob("lib/*/site-packages")
    (behind,) = shared.glob("lib/*/site-packages")
    (packages / "shared.pth").write_text(f"{behind.resolve()}\n")
    commands = {
        "pip": [venv / "bin/python", "-m", "pip", "install", "--quiet"],
        "npm": ["npm", "install", "--loglevel", "error", "--ignore-scripts", "--prefix", venv],
    }
    for installer, packages in dependencies.items():
        if packages and (failed := run(*commands[installer], *packages)):
            return failed
    stamp.write_text(wanted)
    return None


def main():
    shared, venvs = map(Path, sys.argv[1:])
    for path in sorted(RIVALS.glob("*.py")):
        dependencies, needs = head(path)
        failed = unmet(needs) or install(shared, venvs / path.stem, dependencies)
        if failed:
            print(f"skipped: {path.stem}: {failed}", file=sys.stderr)
        else:
            print(path.stem, venvs / path.stem / "bin/python")


if __name__ == "__main__":
    main()
