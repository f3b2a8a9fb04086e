"""Many threads that call one layer at once, against one process per core: the two choices of a
server. Microseconds per call are those of all callers together."""

import tempfile

from linear import Linear
from process import Process

CALLERS = 8
SHAPE = (16, 768, 768)
SECONDS = 0.2


class Concurrency:
    def __init__(self, ours, path, threads):
        case = Linear(*SHAPE)
        # Each process on a thread of its own, without a pool.
        self.alone = [Process(path, 1) for _ in range(threads)]
        self.ours = ours
        with tempfile.TemporaryDirectory() as folder:
            for process in (ours, *self.alone):
                process.load(case, folder)
        self.name = f"{case.name} by {CALLERS} threads"

    def together(self):
        return self.call([self.ours], CALLERS)

    def apart(self):
        return self.call(self.alone, 1)

    def call(self, processes, threads):
        for process in processes:
            process.send(op="concurrent", contender="ours", threads=threads, seconds=SECONDS)
        return 1 / sum(1 / process.receive()["us"] for process in processes)

    def close(self):
        for process in self.alone:
            process.close()
