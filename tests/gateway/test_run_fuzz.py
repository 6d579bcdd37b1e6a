"""The same hostile requests against a whole run with its journal on disk: a trajectory that nobody
meant is as it was, and no secret is in any file."""

import asyncio
import logging
import os
import random

import aiohttp

from holdfast.gateway.agents.external import Address, ExternalRolloutProcessor
from holdfast.gateway.calls.attempt_status import NOTE_SECONDS
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.keys import Bearer, Keys
from holdfast.journal.damage.check import check
from holdfast.journal.sqlite.journal import SqliteJournal
from support.engine.local_run import LocalRun
from support.gateway.external_agents import converse, post
from support.gateway.fuzz import AT_ONCE, LARGEST, OWNERS, SECRETS, Fuzz, sent

REQUESTS = 10_000 if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1" else 800
TOKEN, SECRET = "canary-as-the-token", b"canary-as-the-keys-secret-012345"
SAMPLES = 12


class Siege:
    """Trajectories of two owners, one that nobody attacks, and who attacks them."""

    def __init__(self, place, seed: int):
        self.local = LocalRun(
            "alpha", "bravo", "bystander", samples=SAMPLES, journal=SqliteJournal(place / "j.db")
        )
        limits = GatewayLimits(body=LARGEST, body_seconds=0.2, idle_seconds=0.2)
        # Those who fire have keys of trajectories, too.
        self.processor = ExternalRolloutProcessor(
            Address(token=TOKEN), limits=limits, on_refused="accept"
        )
        self.keys: dict[str, list[str]] = {}
        self.replies: list = []
        self._random = random.Random(seed)

    async def run(self) -> None:
        engine = await self.local.engine(self.processor)
        self.run_row = await self.local.journal.find_run("run")
        self.processor.attach(self.local.journal, self.run_row, secret=SECRET)
        work = asyncio.create_task(engine.work())
        while not self.processor.url:
            await asyncio.sleep(0.01)
        try:
            async with aiohttp.ClientSession() as http:
                await self._besieged(http)
            await asyncio.wait_for(work, 60)
        finally:
            await self.local.journal.close()

    async def _besieged(self, http) -> None:
        taken = {
            name: [await self._take(http, name, sample) for sample in range(SAMPLES)]
            for name in ("alpha", "bravo", "bystander")
        }
        await converse(http, taken["bystander"][0])
        await asyncio.sleep(5 * NOTE_SECONDS)  # What its agent is known to have is noted.
        before = await self._records("bystander")
        self.keys = {name: [item["key"] for item in every] for name, every in taken.items()}
        keys = {**self.keys, "nobody": self._nobodys()}
        fuzz = Fuzz(self._random.randrange(2**32), keys, early=REQUESTS * 3 // 4)
        port = int(self.processor.url.rpartition(":")[2])
        share = REQUESTS // AT_ONCE
        results = await asyncio.gather(*(sent(port, fuzz, share) for _ in range(AT_ONCE)))
        self.replies = [pair for pairs in results for pair in pairs]
        assert await self._records("bystander") == before
        for name, every in taken.items():
            for entry in every:
                reward = OWNERS.get(name, 0.5)
                status, reply = await post(
                    http, f"{entry['bound_url']}/complete", {"reward": reward}
                )
                assert (status, reply["reward"]) == (200, reward)

    async def _take(self, http, task: str, sample: int) -> dict:
        url, wanted = f"{self.processor.url}/trajectories", {"task": task, "sample": sample}
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        status, taken = await post(http, url, {**wanted, "wait": 20}, **bearer)
        assert status == 200, taken
        return taken

    async def _records(self, task: str) -> list:
        rows = await self.local.journal.trajectories(self.run_row)
        mine = [row.id for row in rows if row.key.task == task]
        return [await self.local.journal.history(item) for item in mine]

    def _nobodys(self) -> list[str]:
        """Keys that open nothing: made up, cut, of attempts that never were, the token."""
        right, wrong = Keys(SECRET), Keys(b"x" * 32)
        names = [f"run/bystander/{sample}" for sample in range(3)]
        later = [right.make(Bearer(name, 99, 99, 99)) for name in names]
        forged = [wrong.make(Bearer(name, 1, 1, 1)) for name in names]
        odd = [right.make(Bearer("run/../x\x00/0", 1, 1)), later[0][:-2], "hf-", SECRETS[1], TOKEN]
        return [*later, *forged, *odd]


def test_a_whole_run_under_fire_records_only_what_its_owners_asked(tmp_path, caplog):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    siege = Siege(tmp_path, seed)
    with caplog.at_level(logging.DEBUG):
        asyncio.run(siege.run())
    statuses = {reply.status for _, reply in siege.replies}
    assert {200, 400, 401, 404, 409} <= statuses
    assert not [(raw, reply.raw) for raw, reply in siege.replies if reply.status >= 500]
    histories = asyncio.run(_histories(tmp_path, siege))
    for name, history in histories.items():
        owner = name.split("/")[0]
        assert history.reward == OWNERS.get(owner, 0.5)
        texts = [str(step.added) for step in history.generations]
        others = {"alpha", "bravo", "nobody"} - {owner}
        assert not [text for text in texts if any(f"{other} canary" in text for other in others)]
    assert any(history.generations for history in histories.values())
    assert not check(tmp_path / "j.db").findings
    message = b"".join(reply.raw for _, reply in siege.replies)
    recorded = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    every_key = [key for keys in siege.keys.values() for key in keys]
    for secret in (*SECRETS, TOKEN, SECRET.decode(), *every_key):
        assert secret.encode() not in recorded
        assert secret.encode() not in message
        assert secret not in caplog.text


async def _histories(place, siege):
    siege.local.journal = SqliteJournal(place / "j.db")
    try:
        return await siege.local._histories()
    finally:
        await siege.local.journal.close()
