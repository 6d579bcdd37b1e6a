"""Routed experts, from the engine to the trainer's format: each token's, once."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import holdfast
from holdfast.convert import load_experts, to_slime, to_verl
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.history import History
from holdfast.testing import FakeEngine, Fault, FaultKind
from holdfast.testing.fake_engine.wires.experts import expert_at

LAYERS, TOP_K, EXPERTS = 3, 2, 300
MODEL = (LAYERS, TOP_K, EXPERTS)
SAMPLING = {"max_tokens": 12, "routed_experts": True}


async def solve(t: holdfast.Rollout) -> float:
    t.add(*t.task.messages)
    await t.generate()
    t.add(holdfast.user("and now?"))
    await t.branch(_reply, _reply)
    return 1.0


async def _reply(t: holdfast.Rollout) -> None:
    await t.generate()


async def plain(t: holdfast.Rollout) -> float:
    t.add(*t.task.messages)
    for _ in range(3):
        await t.generate()
        t.add(holdfast.user("go on"))
    return 1.0


def roll_out(path: Path, url: str, rollout=solve, **more):
    settings = more.pop("settings", {}) | {"max_retry": 0}
    return holdfast.run_sync(
        rollout,
        tasks=[{"id": "one", "prompt": "go"}, {"id": "two", "prompt": "go again"}],
        policy=url,
        journal=path,
        name="run",
        samples=2,
        sampling=SAMPLING,
        renderer=ByteRenderer(),
        settings=settings,
        **more,
    )


def loaded(path: Path):
    async def read():
        journal = holdfast.open_journal(path, read_only=True)
        samples = [sample async for sample in holdfast.samples(journal, "run")]
        experts = await load_experts(journal, "run")
        assert (await load_experts(path, "run")).keys() == experts.keys()
        records = 0
        run = await journal.find_run("run")
        async for _, history in journal.histories(run):
            for step in History(history).generations:
                assert step.experts is not None
                records += step.experts.end - step.experts.start
        await journal.close()
        return samples, experts, records

    return asyncio.run(read())


def seams(path: Path) -> int:
    async def count() -> int:
        journal = holdfast.open_journal(path, read_only=True)
        run = await journal.find_run("run")
        histories = [History(records) async for _, records in journal.histories(run)]
        await journal.close()
        return sum(len(step.seams) for history in histories for step in history.generations)

    return asyncio.run(count())


def expected(tokens: int) -> np.ndarray:
    axes = np.meshgrid(range(tokens), range(LAYERS), range(TOP_K), indexing="ij")
    return np.vectorize(expert_at)(*axes, experts=EXPERTS)


@pytest.mark.parametrize("dialect", ["vllm", "vllm-scale-out", "sglang"])
def test_every_token_but_the_last_has_its_experts(tmp_path, dialect):
    path = tmp_path / "holdfast.db"
    with FakeEngine(mean_length=6, dialect=dialect, experts=MODEL) as engine:
        assert all(reward == 1.0 for reward in roll_out(path, engine.url).rewards)
    samples, experts, records = loaded(path)
    assert len(samples) == 8, "two branches of each"
    (groups,) = [to_slime(samples, experts=experts, layers=LAYERS)]
    rows = [row for group in groups for member in group for row in member]
    for sample, row in zip(samples, rows, strict=True):
        rollout_routed_experts = row["rollout_routed_experts"]
        assert rollout_routed_experts.shape == (len(sample.token_ids) - 1, LAYERS, TOP_K)
        assert np.array_equal(rollout_routed_experts, expected(len(sample.token_ids) - 1))
    tokens = {id(s): len(s.token_ids) for s in samples}
    assert records < sum(tokens.values()), "what branches share is recorded once"


def test_they_are_recorded_once_for_each_token(tmp_path):
    path = tmp_path / "holdfast.db"
    with FakeEngine(mean_length=6, experts=MODEL) as engine:
        assert all(reward == 1.0 for reward in roll_out(path, engine.url, plain).rewards)
    samples, _, records = loaded(path)
    assert records == sum(len(sample.token_ids) - 1 for sample in samples)


def test_verl_has_them_at_their_tokens(tmp_path):
    path = tmp_path / "holdfast.db"
    with FakeEngine(mean_length=6, experts=MODEL) as engine:
        assert all(reward == 1.0 for reward in roll_out(path, engine.url, plain).rewards)
    samples, experts, _ = loaded(path)
    batch = to_verl(samples, experts=experts).tensors
    routed_experts = batch["routed_experts"]
    assert routed_experts.shape == (*batch["input_ids"].shape, LAYERS, TOP_K)
    assert routed_experts.dtype == np.int16
    for row, mask in zip(routed_experts, batch["attention_mask"], strict=True):
        real = row[mask.astype(bool)]
        assert np.array_equal(real[:-1], expected(len(real) - 1))
        assert not real[-1].any()
        assert not row[~mask.astype(bool)].any()


@pytest.mark.parametrize("dialect", ["vllm-scale-out", "sglang"])
def test_a_reply_that_was_interrupted_has_them_of_all_its_tokens(tmp_path, dialect):
    path = tmp_path / "holdfast.db"
    faults = [Fault(FaultKind.STREAM_CUT, after=3)]
    with FakeEngine(mean_length=8, dialect=dialect, experts=MODEL, faults=faults) as engine:
        result = roll_out(path, engine.url, plain, settings={"partial_tokens": 2})
    assert result.rewards == [1.0] * 4
    samples, experts, _ = loaded(path)
    assert seams(path), "some were interrupted"
    for sample in samples:
        rows = experts[sample.trajectory, sample.branch].reshape(-1, LAYERS, TOP_K)
        assert np.array_equal(rows, expected(len(sample.token_ids) - 1))


async def test_they_are_off_by_default(tmp_path, monkeypatch):
    monkeypatch.setitem(SAMPLING, "routed_experts", False)
    path = tmp_path / "holdfast.db"
    with FakeEngine(mean_length=6, experts=MODEL) as engine:
        assert all(reward == 1.0 for reward in roll_out(path, engine.url, plain).rewards)
    journal = holdfast.open_journal(path, read_only=True)
    run = await journal.find_run("run")
    async for _, history in journal.histories(run):
        assert all(step.experts is None for step in History(history).generations)
    experts = await load_experts(journal, "run")
    await journal.close()
    assert (experts) == {}


def test_an_engine_that_gives_none_is_named(tmp_path):
    with FakeEngine(mean_length=6) as engine:
        result = roll_out(tmp_path / "holdfast.db", engine.url, plain)
    assert result.rewards == [None] * 4
    assert "--enable-return-routed-experts" in str(result[1])
    with (
        FakeEngine(mean_length=6, dialect="fireworks") as engine,
        pytest.raises(holdfast.HoldfastError, match="routed experts"),
    ):
        roll_out(tmp_path / "other.db", engine.url, plain)


def test_what_is_not_whole_is_refused(tmp_path):
    path = tmp_path / "holdfast.db"
    with FakeEngine(mean_length=6, dialect="sglang", experts=MODEL) as engine:
        assert all(reward == 1.0 for reward in roll_out(path, engine.url, plain).rewards)
    samples, experts, _ = loaded(path)
    with pytest.raises(UsageError, match="give layers="):
        to_verl(samples, experts=experts)
    key = (samples[0].trajectory, 0)
    with pytest.raises(NotTrainable, match="not recorded for all"):
        to_verl(samples, experts={**experts, key: experts[key][:-1]}, layers=LAYERS)
    with pytest.raises(NotTrainable, match="not recorded for all"):
        to_slime(samples, experts={}, layers=LAYERS)
