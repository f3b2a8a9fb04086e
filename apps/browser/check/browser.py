"""A page in headless Chromium, served by this process, which waits for what the page posts."""

import functools
import http.server
import json
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from chromium import command, console  # noqa: E402


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves folders under prefixes, and documents; `POST` goes to a queue."""

    folders, documents, posted = {}, {}, None

    def translate_path(self, path):
        path = path.split("?")[0]
        for prefix, folder in self.folders.items():
            below = pathlib.PurePosixPath(path.removeprefix(prefix))
            if path.startswith(prefix) and not below.is_absolute() and ".." not in below.parts:
                return str(folder / below)
        return str(ROOT / "no such file")

    def do_GET(self):
        document = self.documents.get(self.path)
        if document is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def do_POST(self):
        self.posted.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def end_headers(self):
        # An origin of its own has a clock of 5 instead of 100 microseconds.
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_):
        pass


def run(page, folders, documents, seconds):
    """What the page posts within some seconds, and the lines of its console."""
    posted = queue.Queue()
    of_run = {"folders": folders, "documents": documents, "posted": posted}
    handler = functools.partial(type("Run", (Handler,), of_run))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryFile("w+") as log,
        tempfile.TemporaryDirectory() as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}{page}"
        browser = subprocess.Popen(
            command(f"--user-data-dir={profile}", url), stdout=subprocess.DEVNULL, stderr=log
        )
        try:
            result = posted.get(timeout=seconds)
        except queue.Empty:
            result = None
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
        log.seek(0)
        written = console(log.read())
    if result is None:
        sys.exit("\n".join([f"{page}: no answer within {seconds} s", *written[:20]]))
    return result, written
