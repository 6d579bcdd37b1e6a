"""A rollouter samples by published weights alone, whenever and however often it is started."""

import asyncio
import re

import pytest
from msgspec import structs

from holdfast.engine.connect import Connection
from holdfast.engine.running.run_plan import NO_CODE, plan_run
from holdfast.engine.stop import Stop
from holdfast.journal import open_journal
from holdfast.journal.sql.journal import keep_renewing
from holdfast.pipeline import rollouter as module
from holdfast.pipeline.engine import newest_version
from holdfast.pipeline.rollouter import Rollouter
from holdfast.policy.client import probe
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError, WaitTimedOut
from holdfast.records.samples.replica_weights import ReplicaWeights, WeightState
from holdfast.rollout.processors.processor import as_processor
from holdfast.rollout.threads.contain import end_task
from holdfast.testing import FakeEngine
from holdfast.training.settings import TrainingRecord
from support.records import consuming, make_tasks


async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)
    return 1.0


def a_plan():
    return plan_run("run", tasks=make_tasks("a"), processor=as_processor(solve), rollout=NO_CODE)


CATCHING_UP = TrainingRecord({}, is_catching_up=True)


async def note(journal, run, engine: FakeEngine, version="step-0") -> None:
    """The trainer has sent these weights, and found them right."""
    record = ReplicaWeights(engine.url, WeightState.CHECKED, "", version, engine.model)
    await journal.note_weights(run, record)


async def rolled_out(journal, engine: FakeEngine, body, *, training=None, patience=900.0) -> object:
    """What `body(run, task, stop)` returns, beside a rollouter. `training`: what the run says of
    its own."""
    plan = a_plan()
    plan = structs.replace(plan, settings=structs.replace(plan.settings, patience=patience))
    run = await journal.create_run(plan.spec, (), sealed=False)
    if training is not None:
        await journal.annotate_run(run, training=training.text)
    await journal.admit(run, plan.tasks)
    policy = EnginePolicy(engine.url, engine.model, patience=patience)
    try:
        await policy.check()
        stop, lines = Stop(), []
        rollouter = Rollouter(
            plan,
            journal=journal,
            connection=Connection(policy, ByteRenderer()),
            stop=stop,
            report=lines.append,
        )
        working = asyncio.create_task(rollouter.work(run))
        return await body(run, working, stop, lines)
    finally:
        await policy.aclose()


def test_nothing_is_sampled_by_weights_that_nobody_published(tmp_path):
    """An engine that was started before the trainer has restored its checkpoint."""

    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))

        async def body(run, working, stop, lines):
            while not lines:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert not working.done()
            assert engine.calls() == []
            assert lines == [module.WAITING]
            await journal.publish_version(run, engine_version, step=0, digest="d")
            await asyncio.sleep(0.2)
            assert engine.calls() == [], "its weights are published, and not checked"
            await note(journal, run, engine)
            await journal.seal(run)
            ending = await working
            assert (ending.fatal, ending.stopped) == (None, "")
            assert (await journal.progress(run)).is_over
            assert [call.id for call in engine.calls()] == ["holdfast-rollouter-check", "run/a/0/0"]

        try:
            await rolled_out(journal, engine, body)
        finally:
            await journal.close()

    engine_version = "step-0"
    with FakeEngine(replies=["yes"], version=engine_version, dialect="sglang") as engine:
        asyncio.run(main(engine))


def test_nothing_is_begun_while_the_trainer_trains_steps_again(tmp_path):
    """An engine may have weights of one of these steps by then, under a name that the run knows."""

    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))

        async def body(run, working, stop, lines):
            for step in range(3):
                await journal.publish_version(run, f"step-{step}", step=step, digest=str(step))
            await note(journal, run, engine)
            await asyncio.sleep(0.3)
            assert not working.done()
            assert engine.calls() == []
            caught_up = structs.replace(CATCHING_UP, is_catching_up=False)
            await journal.annotate_run(run, training=caught_up.text)
            await journal.seal(run)
            assert (await working).fatal is None
            assert (await journal.progress(run)).is_over

        try:
            await rolled_out(journal, engine, body, training=CATCHING_UP)
        finally:
            await journal.close()

    with FakeEngine(replies=["yes"], version="step-0", dialect="sglang") as engine:
        asyncio.run(main(engine))


def test_a_run_that_is_over_needs_no_weights(tmp_path):
    """Its steps were all trained again, so that no engine was given any."""

    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))
        try:
            plan = a_plan()
            run = await journal.create_run(plan.spec, ())
            policy = EnginePolicy(engine.url, engine.model)
            connection = Connection(policy, ByteRenderer())
            rollouter = Rollouter(plan, journal=journal, connection=connection, stop=Stop())
            await policy.check()
            assert (await rollouter.work(run)).stopped == ""
            assert engine.calls() == []
            await policy.aclose()
        finally:
            await journal.close()

    with FakeEngine(replies=["yes"], version="unpublished", dialect="sglang") as engine:
        asyncio.run(main(engine))


def test_an_engine_that_says_neither_its_version_nor_its_start_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_STARTED", re.compile(b"nowhere"))

    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))

        async def body(run, working, stop, lines):
            await note(journal, run, engine)
            with pytest.raises(UsageError, match="start vLLM with --enable-scale-out"):
                await working
            assert (await journal.progress(run)).settled == 0

        try:
            await rolled_out(journal, engine, body)
        finally:
            await journal.close()

    with FakeEngine(replies=["yes"], version="step-0") as engine:
        asyncio.run(main(engine))


def test_a_rollouter_that_is_sent_no_weights_ends_and_says_who_owes_them(tmp_path):
    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))

        async def body(run, working, stop, lines):
            with pytest.raises(WaitTimedOut, match=r"until the trainer sends weights.*owes them"):
                await asyncio.wait_for(working, 60)
            assert engine.calls() == []

        try:
            await rolled_out(journal, engine, body, patience=0.3)
        finally:
            await journal.close()

    with FakeEngine(replies=["yes"], version="unpublished") as engine:
        asyncio.run(main(engine))


def test_it_waits_for_a_trainer_that_trains_steps_again_only_while_the_steps_go_on(tmp_path):
    """One that hangs renews its lease, too."""

    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))

        async def body(run, working, stop, lines):
            trainer = await consuming(journal, run)
            for step in (1, 2, 3):
                await asyncio.sleep(1.2)
                assert not working.done()
                record = structs.replace(CATCHING_UP, caught_up_to=step)
                await journal.annotate_run(run, training=record.text)
            renewing = asyncio.create_task(keep_renewing(journal, trainer))
            with pytest.raises(WaitTimedOut, match="the trainer sends weights"):
                await asyncio.wait_for(working, 60)
            await end_task(renewing)

        try:
            await rolled_out(journal, engine, body, training=CATCHING_UP, patience=2.0)
        finally:
            await journal.close()

    with FakeEngine(replies=["yes"], version="step-0") as engine:
        asyncio.run(main(engine))


def test_it_waits_for_tasks_only_while_somebody_trains(tmp_path):
    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))

        async def body(run, working, stop, lines):
            trainer = await consuming(journal, run)
            await note(journal, run, engine)
            while (await journal.progress(run)).settled < 1:
                await asyncio.sleep(0.05)
            await asyncio.sleep(3.5)
            assert not working.done()
            await journal.unsubscribe(trainer)
            ending = await asyncio.wait_for(working, 60)
            assert isinstance(ending.fatal, WaitTimedOut)
            assert "for tasks of run 'run': nobody trains it" in str(ending.fatal)

        try:
            await rolled_out(journal, engine, body, patience=1.0)
        finally:
            await journal.close()

    with FakeEngine(replies=["yes"], version="step-0", dialect="sglang") as engine:
        asyncio.run(main(engine))


def test_one_that_waits_can_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 600.0)

    async def main(engine):
        journal = open_journal(str(tmp_path / "journal.db"))

        async def body(run, working, stop, lines):
            await asyncio.sleep(0.1)
            stop.request("enough")
            assert (await asyncio.wait_for(working, 60.0)).stopped == "enough"
            assert engine.calls() == []

        try:
            await rolled_out(journal, engine, body)
        finally:
            await journal.close()

    with FakeEngine(replies=["yes"], version="unpublished") as engine:
        asyncio.run(main(engine))


async def test_an_engine_begins_with_the_newest_version_whose_weights_are_there(tmp_path):
    address = str(tmp_path / "journal.db")
    out = tmp_path / "out"
    assert await newest_version(address, "run", folder=out) is None
    assert not (tmp_path / "journal.db").exists(), "looking makes no journal"
    journal = open_journal(address)
    try:
        run = await journal.create_run(a_plan().spec, (), sealed=False)
        assert await newest_version(address, "run", folder=out) is None
        for step in range(3):
            await journal.publish_version(run, f"step-{step}", step=step, digest=str(step))
            (out / "weights" / f"step-{step}").mkdir(parents=True)
        newest = await newest_version(address, "run", folder=out)
        assert newest == (out / "weights" / "step-2", "step-2")
        (out / "weights" / "step-2").rmdir()
        results = await newest_version(address, "run", folder=out)
        assert results is not None
        assert results[1] == "step-1"
        assert await newest_version(address, "other", folder=out) is None
    finally:
        await journal.close()
