"""A client of HTTP/1.1 that takes little of the processor which it shares with the server."""

import asyncio
import json
import time


def request(path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Connection:
    """One connection, kept open."""

    def __init__(self, port):
        self.port = port

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def ask(self, request):
        """Status and body."""
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        start = head.index(b"content-length:") + 15
        length = int(head[start : head.index(b"\r\n", start)])
        return status, await self.reader.readexactly(length)

    async def stream(self, request):
        """Status, and the parts of a body that comes in chunks, or whole."""
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" not in head:
            start = head.index(b"content-length:") + 15
            length = int(head[start : head.index(b"\r\n", start)])
            return int(head[9:12]), self.whole(length)
        return int(head[9:12]), self.chunks()

    async def whole(self, length):
        yield await self.reader.readexactly(length)

    async def chunks(self):
        while length := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(length)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)


class Run:
    """What a number of clients saw."""

    def __init__(self, clients):
        self.clients = clients
        self.times = []
        self.refused = 0
        self.faults = []
        self.seconds = 0.0

    @property
    def rate(self):
        return len(self.times) / self.seconds

    def percentile(self, percent):
        ranked = sorted(self.times)
        if not ranked:
            return float("nan")
        return 1e3 * ranked[min(len(ranked) - 1, len(ranked) * percent // 100)]

    def figures(self):
        return {
            "clients": self.clients,
            "seconds": round(self.seconds, 2),
            "requests": len(self.times),
            "refused": self.refused,
            "faults": len(self.faults),
            "per_second": round(self.rate, 1),
            "p50_ms": round(self.percentile(50), 2),
            "p99_ms": round(self.percentile(99), 2),
        }


def load(port, requests, expected, clients, seconds):
    """Asks for that long, each client one request after the other.

    An answer is a fault unless it has status 200 and the bytes expected of its request, or status 429;
    with no bytes expected, any answer of status 200 will do.
    """

    async def client(run, number, end):
        async with Connection(port) as connection:
            index = number * 7
            while (start := time.monotonic()) < end:
                index = (index + 1) % len(requests)
                status, body = await connection.ask(requests[index])
                if status == 429:
                    run.refused += 1
                    await asyncio.sleep(0.01)
                elif status != 200 or (expected and body != expected[index]):
                    run.faults.append(f"request {index}: status {status}, {body[:200]!r}")
                else:
                    run.times.append(time.monotonic() - start)

    async def all_clients():
        run = Run(clients)
        start = time.monotonic()
        results = await asyncio.gather(
            *(client(run, number, start + seconds) for number in range(clients)), return_exceptions=True
        )
        run.seconds = time.monotonic() - start
        run.faults += [repr(result) for result in results if result is not None]
        return run

    return asyncio.run(all_clients())


def answers(port, requests):
    """The body of the answer to each request, one after the other."""

    async def ask():
        bodies = []
        async with Connection(port) as connection:
            for request in requests:
                status, body = await connection.ask(request)
                if status != 200:
                    raise SystemExit(f"a single request: expected status 200, got {status}: {body[:500]!r}")
                bodies.append(body)
        return bodies

    return asyncio.run(ask())
