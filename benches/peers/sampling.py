"""How often a contender is called for a sample, and what lies between two samples."""

import time

# A sample lasts at least so long, in seconds.
SAMPLE = 0.01

# Between samples: threads of one contender's pool may spin after its last call, those of ONNX
# Runtime for 40 milliseconds, and would take a core from the next.
PAUSE = 0.06


def timed(call, calls):
    """Microseconds of one call, the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls


def seconds_of_one(timer):
    once = 1e-6 * timer(1)
    # Several tries of a fast one: the first calls of a pool have to wake its threads up.
    return once if once > 10 * SAMPLE else 1e-6 * min(timer(5) for _ in range(3))


class Contender:
    """What `timer` times: microseconds of a call, given how many."""

    def __init__(self, timer):
        self.timer = timer
        seconds = max(seconds_of_one(timer), 1e-7)
        self.calls = max(1, round(SAMPLE / seconds))
        # As many calls again before the clock runs: the first ones wake the contender's threads
        # up, and the system may take a while to give each a core of its own. A long call does
        # not notice.
        self.warms_up = seconds < 5 * SAMPLE
        self.seconds = PAUSE + self.calls * seconds * (1 + self.warms_up)

    def sample(self):
        time.sleep(PAUSE)
        if self.warms_up:
            self.timer(self.calls)
        return self.timer(self.calls)


def rounds(contenders, most, seconds):
    """Rounds that take so many seconds: `most` at most, three at least."""
    return min(max(int(seconds / sum(contender.seconds for contender in contenders)), 3), most)
