"""Random requests, and what has to be true of every response."""

import asyncio
import contextlib
import random

import msgspec

from support.gateway.counter import (
    BODIES,
    CHAT,
    COMPLETIONS,
    COUNT,
    MODELS,
    Reply,
    exchange,
    request,
)

AT_ONCE, LARGEST = 40, 100_000
SECRETS = ("canary-in-a-header", "canary-in-a-key")
OWNERS = {"alpha": 0.25, "bravo": 0.75, "nobody": 0.99}
"""The reward that each of them says."""
TAKE, TOOLS, MCP = "/trajectories", "/tools", "/mcp"
PATHS = (
    *(*BODIES, *BODIES, COUNT, MODELS, f"{MODELS}/x", "/complete", TAKE, "/health", "/metrics"),
    *(TOOLS, f"{TOOLS}/x", MCP, "/-/owns", "/-/take", "/"),
)
READ = (MODELS, f"{MODELS}/x", "/health", "/metrics", "/")
ODD_PATHS = ("/..", "//", "/%2e%2e/complete", "?a=b", "/%00", "%ff", "/t/", "#", ";", "/\xe9")
ODD = (None, True, -1, 1e308, 10**30, "", "\x00", "x" * 3000, [], {}, [[]], {"type": "x"}, [None])
MANNERS = ("waits", "large", "half", "slow", "leaves", "reads little")
MANNER_WEIGHTS = (88, 3, 2, 3, 2, 2)
ODD_HEADERS = {
    "Content_Type": ("application/json", "text/plain", "multipart/form-data", "\xff"),
    "Content_Encoding": ("gzip", "deflate", "br", "identity"),
    "Expect": ("100-continue", "something"),
    "anthropic_version": ("2023-06-01", ""),
    "x_stainless_retry_count": ("0", "1", "many"),
    "idempotency_key": ("one", "two"),
    "Upgrade": ("websocket", "h2c"),
    "Accept": ("text/html",),
}


class Fuzz:
    """Makes requests from a seed. `keys`: by owner, the keys that it may use; `early`: how many
    come before the first that says that its agent is done."""

    def __init__(self, seed: int, keys: dict[str, list[str]], *, early: int):
        self._random = random.Random(seed)
        self._keys = keys
        self._made, self._early = 0, early

    def request(self) -> bytes:
        some = self._random
        owner = some.choice(["alpha", "alpha", "bravo", "bravo", "nobody"])
        plain, key = some.choice(PATHS), some.choice(self._keys[owner])
        self._made += 1
        if plain == "/complete" and self._made < self._early:
            plain = CHAT  # Nothing is sampled after it.
        path, body = plain, self._body(plain, owner)
        headers = {"X_Secret": SECRETS[0], "Cookie": f"session={SECRETS[0]}"}
        for name in some.sample(sorted(ODD_HEADERS), some.choice((0, 0, 0, 1, 2))):
            headers[name] = some.choice(ODD_HEADERS[name])
        if some.random() < 0.3:
            path = f"/t/{key}{path}"
        else:
            headers.update(some.choice(({"Authorization": f"Bearer {key}"}, {"x_api_key": key})))
        if some.random() < 0.1:
            path += some.choice(ODD_PATHS)
        method = "GET" if plain in READ else "POST"
        if some.random() < 0.1:
            method = some.choice(("GET", "POST", "HEAD", "PUT", "OPTIONS", "FOO"))
        raw = request(method, path, body, **headers)
        return self._bent(raw) if some.random() < 0.1 else raw

    def _body(self, path: str, owner: str) -> bytes:
        some = self._random
        if path == "/complete":
            return msgspec.json.encode({"reward": OWNERS[owner]})
        requests = dict(BODIES.get(path, BODIES[CHAT]))
        text = f"{owner} canary-in-a-body-{some.randrange(300):03}"
        if "messages" in requests:
            requests["messages"] = [{"role": "user", "content": text}]
        else:
            name = "prompt" if path == COMPLETIONS else "input"
            requests[name] = list(text.encode()) if path == COMPLETIONS else text
        requests["stream"] = some.random() < 0.4
        if some.random() < 0.4:
            names = [
                *requests,
                "n",
                "tools",
                "temperature",
                "stop",
                "max_tokens",
                "logprobs",
                "new",
            ]
            requests[some.choice(names)] = some.choice(ODD)
        encoded = msgspec.json.encode(requests)
        return self._bent(encoded) if some.random() < 0.2 else encoded

    def large(self) -> bytes:
        """Too much of something: of the body, said beforehand or not, of a header, of headers."""
        key = self._random.choice(self._keys["alpha"])
        headers, body = {"Authorization": f"Bearer {key}"}, b"x" * (LARGEST + 1)
        match self._random.randrange(4):
            case 0:
                return request("POST", CHAT, body, **headers)
            case 1:
                raw = request("POST", CHAT, **headers, Transfer_Encoding="chunked")
                raw = raw.replace(b"Content-Length: 0\r\n", b"")
                return raw + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
            case 2:
                return request("POST", CHAT, b"{}", **headers, X_Long="x" * 20_000)
            case _:
                many = {f"x_{number}": "y" for number in range(300)}
                return request("POST", CHAT, b"{}", **headers, **many)

    def manner(self) -> str:
        """How a client behaves: most wait for their answer."""
        return self._random.choices(MANNERS, MANNER_WEIGHTS)[0]

    def _bent(self, raw: bytes) -> bytes:
        some, bent = self._random, bytearray(raw)
        for _ in range(some.randrange(1, 6)):
            place = some.randrange(len(bent))
            match some.randrange(3):
                case 0:
                    bent[place] = some.randrange(256)
                case 1:
                    del bent[place : place + some.randrange(1, 20)]
                case _:
                    bent[place:place] = some.randbytes(some.randrange(1, 20))
            bent = bent or bytearray(b"\0")
        return bytes(bent)


async def rude(port: int, raw: bytes, manner: str) -> Reply | None:
    """One that does not send all, or does not wait for all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw[: len(raw) - 5] if manner in ("half", "slow") else raw)
        await writer.drain()
        if manner == "slow":
            return Reply(await asyncio.wait_for(reader.read(), 20))
        if manner == "reads little":
            await asyncio.wait_for(reader.read(20), 20)
        return None
    finally:
        # At once: the other side finds the connection reset.
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def sent(port: int, fuzz: Fuzz, how_many: int) -> list:
    results = []
    for _ in range(how_many):
        manner = fuzz.manner()
        raw = fuzz.large() if manner == "large" else fuzz.request()
        try:
            if manner in ("half", "slow", "leaves", "reads little"):
                if (reply := await rude(port, raw, manner)) is not None and reply.status:
                    results.append((raw, reply))
                continue
            reply = await exchange(port, raw)
            results.append((raw, Reply(reply.body) if reply.status == 100 else reply))
        except ConnectionResetError:
            # It closed while we still sent.
            continue
    return results
