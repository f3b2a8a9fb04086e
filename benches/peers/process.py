"""A process of contenders: see protocol.rs and protocol.py."""

import contextlib
import json
import os
import subprocess


class Failed(Exception):
    """A process that ended, or refused a request."""


class Process:
    def __init__(self, path, threads, *arguments):
        self.name = arguments[-1] if arguments else os.path.basename(path)
        names = ("RAYON_NUM_THREADS", "CANDLE_NUM_THREADS")
        self.process = subprocess.Popen(
            [path, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {name: str(threads) for name in names},
        )

    def send(self, **request):
        self.request = request
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name} had ended before {request}") from None

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.name} ended at {self.request}")
        answer = json.loads(line)
        if answer and "error" in answer:
            raise Failed(f"{self.name}: {answer['error']} at {self.request}")
        return answer

    def ask(self, **request):
        self.send(**request)
        return self.receive()

    def load(self, case, folder):
        """Its contenders of a case, and their outputs and other outputs to check."""
        from safetensors.torch import load_file, save_file

        path, out = os.path.join(folder, "case.safetensors"), os.path.join(folder, "out.safetensors")
        save_file(case.tensors(), path)
        names = self.ask(op="load", case=case.facts, file=path, out=out)["contenders"]
        return names, load_file(out)

    def time(self, contender, calls):
        return self.ask(op="time", contender=contender, calls=calls)["us"]

    def peak(self, kind, threads, size=0):
        """Operations or bytes per second, and the instructions used; None if it cannot measure."""
        answer = self.ask(op="peak", kind=kind, threads=threads, bytes=size)
        return (answer["rate"], answer["with"]) if answer else None

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
