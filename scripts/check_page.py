#!/usr/bin/env python3
"""Opens a page of an inspection in headless Chromium: `check_page.py FILE [--search] [--picture FILE.png]`.

It must show its headings, its table and its pictures, with --search also the curve of a search, write nothing to the console, and load nothing.
CHROMIUM names another browser; .ci/run installs one.
"""

import argparse
import pathlib
import re
import subprocess
import sys

from chromium import command, console


def chromium(*arguments):
    """What the browser prints: the document, and its log."""
    # Without a network: every host resolves to nothing.
    browser = command("--host-resolver-rules=MAP * ~NOTFOUND", *arguments)
    done = subprocess.run(browser, capture_output=True, text=True, timeout=120)
    if done.returncode:
        sys.exit(f"check_page: {browser[0]} failed: {done.stderr[-2000:]}")
    return done.stdout, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--search", action="store_true", help="also look for the curve of a search")
    parser.add_argument("--picture", type=pathlib.Path, help="also save a screenshot")
    arguments = parser.parse_args()
    url = arguments.page.resolve().as_uri()
    document, log = chromium("--dump-dom", url)
    written = console(log)
    text = re.sub(r"<style.*?</style>|<[^>]*>", " ", document, flags=re.S)
    layers = document.count("<summary>")
    bars = re.findall(r'<table class="bars">.*?</table>', document, flags=re.S)
    checks = {
        "a title": re.search(r"<h1>[^<]+</h1>", document),
        "end to end": re.search(r"end to end: [\d.]+ dB", text),
        "headings": all(name in text for name in
                        ("Error of each layer", "Size of each layer", "All figures", "Distributions")),
        "a table with a row for each layer": document.count("<tr>") > layers > 0,
        "two bars for each layer, of errors and of sizes":
            [len(re.findall(r'--share:\s*(?!0\.000)', table)) >= 2 * (1 + layers) for table in bars] == [True] * 2,
        "a histogram of each layer": len(re.findall(r'<path class="area" d="M\S+ \S+?L', document)) >= layers,
        "the curve of a search": not arguments.search or ("best so far" in text and
            all(re.search(f'<path class="{name}" d="M\\d', document) for name in ("line", "dots"))),
        "ticks of each axis": document.count('class="tick"') >= 4 * document.count("<svg"),
        "labels in the pictures": all(word in text for word in ("by itself", "along the run", "before", "after")),
        "no NaN": "NaN" not in text,
        "an empty console": not written,
        "nothing to load": not re.search(r"(?:src|href)=\"(?!data:)|<script", document),
    }
    failed = [name for name, holds in checks.items() if not holds]
    if arguments.picture:
        chromium(f"--screenshot={arguments.picture.resolve()}", "--window-size=1120,1400", url)
    if failed:
        sys.exit("\n".join([f"{arguments.page}: fails: {'; '.join(failed)}", *written[:10]]))
    print(f"{arguments.page}: {len(checks)} checks hold, {layers} layers")


if __name__ == "__main__":
    main()
