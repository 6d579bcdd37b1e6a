"""Writes the journal of a large run that was killed, in seconds for each 10,000 trajectories.

One trajectory is sampled and recorded as usual. All others get copies of its records through the
journal: whole ones are settled, and the last ones have one turn each. So the journal is as a kill
leaves it, and `holdfast run` continues the run.
"""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import holdfast
from holdfast.engine.open_run import open_run
from holdfast.journal.process import this_process
from holdfast.journal.types import Lease
from holdfast.records.history import History
from holdfast.records.run import RunSpec
from holdfast.records.samples.summary import summarize
from holdfast.records.step import Generated, Record
from holdfast.records.task import tasks_digest
from holdfast.records.trajectory import Status
from holdfast.rollout.processors.processor import fingerprint_of
from holdfast.tasks.read import read_tasks

ROLLOUT = """
import holdfast

async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for _ in range(3):
        await t.generate(max_tokens=32)
"""
TURNS = 3
AT_ONCE = 256
RUN = "bench"


async def write_journal(url: str, folder: Path, finished: int, unfinished: int) -> None:
    """Writes `agent.py`, `tasks.jsonl` and `journal.db` into the folder."""
    (folder / "agent.py").write_text(ROLLOUT)
    with (folder / "tasks.jsonl").open("w") as file:
        for number in range(finished + unfinished):
            file.write(f'{{"id": "{number}", "prompt": "count"}}\n')
    sys.path.insert(0, str(folder))
    from agent import rollout  # type: ignore[import-not-found]

    whole = await _records(url, folder, rollout)
    begun = whole[: next(at for at, each in enumerate(whole) if isinstance(each, Generated)) + 1]
    tasks = read_tasks(folder / "tasks.jsonl")
    spec = RunSpec(
        RUN, 1, "fake", holdfast.Sampling(), 1, fingerprint_of(rollout), "", "bytes",
        tasks_digest(tasks),
    )  # fmt: skip
    async with holdfast.open_journal(folder / "journal.db") as journal:
        run = await open_run(journal, spec, tasks)
        del tasks
        worker = await journal.join(run, this_process(), lease_seconds=30.0, share=False)
        numbers = itertools.count()

        async def write(lease: Lease, records: Sequence[Record], *, is_whole: bool) -> None:
            if is_whole:
                history = History(records)
                lease.summary = summarize(history)
                await journal.append(lease, records, status=history.status, settled=True)
            else:
                await journal.append(lease, records, status=Status.RUNNING)

        while claims := await journal.claim(worker, groups=AT_ONCE):
            await journal.heartbeat(worker)
            wholes = [next(numbers) < finished for _ in claims]
            await asyncio.gather(
                *(
                    write(claim.open[0], whole if is_whole else begun, is_whole=is_whole)
                    for claim, is_whole in zip(claims, wholes, strict=True)
                )
            )
        await journal.leave(worker)


async def _records(url: str, folder: Path, rollout: object) -> list[Record]:
    """Returns the records of one trajectory that was sampled."""
    policy = holdfast.EnginePolicy(url, "fake")
    async with holdfast.open_journal(folder / "one.db") as journal:
        await holdfast.run(
            rollout, tasks=[{"id": "0", "prompt": "count"}], policy=policy, journal=journal,
            name=RUN, seed=1, sampling=holdfast.Sampling(),
        )  # fmt: skip
        run = await journal.find_run(RUN)
        assert run is not None
        [row] = await journal.trajectories(run)
        records = await journal.history(row.id)
    await policy.aclose()
    return records


if __name__ == "__main__":
    url, folder, finished, unfinished = sys.argv[1:]
    asyncio.run(write_journal(url, Path(folder), int(finished), int(unfinished)))
