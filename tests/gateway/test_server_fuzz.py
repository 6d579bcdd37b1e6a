"""Thousands of requests that nobody would send: none breaks the gateway, writes to a trajectory
that is not its own, or gets a secret told."""

import asyncio
import gc
import logging
import os
import random
import re
import time

from aiohttp import web

from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.keys import Bearer, Keys
from holdfast.records.message import user
from holdfast.records.task import Task
from support.gateway.counter import (
    Counter,
    exchange,
    opened,
    request,
    until,
)
from support.gateway.fuzz import AT_ONCE, LARGEST, OWNERS, SECRETS, TAKE, Fuzz, sent
from support.rollout.stage import Oracle, TrajectoryUnderTest

REQUESTS = 10_000 if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1" else 2_000
WORDS = re.compile(rb"canary-in-a-body-\d\d\d")
"""What a body holds may be quoted, to whoever sent it and to nobody else."""


def stale_keys(counter: Counter) -> list[str]:
    theirs = Keys().make(Bearer("run/alpha/0", 1, 0))
    mine = counter.gateway._keys.make(Bearer("run/alpha/0", 1, 0))
    return [theirs, mine, SECRETS[1], f"hf-{SECRETS[1]}", "", "\xff", "hf-", mine[:-3]]


async def attacked(seed: int):
    limits = GatewayLimits(body=LARGEST, body_seconds=0.2, idle_seconds=0.2)

    async def take(context: RequestContext) -> web.StreamResponse:
        return await context.send(b'{"taken": %d}' % len(await context.body()))

    options = {"limits": limits, "endpoints": {TAKE: take}}
    async with opened(task="alpha", **options) as (alpha, single, first):
        task = Task(id="bravo", messages=(user("do it"),))
        bravo = Counter(alpha.gateway, TrajectoryUnderTest(Oracle(), task=task))
        async with bravo.attempt() as (two, second):
            stale = stale_keys(alpha)
            keys = {"alpha": [first.key], "bravo": [second.key], "nobody": stale}
            fuzz = Fuzz(seed, keys, early=REQUESTS * 3 // 4)
            share = REQUESTS // AT_ONCE
            results = await asyncio.gather(*(sent(alpha.port, fuzz, share) for _ in range(AT_ONCE)))
            final = await exchange(alpha.port, request("GET", "/metrics"))
            for subject, owner, trajectory in (
                (alpha.subject, "alpha", single),
                (bravo.subject, "bravo", two),
            ):
                check_owner(subject, owner, trajectory)
            await until(lambda: not alpha.gateway._listener.in_flight)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return [pair for pairs in results for pair in pairs], final, (first.key, second.key)


def check_owner(subject: TrajectoryUnderTest, owner: str, trajectory) -> None:
    assert trajectory.reward in (None, OWNERS[owner])
    assert not trajectory.broken.is_set()
    others = OWNERS.keys() - {owner}
    # Prompts of token ids may be bent into what is not text.
    prompts = [
        bytes(token for token in item.prompt if token < 256) for item in subject.oracle.requests
    ]
    texts = [prompt.decode("utf-8", "replace") for prompt in prompts]
    assert sum(owner in text for text in texts) > 50
    assert not [text for text in texts if any(other in text for other in others)]


def may_be_quoted(reply: bytes, secret: bytes, raw: bytes) -> bool:
    """A path in which nothing can be found may be quoted, to whoever sent it; one with a key where
    keys belong is no such path."""
    target = raw.split(b"\r\n", 1)[0]
    return secret in reply and (secret not in target or b" /t/" in target)


def nobody_keeps(kind: type, patience: float = 60.0) -> bool:
    """A thread may still be letting go of its last one."""
    until = time.monotonic() + patience
    while gc.collect() or any(type(item) is kind for item in gc.get_objects()):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_whatever_is_sent_nothing_breaks_and_no_secret_is_told(caplog):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    opened_before = len(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.DEBUG):
        results, final, keys = asyncio.run(attacked(seed))
    statuses = {reply.status for _, reply in results}
    assert {200, 400, 401, 404, 405, 408, 409, 413, 431} <= statuses
    broken = [(raw, reply.raw) for raw, reply in results if reply.status >= 500]
    assert not broken
    for raw, reply in results:
        assert set(WORDS.findall(reply.raw)) <= set(WORDS.findall(raw))
    assert "canary" not in caplog.text
    assert b"canary" not in final.raw
    for secret in (*SECRETS, *keys):
        assert not [raw for raw, reply in results if may_be_quoted(reply.raw, secret.encode(), raw)]
        assert secret.encode() not in final.raw
        assert secret not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert nobody_keeps(RequestContext), "requests are kept"
    assert len(os.listdir("/proc/self/fd")) <= opened_before
