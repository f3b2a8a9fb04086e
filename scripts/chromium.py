"""Headless Chromium for the checks of pages. CHROMIUM names another browser; .ci/run installs one."""

import os
import shutil
import sys


def command(*arguments):
    """The command line of the browser; its console goes to standard error."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        sys.exit(f"{sys.argv[0]}: no chromium; apt-get install chromium, or set CHROMIUM")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               "--enable-logging=stderr", "--log-level=0"]
    return [browser, *options, *arguments]


def console(log):
    """The lines of the log that a page has written, or that say what could not be loaded."""
    return [line for line in log.splitlines() if "CONSOLE" in line or "ERR_" in line]
