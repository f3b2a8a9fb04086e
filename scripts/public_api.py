#!/usr/bin/env python3
"""Compares the crate's public names and signatures with docs/public-api.txt, so that a change of
them is seen.

    cargo doc --no-deps && scripts/public_api.py [--write]

Reads the pages of rustdoc: a line for every item, and for every variant, field and own method of a
type; methods of traits that a type implements are the traits'. Ends with 1 and a diff where they
differ; --write accepts what there is.
"""

import difflib
import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "target/doc/candle_dynquant"
LIST = ROOT / "docs/public-api.txt"
ITEM = re.compile(r'<pre class="rust item-decl"><code>(.*?)</code></pre>', re.S)
METHOD = re.compile(
    r'<section id="(?:method|tymethod|associatedconstant|associatedtype)\.[\w-]+"[^>]*>.*?'
    r'<h4 class="code-header">(.*?)</h4>',
    re.S,
)
FIELD = re.compile(r'id="structfield\.\w+".*?<code>(.*?)</code>', re.S)
VARIANT = re.compile(r'<section id="variant\.\w+".*?<h3 class="code-header">(.*?)</h3>', re.S)
VARIANT_FIELD = re.compile(r'id="variant\.(\w+)\.field\.\w+".*?<code>(.*?)</code>', re.S)


def text(markup):
    """What a reader of the page sees, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


def members(path, page):
    """A line for each member of the type on a page."""
    for name in map(text, FIELD.findall(page)):
        yield f"pub {path}::{name}"
    fields = {}
    for variant, field in VARIANT_FIELD.findall(page):
        fields.setdefault(variant, []).append(text(field))
    for name in map(text, VARIANT.findall(page)):
        inside = f" {{ {', '.join(fields[name])} }}" if name in fields else ""
        yield f"pub {path}::{name}{inside}"
    for signature in map(text, METHOD.findall(page)):
        declaration = signature.removeprefix("pub ")
        yield "pub " + re.sub(r"\b(fn|const|type) (?!fn)", rf"\1 {path}::", declaration, count=1)


def lines():
    """A line for each public name."""
    for link in re.findall(r'<li><a href="([^"#]+)"', (PAGES / "all.html").read_text()):
        file = Path(link)
        kind, name, _ = file.name.split(".")
        path = "::".join([*file.parts[:-1], name])
        # Below come methods of traits that it implements or derefs to, and impls of a trait.
        page = re.split(
            r'id="(?:trait-impl|foreign-impls|deref-methods|implementors)', (PAGES / file).read_text()
        )[0]
        if kind in ("fn", "type"):
            yield text(ITEM.search(page)[1]).replace(f" {name}", f" {path}", 1)
        else:
            yield f"pub {kind} {path}"
            yield from members(path, page)


def main():
    now = sorted(set(lines()))
    if "--write" in sys.argv[1:]:
        LIST.write_text("\n".join(now) + "\n")
        return
    then = LIST.read_text().splitlines()
    diff = list(difflib.unified_diff(then, now, LIST.name, "now", lineterm="", n=0))
    if diff:
        print("\n".join(diff))
        sys.exit("the public surface changed: see CHANGELOG.md, then scripts/public_api.py --write")
    print(f"{len(now)} public names, as listed")


if __name__ == "__main__":
    main()
