"""A small training run that can be killed at any commit: `python ledger_workload.py FOLDER PLAN`.

It feeds a stream epoch by epoch, rolls it out, trains on it by two consumers (one asks for batches
of a step, one takes groups first and names the step afterwards), and keeps checkpoints. Started
again, it goes on. At its end it writes what everything came to, and the kind of each write.
"""

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from holdfast.journal.process import this_process
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Batch, Consumer
from holdfast.records.epochs import EpochStream
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Run
from holdfast.records.trajectory import Status
from holdfast.testing import crash_points
from support.records import make_tasks, settle_one, spec

STEPS = 4
GROUPS = 2
PER_STEP = 3
RESTORED = 2
"""The streaming consumer's step whose checkpoint is restored before it was committed."""
DATA = EpochStream(make_tasks(*"abcde"), seed=3)


class Trainer:
    """One consumer and its checkpoint."""

    def __init__(self, folder: Path, name: str):
        self.name = name
        self.file = folder / f"{name}.json"
        self.step, self.trained = 0, {}
        if self.file.exists():
            self.step, self.trained = json.loads(self.file.read_text())
        self.lease: Consumer

    def save(self, step: int, names: list[str]) -> None:
        self.step, self.trained = step, self.trained | dict.fromkeys(names, step)
        aside = self.file.with_suffix(".new")
        aside.write_text(json.dumps([self.step, self.trained]))
        os.replace(aside, self.file)

    def of_last_step(self) -> list[str]:
        return [name for name, step in self.trained.items() if step == self.step]


def names_of(batch: Batch) -> list[str]:
    return [group[0].key.task for group in batch.groups]


def is_uninformative(name: str) -> bool:
    return name.startswith("b")


class Training:
    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.journal = SqliteJournal(folder / "journal.db")
        self.kinds: list[str] = []
        self.batches = Trainer(folder, "batches")
        self.stream = Trainer(folder, "stream")
        self.run: Run

    async def write(self, kind: str, work):
        self.kinds.append(kind)
        return await work

    async def begin(self) -> None:
        run = await self.journal.find_run("run")
        if run is None:
            policy = GroupPolicy(at_least=2)
            made = self.journal.create_run(spec(samples=2, group=policy), [], sealed=False)
            run = await self.write("create_run", made)
        self.run = run
        for trainer in (self.batches, self.stream):
            subscribed = self.journal.subscribe(
                run, trainer.name, this_process(), lease_seconds=600
            )
            trainer.lease = await self.write("subscribe", subscribed)
            await self.restore(trainer)

    async def restore(self, trainer: Trainer) -> None:
        """To its checkpoint, also where that was not committed."""
        kind, trained = "rewind", None
        if trainer is self.stream and trainer.trained:
            kind, trained = "rewind groups", trainer.trained
        restored = self.journal.rewind(trainer.lease, trainer.step, trained=trained)
        await self.write(kind, restored)

    async def commit(self, trainer: Trainer) -> None:
        kind, groups = "commit", None
        if trainer is self.stream:
            kind, groups = "commit groups", trainer.of_last_step()
        await self.write(kind, self.journal.commit(trainer.lease, trainer.step, groups=groups))

    async def roll_out(self, step: int) -> None:
        tasks = DATA.draw(0, step * PER_STEP)  # All of them: admitting again is not an error.
        await self.write("admit", self.journal.admit(self.run, tasks))
        joined = self.journal.join(self.run, this_process(), lease_seconds=600, share=False)
        worker = await self.write("join", joined)
        for claim in await self.write("claim", self.journal.claim(worker, groups=99)):
            status = Status.FAILED if claim.task.id.startswith("d") else Status.COMPLETED
            for lease in claim.open:
                await self.write("append", settle_one(self.journal, lease, status=status))
                self.kinds.append("append")  # Two records.
        await self.write("leave", self.journal.leave(worker))

    async def publish(self, step: int) -> None:
        digest = hashlib.sha256(json.dumps([step, self.batches.trained]).encode()).hexdigest()
        published = self.journal.publish_version(
            self.run, f"step-{step}", step=step, digest=digest, consumer=self.batches.lease
        )
        await self.write("publish_version", published)

    async def train_on_a_batch(self, step: int) -> bool:
        """False at the end of the stream."""
        lease, reserved = self.batches.lease, None
        while reserved is None or any(map(is_uninformative, names_of(reserved))):
            names = [] if reserved is None else names_of(reserved)
            if dull := [name for name in names if is_uninformative(name)]:
                dismissed = self.journal.dismiss(lease, dull, reason="uninformative")
                await self.write("dismiss", dismissed)
            reserved = await self.write(
                "next_batch", self.journal.next_batch(lease, step, groups=GROUPS)
            )
        if not reserved.groups:
            return not reserved.ended
        self.batches.save(step, names_of(reserved))
        await self.commit(self.batches)
        return not reserved.ended

    async def train_on_the_stream(self) -> bool:
        taken = await self.write("take", self.journal.take(self.stream.lease, groups=1))
        if taken.groups:
            self.stream.save(self.stream.step + 1, names_of(taken))
            if self.stream.step == RESTORED:
                await self.restore(self.stream)
            else:
                await self.commit(self.stream)
        return not taken.ended

    async def train(self) -> None:
        await self.begin()
        for step in range(1, STEPS + 1):
            await self.roll_out(step)
            if step > self.batches.step:
                await self.publish(step - 1)
                await self.train_on_a_batch(step)
            while self.stream.step < step and await self.train_on_the_stream():
                pass
        for write in ("seal", "unseal", "seal"):
            await self.write(write, getattr(self.journal, write)(self.run))
        step = STEPS + 1
        while await self.train_on_a_batch(max(step, self.batches.step + 1)):
            pass
        while await self.train_on_the_stream():
            pass
        for trainer in (self.batches, self.stream):
            await self.write("unsubscribe", self.journal.unsubscribe(trainer.lease))

    async def outcome(self) -> dict[str, object]:
        ledgers = {
            trainer.name: msgspec.to_builtins(await self.journal.ledger(self.run, trainer.name))
            for trainer in (self.batches, self.stream)
        }
        return {
            "ledgers": ledgers,
            "trained": [self.batches.trained, self.stream.trained],
            "versions": msgspec.to_builtins(await self.journal.versions(self.run)),
            "progress": msgspec.to_builtins(await self.journal.progress(self.run)),
        }


async def main(folder: Path) -> None:
    training = Training(folder)
    await training.train()
    outcome = await training.outcome()
    await training.journal.close()
    (folder / "outcome.json").write_text(json.dumps(outcome, sort_keys=True))
    (folder / "kinds.json").write_text(json.dumps(training.kinds))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        crash_points.arm(sys.argv[2])
    asyncio.run(main(Path(sys.argv[1])))
