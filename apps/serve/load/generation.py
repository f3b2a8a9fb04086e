"""Streaming clients of a decoder: many at a time, each answer held against the same alone. See load.py."""

import asyncio
import json
import os
import shutil
import threading
import time

import http1

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def with_template(folder, path):
    """The folder, with a chat template if it has none, as `assets/decoder`; a GGUF file as it is."""
    names = ("chat_template.jinja", "tokenizer_config.json")
    if not os.path.isdir(folder) or any(os.path.exists(os.path.join(folder, name)) for name in names):
        return folder
    os.makedirs(path, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(os.path.join(folder, name), path)
    with open(os.path.join(path, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(TEMPLATE)
    return path


def requests(texts, count=64):
    """Chats and completions of 16 to 79 tokens, greedy and by seeds."""

    def body(index):
        text = " ".join(texts[index % len(texts)].split()[: 4 + 3 * (index % 20)])
        common = {"max_tokens": 16 + index, "stream": True, "seed": index, "temperature": (index % 3) / 2, "top_p": 0.95}
        if index % 2:
            messages = [{"role": "user", "content": text}]
            return "/v1/chat/completions", common | {"messages": messages, "logprobs": True}
        return "/v1/completions", common | {"prompt": text, "logprobs": 1}

    return [http1.request(*body(index)) for index in range(count)]


def content(events):
    """What does not name the answer, and the number of its tokens."""
    choices = [event["choices"][0] for event in events]
    logged = [choice["logprobs"] or {} for choice in choices]
    tokens = sum(len(part.get("content") or part.get("tokens") or []) for part in logged)
    return json.dumps(choices), tokens


async def ask(connection, request):
    """Status, the content of a streamed answer, its tokens, and the time to its first event."""
    start, first, events = time.monotonic(), None, []
    status, parts = await connection.stream(request)
    if status != 200:
        return status, b"".join([part async for part in parts]), 0, 0.0
    text = b""
    async for part in parts:
        first = first or time.monotonic() - start
        text += part
    *lines, done, _ = text.decode().split("\n\n")
    if done != "data: [DONE]":
        return 0, done, 0, 0.0
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    if any("error" in event for event in events):
        return 0, lines[-1], 0, 0.0
    return status, *content(events), first


class Run(http1.Run):
    """What streaming clients saw: `times` are those to the first event."""

    def __init__(self, clients):
        super().__init__(clients)
        self.tokens = 0

    def figures(self):
        return super().figures() | {"tokens_per_second": round(self.tokens / self.seconds, 1)}


def load(port, all_requests, expected, clients, seconds):
    """Streams for that long; an answer other than the one expected is a fault."""

    async def client(run, number, end):
        async with http1.Connection(port) as connection:
            index = number * 5
            while time.monotonic() < end:
                index = (index + 1) % len(all_requests)
                status, body, tokens, first = await ask(connection, all_requests[index])
                if status == 429:
                    run.refused += 1
                    await asyncio.sleep(0.01)
                elif status != 200 or body != expected[index]:
                    run.faults.append(f"stream {index}: status {status}, {body[:200]!r}")
                else:
                    run.times.append(first)
                    run.tokens += tokens

    async def all_clients():
        run, start = Run(clients), time.monotonic()
        ends = (client(run, number, start + seconds) for number in range(clients))
        results = await asyncio.gather(*ends, return_exceptions=True)
        run.seconds = time.monotonic() - start
        run.faults += [repr(result) for result in results if result is not None]
        return run

    return asyncio.run(all_clients())


def alone(port, all_requests):
    """The content of the answer to each request, one after the other."""

    async def each():
        contents = []
        async with http1.Connection(port) as connection:
            for request in all_requests:
                status, body, *_ = await ask(connection, request)
                if status != 200:
                    raise SystemExit(f"a single stream: expected status 200, got {status}: {body[:500]!r}")
                contents.append(body)
        return contents

    return asyncio.run(each())


def under_load(server, all_requests, expected, clients, seconds):
    """The run of many clients, and the memory meanwhile."""
    memory, done = [], threading.Event()

    def watch():
        while not done.wait(seconds / 60):
            memory.append(server.resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run = load(server.port, all_requests, expected, clients, seconds)
    done.set()
    watcher.join()
    return run, memory
