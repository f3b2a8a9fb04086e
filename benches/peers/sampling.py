"""The number of calls in a sample, and the pause between two samples."""

import time

# Min duration of a sample, in seconds.
SAMPLE = 0.01

# Pause between samples: the threads of a contender's pool may spin after its last call (those of ONNX
# Runtime for 40 milliseconds) and would take a core from the next contender.
PAUSE = 0.06


def timed(call, calls):
    """Microseconds of one call, the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls


def seconds_of_one(timer):
    once = 1e-6 * timer(1)
    # A fast call is tried several times, because the first calls of a pool wake its threads.
    return once if once > 10 * SAMPLE else 1e-6 * min(timer(5) for _ in range(3))


class Contender:
    """The timer of a call: microseconds per call, by the number of calls."""

    def __init__(self, timer):
        self.timer = timer
        seconds = max(seconds_of_one(timer), 1e-7)
        self.calls = max(1, round(SAMPLE / seconds))
        # The same number of calls runs before the clock starts: the first ones wake the contender's
        # threads, and the system may take a while to give each a core of its own. For a long call
        # this makes no difference.
        self.warms_up = seconds < 5 * SAMPLE
        self.seconds = PAUSE + self.calls * seconds * (1 + self.warms_up)

    def sample(self):
        time.sleep(PAUSE)
        if self.warms_up:
            self.timer(self.calls)
        return self.timer(self.calls)


def rounds(contenders, most, seconds):
    """The number of rounds that fit in this many seconds: 3 to `most`."""
    return min(max(int(seconds / sum(contender.seconds for contender in contenders)), 3), most)
