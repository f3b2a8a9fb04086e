#!/usr/bin/env python3
"""Checks the links of all Markdown files of the repository: scripts/check_links.py

A relative link has to lead to a file or folder that git knows or that is not ignored, an anchor to a heading
of it. Links to the repository's own pages on GitHub are checked as files; other addresses are not looked up.
Chapters of the guide, in docs/, link relatively to files in docs/ only, as nothing else is in the book, and are
listed in docs/SUMMARY.md. Prints each fault with its line; exits with 1 if there is any. Needs git.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
OWN = re.compile(r"https://github\.com/candle-dynquant/candle-dynquant/(?:blob|tree|raw)/main/(.*)")
BOOK = Path("docs")
SUMMARY = BOOK / "SUMMARY.md"

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
CODE = re.compile(r"(`+)(?:.+?)\1")
INLINE = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:[ \t]*<?(\S+?)>?[ \t]*$", re.MULTILINE)
HTML = re.compile(r"""<(?:a|img)\b[^>]*?\b(?:href|src)=["']([^"']+)["']""")
HTML_ANCHOR = re.compile(r"""<a\b[^>]*?\b(?:name|id)=["']([^"']+)["']""")


def prose(text):
    """Numbers and lines of a text, those of code blocks and comments empty."""
    fence, comment = None, False
    for number, line in enumerate(text.splitlines(), 1):
        found = FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
            line = ""
        elif found:
            fence, line = found[1], ""
        elif comment or "<!--" in line:
            comment = "-->" not in line
            line = re.sub(r"<!--.*?(-->|$)|^.*?-->", "", line) if not comment or "<!--" in line else ""
        yield number, line


def slug(heading):
    """The anchor that GitHub and mdBook give a heading."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    heading = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
    return heading.replace(" ", "-")


def anchors(text):
    found, seen = set(), {}
    for _, line in prose(text):
        found.update(HTML_ANCHOR.findall(line))
        if heading := HEADING.match(line):
            name = slug(heading[2])
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def links(text):
    """Each link with its line; its text may be code or broken over lines, its address neither."""
    lines = (CODE.sub(lambda code: "`" * len(code[0]), line) for _, line in prose(text))
    whole = "\n".join(lines)
    for pattern in (INLINE, REFERENCE, HTML):
        for found in pattern.finditer(whole):
            yield whole.count("\n", 0, found.start(1)) + 1, found[1]


def files():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return {Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()}


def check(file, texts, known, folders):
    """The faults of one file, each with its line."""
    for number, address in links(texts[file]):
        own = OWN.fullmatch(address)
        # Other addresses, and rustdoc's, which `cargo doc` checks.
        if not own and (re.match(r"[a-z][a-z+.-]*:", address) or not address or "::" in address):
            continue
        path, _, anchor = (own[1] if own else address).partition("#")
        base = Path() if own else file.parent
        # Without `..`, but where it leaves the repository.
        target = Path(os.path.normpath(base / unquote(path))) if path else file
        if target not in known and target not in folders:
            yield number, f"{address}: no such file"
        elif not own and BOOK in file.parents and BOOK not in target.parents:
            yield number, f"{address}: not in the book, give its address on GitHub"
        elif anchor and target.suffix == ".md" and anchor not in anchors(texts[target]):
            yield number, f"{address}: no such heading"


def main():
    known = files()
    folders = {folder for file in known for folder in file.parents}
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in known if file.suffix == ".md"}
    faults = [
        f"{file}:{number}: {fault}"
        for file in sorted(texts)
        for number, fault in check(file, texts, known, folders)
    ]
    if SUMMARY in texts:
        listed = {BOOK / address for _, address in links(texts[SUMMARY])}
        chapters = {file for file in texts if BOOK in file.parents and file != SUMMARY}
        faults += [f"{file}: not in {SUMMARY}" for file in sorted(chapters - listed)]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    count = sum(1 for text in texts.values() for _ in links(text))
    print(f"{count} links in {len(texts)} files")


if __name__ == "__main__":
    main()
