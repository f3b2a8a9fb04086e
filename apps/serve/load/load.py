"""Loads a server, and states whether it holds: see run.sh, which calls this.

1. The `openai` package passes unchanged.
2. One client asks, one request after the other: its rate, and the bytes of each answer.
3. Many clients ask at a time: no answer but the same bytes, and 429; bounded memory; at least 1.5 times
   the requests a second of one client.
4. The same clients ask a server of the same model with FastAPI and onnxruntime's int8 (rival.py).
5. A second server generates texts with a decoder: the `openai` package, one streaming client, then many.
   Each answer has the text and the log probabilities that it has alone; memory is bounded.
6. Clients of text-embeddings-inference, and `openai` with dimensions, ask servers of small models (clients.py).

Clients, server and rival share the processor, and are not at work at the same time.
"""

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy

import clients
import compatible
import generation
import http1
import rival

LEAST_GAIN = 1.5
# Of the resident memory after a third of the time, at its end.
MOST_GROWTH = 1.1


class Server:
    """The server as a process, and its memory."""

    def __init__(self, program, model, name, *more):
        options = ["--port", "0", "--model", model, "--model-name", name, "--log-json", *more]
        self.process = subprocess.Popen([program, *options], stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            if not line.startswith("{"):
                raise SystemExit(line)
            if (log := json.loads(line)).get("message") == "listening":
                self.port = int(log["address"].rpartition(":")[2])
                break
        if self.port is None:
            raise SystemExit("the server ended before it listened")
        # Its logs must not fill the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def resident(self):
        """MB of memory."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1e3

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def texts(path, count=192):
    """Of 3 to 80 words, all different."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    return [f"{lines[i % len(lines)]} {' '.join(lines[(5 * i) % len(lines)].split()[: i % 13])} {i}" for i in range(count)]


def under_load(server, requests, expected, options):
    """The run of many clients, with the memory meanwhile."""
    memory, done = [], threading.Event()

    def watch():
        while not done.wait(options.seconds / 60):
            memory.append(server.resident())

    before = [server.metric(f"dynquant_batch_texts_{what}") for what in ("sum", "count")]
    watcher = threading.Thread(target=watch)
    watcher.start()
    run = http1.load(server.port, requests, expected, options.clients, options.seconds)
    done.set()
    watcher.join()
    after = [server.metric(f"dynquant_batch_texts_{what}") for what in ("sum", "count")]
    texts, batches = (b - a for a, b in zip(before, after))
    return run, spread(memory), texts / batches


def of_rival(requests, expected, options):
    """The runs of one client and of many against the rival, and its cosine with ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "int8.onnx")
        rival.build(options.model, path)
        program = [sys.executable, rival.__file__, options.model, path, str(port)]
        with subprocess.Popen(program) as process:
            try:
                wait_for(port, process)
                bodies = http1.answers(port, requests)
                one = http1.load(port, requests, None, 1, options.seconds / 4)
                many = http1.load(port, requests, None, options.clients, options.seconds / 2)
            finally:
                process.terminate()
    pairs = [numpy.array([json.loads(body)[0] for body in side]) for side in (expected, bodies)]
    return one, many, float((pairs[0] * pairs[1]).sum(axis=1).mean())


def wait_for(port, process):
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit("the rival ended before it listened")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the rival does not listen")


def measure(options):
    asked = texts(options.texts)
    requests = [http1.request("/embed", {"inputs": text}) for text in asked]
    server = Server(options.server, options.model, "minilm")
    try:
        checks = compatible.check(server.port, "minilm", asked[:24])
        expected = http1.answers(server.port, requests)
        one = http1.load(server.port, requests, expected, 1, options.seconds / 4)
        many, memory, batch = under_load(server, requests, expected, options)
        again = http1.answers(server.port, requests)
    finally:
        code = server.stop()
    figures = {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "openai_checks": checks,
        "one": one.figures(),
        "many": many.figures(),
        "texts_of_a_batch": round(batch, 1),
        "memory_mb": memory,
        "gain": round(many.rate / one.rate, 2),
    }
    failures = [*one.faults[:3], *many.faults[:3]]
    if again != expected:
        failures.append("answers after the load differ from those before")
    if code != 0:
        failures.append(f"the server's status: expected 0, got {code}")
    if many.rate < LEAST_GAIN * one.rate:
        failures.append(f"gain: expected at least {LEAST_GAIN}, got {figures['gain']}")
    if memory["at_the_end"] > MOST_GROWTH * memory["after_a_third"]:
        failures.append(f"memory: expected growth of at most {MOST_GROWTH}, got {memory}")
    if not options.no_rival:
        rival_one, rival_many, cosine = of_rival(requests, expected, options)
        figures["rival"] = {
            "one": rival_one.figures(),
            "many": rival_many.figures(),
            "cosine": round(cosine, 5),
            "ours_faster": round(many.rate / rival_many.rate, 2),
        }
        failures += rival_many.faults[:3]
        # Its weights have one scale a matrix, as its users have them by default: 0.96 to the float model.
        if cosine < 0.93:
            failures.append(f"cosine with the rival: expected 0.93 or more, got {cosine:.4f}")
    figures["failures"] = failures
    return figures


def measure_generation(options):
    """Streams of a decoder, by one client and by many."""
    asked = texts(options.texts)
    requests = generation.requests(asked)
    folder = generation.with_template(options.decoder, options.folder)
    # Ended texts keep theirs until it is full: soon, so that memory is at its most.
    server = Server(options.server, folder, "small", "--cache-bytes", str(24 << 20))
    try:
        checks = compatible.check_generation(server.port, "small", asked[:24])
        expected = generation.alone(server.port, requests)
        one = generation.load(server.port, requests, expected, 1, options.stream_seconds / 4)
        many, memory = generation.under_load(server, requests, expected, options.streams, options.stream_seconds)
        left = server.metric("dynquant_cache_bytes") - server.metric("dynquant_prefix_bytes")
    finally:
        code = server.stop()
    figures = {
        "openai_checks": checks,
        "one": one.figures(),
        "many": many.figures(),
        "memory_mb": spread(memory),
        "gain": round(many.tokens / many.seconds / (one.tokens / one.seconds), 2),
    }
    failures = [*one.faults[:3], *many.faults[:3]]
    if left or code:
        failures.append(f"at the end: expected no bytes of a running text and status 0, got {left} and {code}")
    if figures["memory_mb"]["at_the_end"] > MOST_GROWTH * figures["memory_mb"]["after_a_third"]:
        failures.append(f"memory of streams: expected growth of at most {MOST_GROWTH}, got {figures['memory_mb']}")
    return figures, failures


def of_clients(options):
    """The checks that each client of text-embeddings-inference passes."""
    folders = {"bert": "reference/encoders/bert", "reranker": "reference/encoders/reranker", "classifier": "bert"}
    servers = []
    try:
        for name, folder in folders.items():
            servers.append(Server(options.server, os.path.join(options.assets, folder), name))
        return clients.check(*(server.port for server in servers), texts(options.texts)[:24])
    finally:
        for server in servers:
            server.stop()


def spread(memory):
    return {
        "after_a_third": round(memory[len(memory) // 3], 1),
        "at_the_end": round(max(memory[-3:]), 1),
        "most": round(max(memory), 1),
    }


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(figures):
    """Text for a terminal."""
    parts = [embeddings_table(figures)] if "one" in figures else []
    if "generation" in figures:
        parts.append(generation_table(figures["generation"]))
    for client, checks in figures.get("clients", {}).items():
        parts.append(f"the client {client}: {checks} checks")
    return "\n\n".join(parts + [f"{os.cpu_count()} cores of {processor()}"])


def generation_table(figures):
    lines = [f"{'':<28}{'clients':>8}{'answers':>10}{'429':>6}{'tokens/s':>10}{'first p50':>13}{'p99':>11}"]
    for name, run in (("dynquant-serve, streams", figures["one"]), ("", figures["many"])):
        lines.append(
            f"{name:<28}{run['clients']:>8}{run['requests']:>10}{run['refused']:>6}{run['tokens_per_second']:>10}"
            f"{run['p50_ms']:>10} ms{run['p99_ms']:>8} ms"
        )
    memory = figures["memory_mb"]
    return "\n".join(lines + [
        "",
        f"many streams against one: {figures['gain']} times the tokens a second, each answer as alone",
        f"memory: {memory['after_a_third']} MB after a third of the time, {memory['at_the_end']} MB at its end",
        f"the openai package: {figures['openai_checks']} checks",
    ])


def embeddings_table(figures):
    rows = [("dynquant-serve, int8", figures["one"]), ("", figures["many"])]
    if "rival" in figures:
        rows += [("fastapi + onnxruntime int8", figures["rival"]["one"]), ("", figures["rival"]["many"])]
    lines = [f"{'':<28}{'clients':>8}{'requests':>10}{'429':>6}{'per s':>9}{'p50':>10}{'p99':>11}"]
    for name, run in rows:
        lines.append(
            f"{name:<28}{run['clients']:>8}{run['requests']:>10}{run['refused']:>6}{run['per_second']:>9}"
            f"{run['p50_ms']:>7} ms{run['p99_ms']:>8} ms"
        )
    memory = figures["memory_mb"]
    lines += [
        "",
        f"many clients against one: {figures['gain']} times the requests a second, {figures['texts_of_a_batch']} texts a batch",
        f"memory: {memory['after_a_third']} MB after a third of the time, {memory['at_the_end']} MB at its end",
        f"the openai package: {figures['openai_checks']} checks",
    ]
    if "rival" in figures:
        lines.append(f"against the rival: {figures['rival']['ours_faster']} times, cosine {figures['rival']['cosine']}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the program")
    parser.add_argument("--model", required=True, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--texts", required=True, help="a file of sentences")
    parser.add_argument("--seconds", type=float, default=60, help="time of the run with many clients (default 60)")
    parser.add_argument("--clients", type=int, default=200, help="clients at a time (default 200)")
    parser.add_argument("--decoder", required=True, help="the folder of a decoder")
    parser.add_argument("--folder", required=True, help="where to put that decoder with a chat template")
    parser.add_argument("--stream-seconds", type=float, default=60, help="time of the run with many streams (default 60)")
    parser.add_argument("--streams", type=int, default=32, help="streaming clients at a time (default 32)")
    parser.add_argument("--assets", required=True, help="the folder of small models")
    parser.add_argument("--only", choices=["embeddings", "generation", "clients"], help="leave out the others")
    parser.add_argument("--no-rival", action="store_true", help="leave out FastAPI with onnxruntime")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measure(options) if options.only in (None, "embeddings") else {"failures": []}
    if options.only in (None, "generation"):
        figures["generation"], failures = measure_generation(options)
        figures["failures"] += failures
    if options.only in (None, "clients"):
        figures["clients"] = of_clients(options)
    print(json.dumps(figures) if options.json else table(figures))
    for failure in figures["failures"]:
        print(f"failed: {failure}", file=sys.stderr)
    sys.exit(1 if figures["failures"] else 0)


if __name__ == "__main__":
    main()
