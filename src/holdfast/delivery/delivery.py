"""`Delivery` gives the groups of a run, step by step, to a user's training loop.

Each group is delivered exactly once (I6). A batch is reserved for its step until a checkpoint that
holds the step is committed. After a kill, the loop names the step of the checkpoint that it
restored. It then receives exactly the groups that the checkpoint does not hold, in the same batches
for the same steps. A loop that takes groups before it knows their steps also names the groups that
the checkpoint holds.
"""

import asyncio
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from msgspec import Struct

from holdfast import crashpoint
from holdfast.delivery.thread import BackgroundTask, LoopThread
from holdfast.delivery.waiting import GroupWait, log_undelivered
from holdfast.engine.open_run import TRAINED_MODEL, TRAINER, is_training
from holdfast.engine.report import many
from holdfast.journal import check_journal, is_server, open_journal, shown_address
from holdfast.journal.process import this_process
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal, keep_renewing
from holdfast.journal.types import Batch, Consumer, LedgerEntry
from holdfast.records.encoding.bounds import check_characters, check_number, check_whole
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.records.samples.sample import Sample
from holdfast.training.batch import TrainingGroup, load_group

LEASE_SECONDS = 60.0
LEASE = "the lease of a Delivery"


class DeliveredBatch(Struct, frozen=True):
    """The groups of one step, with their valid members as they were sampled."""

    step: int
    groups: tuple[TrainingGroup, ...]

    @property
    def samples(self) -> list[Sample]:
        """The samples of all groups, for `holdfast.convert`."""
        return [
            sample
            for group in self.groups
            for trajectory in group.trajectories
            for sample in trajectory.samples
        ]


class Delivery:
    """Delivers the groups of a run, `groups` for each step, in the order in which they settled.

        with holdfast.Delivery("holdfast.db", "first", groups=8, checkpoint=restored) as delivery:
            for step, batch in delivery:
                train(batch.samples)
                save(step)
                delivery.commit(step)

    In asynchronous code, use `async with`, `async for` and `await delivery.commit_async(step)`.
    Only one process at a time can consume a run under a name; a second process is refused while the
    first one lives. The iteration ends when the run is over and every group was delivered. Until
    then it waits for rollouts, and logs a warning (`holdfast.delivery`) if nobody works on the run.
    """

    @checks_arguments(own="journal run groups checkpoint trained wait")
    def __init__(
        self,
        journal: Journal | Path | str,
        run: str,
        *,
        groups: int,
        checkpoint: int | None = None,
        trained: Iterable[str | TrainingGroup] | None = None,
        wait: float | None = None,
        consumer: str = TRAINER,
        lease_seconds: float = LEASE_SECONDS,
    ):
        """`checkpoint` is the step of the restored checkpoint. With None, training begins, or
        continues after the last committed step. `trained`, for loops that call `take`, names the
        groups that the checkpoint holds. It must name at least the groups that were to be committed
        with the checkpoint, because a kill may have prevented that commit. `wait` limits the
        seconds to wait for a batch, after which `DeliveryTimeout` is raised; None means no limit. A
        `Journal` that the caller passes is not closed, and is used only in the loop that opened it
        (`async with`)."""
        check_journal(journal)
        check_whole("groups", groups, least=1)
        if wait is not None:
            check_number("wait", wait)
            if not wait >= 0:
                raise UsageError(f"wait must be 0 seconds or more, not {wait}")
        if checkpoint is not None:
            check_whole("checkpoint", checkpoint, least=0)
        self._trained = None if trained is None else _task_names("trained", trained)
        if self._trained and checkpoint is None:
            raise UsageError(
                "trained names the groups of a restored checkpoint: give its step, checkpoint=…"
            )
        self._address = journal
        self._run = run
        self._groups = groups
        self._checkpoint = checkpoint
        self._wait = wait
        self._name = consumer
        self._lease_seconds = lease_seconds
        self._thread: LoopThread | None = None
        self._journal: Journal | None = None
        self._consumer: Consumer | None = None
        self._renewing: BackgroundTask | None = None
        self._stack = AsyncExitStack()
        self._next = 0
        self._asking = asyncio.Lock()
        """Held while a caller gets the next step, so that each step is given once."""
        self._names_steps = trained is not None
        """Whether the loop takes groups and names their step later."""
        self._taken: set[str] = set()
        """The tasks of groups that were taken, but that no commit has named yet."""
        self._has_ended = False

    # --- for loops that are not asynchronous

    def __enter__(self) -> Self:
        if not isinstance(self._address, Path | str):
            raise UsageError(
                "a Delivery in `with` opens its journal itself, in a thread of its own: give the "
                "path, or use `async with`"
            )
        thread = LoopThread("holdfast delivery")
        try:
            thread.call(self._open())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return self

    def __exit__(self, *error: object) -> None:
        thread, self._thread = self._in_thread(), None
        thread.close(self._close())

    def __iter__(self) -> Iterator[tuple[int, DeliveredBatch]]:
        while (batch := self._in_thread().call(self.next_async())) is not None:
            yield batch.step, batch

    def commit(self, step: int, *, groups: Iterable[str | TrainingGroup] | None = None) -> None:
        """Records that a checkpoint with everything up to `step` is safe on disk. `groups` (or
        their tasks) are the groups from `take` that were trained since the last commit."""
        self._in_thread().call(self.commit_async(step, groups=groups))

    def take(self, groups: int) -> tuple[TrainingGroup, ...]:
        """Takes `groups` groups before it is known which step trains them, for loops that mix
        groups. A later `commit` names the step. A group that is split over two steps belongs to the
        commit of the later step."""
        return self._in_thread().call(self.take_async(groups))

    def dismiss(self, groups: Iterable[str | TrainingGroup], *, reason: str) -> None:
        """Marks groups (or their tasks) as never to be trained, for example because they are too
        old. The ledger keeps the reason."""
        self._in_thread().call(self.dismiss_async(groups, reason=reason))

    def ledger(self) -> list[LedgerEntry]:
        """Returns the ledger's entry of each group."""
        return self._in_thread().call(self.ledger_async())

    def _in_thread(self) -> LoopThread:
        if self._thread is None:
            raise UsageError("a Delivery is used in a `with` block (or `async with`)")
        return self._thread

    # --- for those that are

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    async def __aiter__(self) -> AsyncIterator[tuple[int, DeliveredBatch]]:
        while (batch := await self.next_async()) is not None:
            yield batch.step, batch

    async def next_async(self) -> DeliveredBatch | None:
        """Returns the batch of the next step, or None at the end of the run. Each call gives a new
        step, even before the last step is committed or while another call waits."""
        async with self._asking:
            return await self._next_batch()

    async def _next_batch(self) -> DeliveredBatch | None:
        journal, consumer = self._opened()
        step = self._next
        batch = await self._whole(
            lambda seconds: journal.next_batch(consumer, step, groups=self._groups, wait=seconds)
        )
        if not batch.groups:
            await self._end()
            return None
        crashpoint.reach("delivery.reserved")
        groups = [await load_group(journal, members) for members in batch.groups]
        self._next = step + 1
        return DeliveredBatch(step, tuple(groups))

    async def commit_async(
        self, step: int, *, groups: Iterable[str | TrainingGroup] | None = None
    ) -> None:
        journal, consumer = self._opened()
        step = self._checked(step)
        if groups is None and self._taken:
            raise UsageError(
                f"take gave {many(len(self._taken), 'group')} that no commit has named: name those "
                f"of this step, commit({step}, groups=[…]) (an empty list: none of them)"
            )
        named = () if groups is None else _task_names("groups", groups)
        crashpoint.reach("delivery.commit")
        await journal.commit(consumer, step, groups=named)
        self._taken.difference_update(named)
        crashpoint.reach("delivery.committed")

    def _checked(self, step: int) -> int:
        """Returns `step` as an int, even if it is an integer type of another library. Raises
        `UsageError` for a step that was not handed out, because its commit would also commit steps
        that were never delivered. Loops that call `take` may name any step."""
        number = operator.index(step) if hasattr(step, "__index__") else step
        if isinstance(step, bool) or not isinstance(number, int):
            raise UsageError(
                f"a step is a whole number, not {step!r:.100}: commit the step of a batch"
            )
        if not self._names_steps and not 0 <= number < self._next:
            raise UsageError(
                f"step {number} was not handed out (the last one is {self._next - 1}): commit the "
                "step of a batch (what a restored checkpoint holds is named when a Delivery is "
                "made: checkpoint, and trained for groups of take)"
            )
        return number

    async def take_async(self, groups: int) -> tuple[TrainingGroup, ...]:
        journal, consumer = self._opened()
        self._names_steps = True
        batch = await self._whole(
            lambda seconds: journal.take(consumer, groups=groups, wait=seconds)
        )
        if not batch.groups:
            await self._end()
        self._taken.update(members[0].key.task for members in batch.groups)
        return tuple([await load_group(journal, members) for members in batch.groups])

    async def dismiss_async(self, groups: Iterable[str | TrainingGroup], *, reason: str) -> None:
        journal, consumer = self._opened()
        named = _task_names("groups", groups)
        await journal.dismiss(consumer, named, reason=reason)
        self._taken.difference_update(named)

    async def ledger_async(self) -> list[LedgerEntry]:
        journal, consumer = self._opened()
        return await journal.ledger(consumer.run, consumer.name)

    async def _whole(self, request: Callable[[float], Awaitable[Batch]]) -> Batch:
        journal, consumer = self._opened()
        wait = GroupWait(journal, consumer.run, address=self._shown_address, limit=self._wait)
        while True:
            batch = await request(wait.ask_seconds)
            if batch.groups or batch.ended:
                return batch
            if self._renewing is not None:
                self._renewing.check()
            await wait.go_on()

    async def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            await log_undelivered(*self._opened())

    @property
    def _shown_address(self) -> str | None:
        address = self._address
        return shown_address(address) if isinstance(address, Path | str) else None

    # --- opening and closing

    async def _refuse_training(self, journal: Journal, run: Run) -> None:
        """Raises `UsageError` for the ledger of `holdfast train`, which only that training may
        write."""
        if self._name != TRAINER or run.spec.model != TRAINED_MODEL:
            return
        if await is_training(journal, run):
            raise UsageError(
                f"run {run.spec.name!r} is a training of `holdfast train`, which consumes it as "
                f"{TRAINER!r}: give this Delivery a name of its own, consumer=…"
            )

    async def _open(self) -> None:
        if self._journal is not None:
            raise UsageError("this Delivery is open already: leave its `with` block first")
        self._asking = asyncio.Lock()
        self._taken.clear()
        async with AsyncExitStack() as stack:
            journal = self._open_journal(stack)
            run = await run_named(journal, self._run)
            await self._refuse_training(journal, run)
            consumer = await journal.subscribe(
                run, self._name, this_process(), lease_seconds=self._lease_seconds
            )
            stack.push_async_callback(journal.unsubscribe, consumer)
            self._next = await self._restore(journal, consumer) + 1
            self._renewing = BackgroundTask(keep_renewing(journal, consumer), name=LEASE)
            stack.push_async_callback(self._renewing.end)
            self._journal, self._consumer = journal, consumer
            self._stack = stack.pop_all()

    def _open_journal(self, stack: AsyncExitStack) -> Journal:
        """Opens the journal at the given address. A journal that the caller opened stays open
        afterwards."""
        if not isinstance(self._address, Path | str):
            return self._address
        if not is_server(self._address) and not Path(self._address).is_file():
            raise UsageError(f"there is no journal at {self._address}")
        journal = open_journal(self._address)
        stack.push_async_callback(journal.close)
        return journal

    async def _restore(self, journal: Journal, consumer: Consumer) -> int:
        """Sets the ledger to the state of the restored checkpoint, and returns the checkpoint's
        step. The ledger may also move forward, if the loop was killed between the checkpoint and
        its commit."""
        committed = consumer.committed or 0
        step = committed if self._checkpoint is None else self._checkpoint
        if self._trained is None and step not in (0, committed):
            await self._check_known(journal, consumer, step)
        trained = dict.fromkeys(self._trained or (), step)
        await journal.rewind(consumer, step, trained=trained)
        return step

    async def _check_known(self, journal: Journal, consumer: Consumer, step: int) -> None:
        """Raises `UsageError` if nobody knows which groups the checkpoint of `step` holds.

        Nobody knows them if the run never handed out `step`. Untrained groups would then count as
        trained. Nobody knows them either if only the checkpoint has them and `trained` is missing.
        Trained groups would then be delivered again.
        """
        ledger = await journal.ledger(consumer.run, consumer.name)
        committed = consumer.committed or 0
        taken = [entry for entry in ledger if entry.reason == "taken" and entry.step is None]
        last = max((committed, *(entry.step or 0 for entry in ledger)))
        if step > last and not taken:
            raise UsageError(
                f"checkpoint={step}: the last step that run {self._run!r} has handed out to "
                f"{consumer.name!r} is {last}; give the step of the checkpoint that was restored, "
                "and the journal that it was trained with"
            )
        if (taken and step > committed) or all(entry.step != step for entry in ledger):
            later = [entry for entry in ledger if step < (entry.step or 0)]
            raise UsageError(
                f"checkpoint={step} was not committed, so nobody has said which of the "
                f"{many(len(taken) + len(later), 'group')} that were taken it holds: give them, "
                "trained=[…], as they were to be committed (an empty list: none of them)"
            )

    async def _close(self) -> None:
        self._opened()
        self._journal = self._consumer = self._renewing = None
        await self._stack.aclose()

    def _opened(self) -> tuple[Journal, Consumer]:
        if self._journal is None or self._consumer is None:
            raise UsageError("a Delivery is used in a `with` block (or `async with`)")
        return self._journal, self._consumer


def _task_names(what: str, groups: object) -> list[str]:
    """Returns the task names of groups, which a user gives as groups or as task names."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise UsageError(f"{what} is a list of groups, or of their tasks, not {groups!r:.100}")
    names = [group.task if isinstance(group, TrainingGroup) else group for group in groups]
    for name in names:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise UsageError(f"a group is named by its task, a text (group.task), not by a {kind}")
        check_characters("task", name)
    return list(dict.fromkeys(names))
