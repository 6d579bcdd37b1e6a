"""`Delivery`: the groups of a run, step by step, for a training loop of one's own.

Exactly once (I6): a batch is reserved for its step, and stays so until a checkpoint that holds the
step is committed. A loop that was killed names the step of the checkpoint that it restored, and
gets exactly what that does not hold, the same batches for the same steps. A loop that takes groups
before it knows their step names, too, which of them the checkpoint holds.
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
from holdfast.journal.find_run import run_named
from holdfast.journal.journal import Batch, Consumer, Journal, LedgerEntry, keep_renewing
from holdfast.journal.process import this_process
from holdfast.records.encoding.bounds import check_characters, check_number, check_whole
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.records.samples.sample import Sample
from holdfast.training.batch import TrainingGroup, load_group

LEASE_SECONDS = 60.0
LEASE = "the lease of a Delivery"


class DeliveredBatch(Struct, frozen=True):
    """The groups of one step: their valid members, as they were sampled."""

    step: int
    groups: tuple[TrainingGroup, ...]

    @property
    def samples(self) -> list[Sample]:
        """All of them, for `holdfast.convert`."""
        return [
            sample
            for group in self.groups
            for trajectory in group.trajectories
            for sample in trajectory.samples
        ]


class Delivery:
    """The groups of a run, `groups` for each step, in the order in which they were settled.

        with holdfast.Delivery("holdfast.db", "first", groups=8, checkpoint=restored) as delivery:
            for step, batch in delivery:
                train(batch.samples)
                save(step)
                delivery.commit(step)

    Or `async with`, `async for` and `await delivery.commit_async(step)`. One process at a time
    consumes a run under a name; another one is refused while it lives. The iteration ends when the
    run is over and everything was delivered; until then, it waits for rollouts, and logs it where
    nobody works on the run (`holdfast.delivery`).
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
        """`checkpoint`: the step that the restored checkpoint holds; None: training begins, or goes
        on after the last step that was committed. `trained`, for loops that `take`: the groups that
        the checkpoint holds, at least those that were to be committed with it; a kill may have come
        before. `wait`: seconds that a batch is waited for, after which `DeliveryTimeout` is raised;
        None: no end. A journal of the caller's stays open, and is used from the loop that it was
        opened in (`async with`)."""
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
        """Held while someone gets the next step, so that each step is given once."""
        self._names_steps = trained is not None
        """It takes groups, and says later which step they are in."""
        self._taken: set[str] = set()
        """Groups that it took, and that are in no step yet."""
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
        """A checkpoint that holds everything up to `step` is safe on disk. `groups` (or their
        tasks) are those of `take` that were trained since the last one."""
        self._in_thread().call(self.commit_async(step, groups=groups))

    def take(self, groups: int) -> tuple[TrainingGroup, ...]:
        """Groups whose step is not known yet, for loops that mix them; `commit` names it. A group
        that is split over two steps is committed with the later one."""
        return self._in_thread().call(self.take_async(groups))

    def dismiss(self, groups: Iterable[str | TrainingGroup], *, reason: str) -> None:
        """Groups (or their tasks) that will not be trained: too old, say. The ledger keeps the
        reason."""
        self._in_thread().call(self.dismiss_async(groups, reason=reason))

    def ledger(self) -> list[LedgerEntry]:
        """What became of each group."""
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
        """The batch of the next step; None at the end of the run. A caller who asks before the last
        commit, or while another asks, gets the step after it."""
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
        """A commit of a step that nobody was given would skip what lies between. Loops that `take`
        name their steps themselves. Whole numbers of other libraries are taken as such."""
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
        given = self._address
        return shown_address(given) if isinstance(given, Path | str) else None

    # --- opening and closing

    async def _refuse_training(self, journal: Journal, run: Run) -> None:
        """Refuses the ledger of a training of ours, which only that training may write."""
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
        """One of the caller's stays open."""
        if not isinstance(self._address, Path | str):
            return self._address
        if not is_server(self._address) and not Path(self._address).is_file():
            raise UsageError(f"there is no journal at {self._address}")
        journal = open_journal(self._address)
        stack.push_async_callback(journal.close)
        return journal

    async def _restore(self, journal: Journal, consumer: Consumer) -> int:
        """The ledger is brought to the checkpoint, forward, too, when the kill came between the
        checkpoint and its commit."""
        committed = consumer.committed or 0
        step = committed if self._checkpoint is None else self._checkpoint
        if self._trained is None and step not in (0, committed):
            await self._check_known(journal, consumer, step)
        trained = dict.fromkeys(self._trained or (), step)
        await journal.rewind(consumer, step, trained=trained)
        return step

    async def _check_known(self, journal: Journal, consumer: Consumer, step: int) -> None:
        """Refuses a checkpoint of a step that this run never gave: untrained groups would count as
        trained. Refuses a restored checkpoint without the names of its groups, if only the
        checkpoint knows them: trained groups would come again."""
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
    """Groups as a user names them."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise UsageError(f"{what} is a list of groups, or of their tasks, not {groups!r:.100}")
    names = [group.task if isinstance(group, TrainingGroup) else group for group in groups]
    for name in names:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise UsageError(f"a group is named by its task, a text (group.task), not by a {kind}")
        check_characters("task", name)
    return list(dict.fromkeys(names))
