#!/usr/bin/env python3
"""Compares the crate's public items with public_items.txt, so that a change of them is seen.

    cargo doc --no-deps && scripts/public_items.py [--write]

Reads the pages of rustdoc: every item, and of a type its variants, fields and own methods, not those
of traits that it implements. Ends with 1 and a diff where they differ; --write accepts what there is.
"""

import difflib
import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "target/doc/candle_dynquant"
LIST = ROOT / "public_items.txt"
MEMBER = re.compile(
    r'id="(method|tymethod|variant|structfield|associatedconstant|associatedtype)\.([\w.]+)"'
)


def items():
    """Each public item as `kind path`, and `kind path::member`."""
    for link in re.findall(r'<li><a href="([^"#]+)"', (PAGES / "all.html").read_text()):
        page = Path(link)
        kind, name, _ = page.name.split(".")
        path = "::".join([*page.parts[:-1], name])
        yield f"{kind} {path}"
        text = (PAGES / page).read_text()
        # Below come methods of traits that it implements or derefs to.
        own = re.split(r'id="(?:trait-implementations|deref-methods|implementors)', text)[0]
        for member, member_name in MEMBER.findall(own):
            yield f"{member.removeprefix('ty')} {path}::{html.unescape(member_name)}"


def main():
    now = sorted(set(items()))
    if "--write" in sys.argv[1:]:
        LIST.write_text("\n".join(now) + "\n")
        return
    then = LIST.read_text().splitlines()
    diff = list(difflib.unified_diff(then, now, "public_items.txt", "now", lineterm="", n=0))
    if diff:
        print("\n".join(diff))
        sys.exit("public items changed: see CHANGELOG.md, then scripts/public_items.py --write")
    print(f"{len(now)} public items, as listed")


if __name__ == "__main__":
    main()
