"""The parts of a pipeline, from Python: `train_async`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="the extra `train`")

from holdfast.embedded.model.files import TINY
from holdfast.engine.connect import EngineAddress
from holdfast.engine.running.run_plan import NO_CODE, plan_run
from holdfast.engine.stop import Stop
from holdfast.journal import open_journal
from holdfast.pipeline import PipelineSettings, train_async
from holdfast.pipeline.parts import roll_out
from holdfast.records.errors import UsageError, WaitTimedOut
from holdfast.rollout.processors.processor import as_processor
from holdfast.training.settings import TrainerSettings, TrainingSettings
from support.records import make_tasks

TASKS = [{"id": f"t{n}", "prompt": f"What is {n} + 2?"} for n in range(4)]
STEPS = 2
SMALL = TrainingSettings(groups=2, samples=2, trainer=TrainerSettings(steps=STEPS))


async def solve(t: Any) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)


def score(trajectory: Any) -> float:
    return float(len(trajectory.reply) % 2)


@pytest.mark.timeout(300)
def test_rollouts_and_training_in_one_process(tmp_path: Path) -> None:
    journal, lines = tmp_path / "journal.db", list[str]()

    async def body() -> list[Any]:
        report = await train_async(
            solve,
            tasks=TASKS,
            out=tmp_path / "out",
            model=TINY,
            journal=str(journal),
            name="first",
            scorer=score,
            settings=SMALL,
            pipeline=PipelineSettings(max_staleness=1),
            report=lines.append,
        )
        assert report.steps == STEPS
        opened = open_journal(str(journal))
        try:
            run = await opened.find_run("first")
            assert run is not None
            return list(await opened.versions(run))
        finally:
            await opened.close()

    names = [version.name for version in asyncio.run(body())]
    assert names == [f"step-{step}" for step in range(STEPS + 1)]
    assert any(line.startswith("weights: holdfast") for line in lines), lines


async def test_what_cannot_be_paced_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="staleness"):
        await train_async(
            solve,
            tasks=TASKS,
            out=tmp_path / "out",
            model=TINY,
            journal=str(tmp_path / "journal.db"),
            name="first",
            scorer=score,
            settings=SMALL,
            pipeline=PipelineSettings(max_staleness=1000),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_rollouter_whose_trainer_never_begins_ends_and_says_who_owes_the_run(tmp_path):
    async def body() -> None:
        async with open_journal(str(tmp_path / "journal.db")) as journal:
            await roll_out(
                plan_run(
                    "first", tasks=make_tasks("a"), processor=as_processor(solve), rollout=NO_CODE
                ),
                journal=journal,
                model=TINY,
                folder=tmp_path,
                address=EngineAddress(urls=("http://127.0.0.1:9",), patience=0.2),
                report=lambda line: None,
                stop=Stop(),
            )

    with pytest.raises(
        WaitTimedOut, match="until the trainer begins run 'first': start its trainer"
    ):
        asyncio.run(body())
