"""Storage: a 60-turn trajectory against the bytes of its packed arrays and messages."""

import asyncio
import tempfile
from pathlib import Path

import msgspec
from result import Result

import holdfast
from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.tokens import count
from holdfast.records.history import History
from holdfast.testing import FakeEngine

TURNS = 60
NEW_TOKENS = 250


async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for turn in range(TURNS):
        await t.generate()
        # The rest of the turn's 250 new tokens: what the environment says.
        t.add(f"{turn:03} " + "o" * (NEW_TOKENS - 100 - 30))


async def trajectory(url: str, path: Path) -> tuple[int, int, int]:
    """Bytes in the file, bytes of the contents, tokens in the last prompt."""
    journal = holdfast.open_journal(path)
    policy = holdfast.EnginePolicy(url, "fake")
    samples = 20
    try:
        empty = path.stat().st_size
        await holdfast.run(
            rollout, tasks=[{"id": "t", "prompt": "go on"}], samples=samples, policy=policy,
            journal=journal, name="bench", seed=1, sampling=holdfast.Sampling(max_tokens=100),
        )  # fmt: skip
        contents, tokens = await _contents(journal)
    finally:
        await policy.aclose()
        await journal.close()
    return (path.stat().st_size - empty) // samples, contents // samples, tokens


async def _contents(journal: Journal) -> tuple[int, int]:
    run = await journal.find_run("bench")
    assert run is not None
    size = tokens = 0
    async for _, records in journal.histories(run):
        for step in History(records).generations:
            size += len(step.delta) + len(step.ids) + len(step.logprobs)
            size += len(msgspec.msgpack.encode(step.message))
            size += sum(len(msgspec.msgpack.encode(message)) for message in step.added)
            tokens = max(tokens, step.keep + count(step.delta))
    return size, tokens


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(dir=".") as folder, FakeEngine(mean_length=0) as engine:
        stored, contents, tokens = asyncio.run(trajectory(engine.url, Path(folder) / "j.db"))
    detail = f"{stored:,} bytes on disk for {contents:,}, last prompt {tokens:,} tokens"
    return [
        Result(
            "storage: 60 turns on disk / packed contents", stored / contents, "×", "≤ 1.5", detail
        )
    ]
