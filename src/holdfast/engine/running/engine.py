"""The engine works through a run until every trajectory is settled or the run is stopped.

The engine owns every task that it starts. It may finish, be stopped, or fail. In each case, it
leaves no task behind, every append that it began is durable or refused, and the leases are given
back.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence

from msgspec import Struct, structs

from holdfast import crashpoint
from holdfast.clock import Clock, SystemClock
from holdfast.engine.guards.crash_suspects import Slot, Slots, Suspects
from holdfast.engine.guards.loop_block import LoopBlock, sleep_real_time, watch_loop
from holdfast.engine.guards.processor_setup import clean_up, set_up
from holdfast.engine.guards.spending import Spending
from holdfast.engine.progress.counters import Progress
from holdfast.engine.running.attempt import FATAL, TrajectoryRunner
from holdfast.engine.running.forks import find_beginnings
from holdfast.engine.running.reuse import Source, find_sources, read_source
from holdfast.engine.scoring.outdated import outdated_verdicts
from holdfast.engine.scoring.retry import open_for_retry
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.scoring.settle import Member, Scoring, tries_spent
from holdfast.engine.settings import ScoringPolicy, Settings
from holdfast.engine.stop import Stop
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Claim, Cut, Lease, Worker
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import HoldfastError, JournalError, RunStopped
from holdfast.records.failure import as_exception
from holdfast.records.history import History
from holdfast.records.run import RecordedCommand, Run
from holdfast.records.samples.summary import summarize
from holdfast.records.step import Record
from holdfast.records.view import TrajectoryView
from holdfast.rollout.processors.processor import RolloutProcessor
from holdfast.rollout.replay.current_code import enter_trajectory
from holdfast.rollout.replay.run_context import RunContext
from holdfast.rollout.replay.speaker import Speaker
from holdfast.rollout.threads.contain import in_background
from holdfast.worlds.running.worlds import Worlds

CLAIM_AHEAD = 64
STAND_BY_SECONDS = 1.0
_log = logging.getLogger("holdfast")


class Ending(Struct, frozen=True):
    """How a run ended."""

    stopped: str
    """Why the run stopped early; "" if it worked through everything that it could claim."""
    cuts: tuple[Cut, ...]
    fatal: BaseException | None
    loop_blocks: tuple[LoopBlock, ...] = ()
    """The lines that blocked the event loop."""
    spent: bool = False
    """Whether a spending limit stopped the run."""


class TrajectoryCancelled(HoldfastError):
    """Something in this process cancelled a trajectory's task. Only the engine may do that."""


class _Group:
    """The members of one claim that are being worked on."""

    def __init__(self, claim: Claim):
        self.claim = claim
        self.waiting = len(claim.open)
        self.members: list[Member] = []


class Engine:
    """The engine of one run in one worker. Use it once."""

    def __init__(
        self,
        *,
        run: Run,
        journal: Journal,
        policy: Policy,
        renderer: Renderer,
        processor: RolloutProcessor,
        scorer: Scorer | None = None,
        settles: bool = True,
        settings: Settings | None = None,
        clock: Clock | None = None,
        progress: Progress | None = None,
        stop: Stop | None = None,
        reopen_failed: bool = False,
        lost_versions: Collection[str] = (),
        command: RecordedCommand | None = None,
        on_joined: "Callable[[Worker], Awaitable[None]] | None" = None,
        worlds: Worlds | None = None,
    ):
        """Without a scorer, outcomes are settled as they are.

        With `settles=False`, outcomes stay open for a later scoring (`score_late`). Trajectories
        that began with weights of one of `lost_versions` start over.
        """
        assert settles or scorer is None, "a scorer settles what it scores"
        self._run = run
        self._journal = journal
        self._policy = policy
        self._processor = processor
        self._settings = settings or Settings()
        self._clock = clock or SystemClock()
        self._progress = progress or Progress()
        self._progress.seconds_down = lambda: policy.seconds_down
        self._reopen_failed = reopen_failed
        self._command = command
        self._on_joined = on_joined
        self.stop = stop or Stop()
        self._cuts: list[Cut] = []
        self._loop_blocks: tuple[LoopBlock, ...] = ()
        self._slots = Slots(self._settings.concurrency)
        # Finished trajectories wait for their scores outside of the slots, but their number is
        # bounded.
        self._unsettled = asyncio.Semaphore(2 * self._settings.concurrency + CLAIM_AHEAD)
        self._suspects = Suspects(self.stop)
        self._spending = Spending(self._settings, self.stop, is_shared=self._settings.join)
        self._buffer: deque[tuple[_Group, Lease]] = deque()
        self._cancels = False
        self._sealed = True
        self._sources: dict[int, Source] = {}
        self._scoring = (
            Scoring(
                scorer,
                self._scoring_policy(),
                journal,
                self._clock,
                on_record=self._spending.take,
                patience=self._settings.patience,
                is_spent=lambda: self.stop.spent,
            )
            if scorer
            else None
        )
        self._worlds = worlds or Worlds(journal, run)
        context = RunContext(
            spec=run.spec,
            journal=journal,
            speaker=Speaker(processor.wrap_policy(policy), renderer),
            clock=self._clock,
            worker=str(this_process()),
            on_divergence=self._settings.on_divergence,
            lost_versions=frozenset(lost_versions),
            partial_tokens=self._settings.partial_tokens,
            stop=self.stop.event,
            on_record=self._recorded,
            on_cut=self._cuts.append,
            worlds=self._worlds,
        )
        self._runner = TrajectoryRunner(
            context, processor, settings=self._settings, settles=scorer is None and settles
        )
        self._settles = settles

    async def work(self) -> Ending:
        """Joins the run, works, and leaves. Raises only errors that it cannot recover from."""
        worker = await self._journal.join(
            self._run,
            this_process(),
            lease_seconds=self._settings.lease_seconds,
            share=self._settings.join,
        )
        try:
            scoring = self._scoring
            async with contextlib.nullcontext() if scoring is None else scoring.scorer.in_use():
                if self._on_joined is not None:
                    await self._on_joined(worker)
                if self._reopen_failed:
                    await open_for_retry(self._journal, self._run)
                if scoring is not None and not self._run.spec.training:
                    await self._judge_anew(scoring.scorer)
                await self._spending.read(self._journal, self._run)
                # Without work, the processor is not set up, because it may start a browser.
                if await self._has_work() and not self.stop.requested:
                    if self._command is not None and self._command != self._run.spec.command:
                        await self._journal.annotate_run(self._run, command=self._command)
                    await self._work(worker)
                is_over = self.stop.spent and not await self._has_work()
        finally:
            await self._leave(worker)
            await self._close_worlds()
        # The replies in flight at the limit may have been the last ones.
        reason, spent = ("", False) if is_over else (self._why_stopped(), self.stop.spent)
        cuts = tuple(self._cuts)
        return Ending(reason, cuts, self.stop.fatal, self._loop_blocks, spent)

    async def _judge_anew(self, scorer: Scorer) -> None:
        """Opens verdicts again if the scorer would ask another judge for them today."""
        policy = self._scoring_policy()
        outdated = await outdated_verdicts(self._journal, self._run, scorer, policy)
        if outdated and (number := await self._journal.rescore(self._run, outdated)):
            _log.warning(
                "%s: the scorer makes another judge than before; %d of its verdicts are given anew",
                self._run.spec.name,
                number,
            )

    def _why_stopped(self) -> str:
        """Returns why the run stopped. For a spending limit, the text includes the usage of
        calls that were in flight.
        """
        reached = self._spending.reached() if self.stop.spent else ""
        return reached or self.stop.reason

    def _scoring_policy(self) -> ScoringPolicy:
        """Returns the scoring policy.

        Verdicts cost money as replies do. Under a spending limit, at most `concurrency` scores are
        therefore computed at the same time.
        """
        policy, settings = self._settings.scoring, self._settings
        most = settings.concurrency if self._spending.is_limited else policy.concurrency
        return structs.replace(policy, concurrency=min(policy.concurrency, most))

    def _recorded(self, record: Record) -> None:
        self._progress.record(record)
        self._spending.take(record)

    async def _has_work(self) -> bool:
        """Returns whether any trajectory is still open, in this worker or another one, or may
        be admitted later. Updates the progress.
        """
        now = await self._journal.progress(self._run)
        self._progress.total = now.planned
        self._progress.done_before = now.settled - self._progress.done
        self._progress.failed_before = now.failed - self._progress.failed
        self._sealed = now.sealed
        return not now.is_over

    async def _work(self, worker: Worker) -> None:
        others = self._spending.watch(self._journal, self._run)
        await self._read_rewards()
        helpers = (self._beat(worker), self._watch_deadline(), others)
        try:
            async with in_background(*helpers, name="heartbeat and deadline"):
                await set_up(self._processor, self.stop)
                with watch_loop() as watch:
                    try:
                        self._sources = await self._find_sources()
                        await self._worlds.prepare()
                        await self._trajectories(worker)
                    finally:
                        self._loop_blocks = watch.found
        finally:
            await clean_up(self._processor, self.stop)

    async def _find_sources(self) -> dict[int, Source]:
        if (origin := self._run.spec.origin) is not None:
            return {**await find_beginnings(self._journal, self._run, origin)}
        groups = self._scoring is not None and self._scoring.scorer.is_group
        return {**await find_sources(self._journal, self._run, scores_groups=groups)}

    async def _leave(self, worker: Worker) -> None:
        try:
            await self._journal.leave(worker)
        except JournalError as error:
            # The leases end by themselves. The first reason for stopping matters more than this
            # error.
            self.stop.fail(error)

    async def _close_worlds(self) -> None:
        try:
            await self._worlds.close()
        except JournalError as error:
            self.stop.fail(error)

    # --- admission

    async def _trajectories(self, worker: Worker) -> None:
        running: set[asyncio.Task[None]] = set()
        admission = asyncio.create_task(self._admit(worker, running), name="admission")
        try:
            await self.stop.wait_or(admission)
            if not self.stop.requested:
                await admission
                await self._until_done(running)
        except BaseException as error:
            self.stop.fail(error)
            raise
        finally:
            admission.cancel()
            await asyncio.wait({admission})
            await self._wind_down(running)
        if not admission.cancelled() and admission.exception() is not None:
            await admission

    async def _until_done(
        self, running: "set[asyncio.Task[None]]", event: asyncio.Event | None = None
    ) -> None:
        """Returns when all trajectories are done, or when a stop is requested (or `event` is
        set).
        """
        if running:
            await self.stop.cancels(_all_of(running), name="all trajectories", event=event)

    async def _wind_down(self, running: "set[asyncio.Task[None]]") -> None:
        """Lets running trajectories reach their next step, then cancels the rest and waits for
        their end.
        """
        if self.stop.fatal is None and self.stop.spent:
            # Replies in flight at a spending limit are paid for, so they may take their time.
            await self._until_done(running, self.stop.hurried)
        # If the user or a scorer stops the run, the replies in flight may still succeed.
        if running and (self.stop.fatal is None or self.stop.in_scoring):
            await asyncio.wait(set(running), timeout=self._settings.grace)
        self._cancels = True
        for task in list(running):
            task.cancel()
        if running:
            await asyncio.wait(set(running))
        # Trajectories that wait for others of their group do not run either.
        self._progress.running = 0

    async def _admit(self, worker: Worker, running: "set[asyncio.Task[None]]") -> None:
        while not self.stop.requested:
            await self._unsettled.acquire()
            await self._slots.acquire()
            try:
                await self._policy.ready()
                await self._worlds.ready()
                groups = await self._next(worker) or await self._wait_for_work(worker)
            except FATAL as error:
                self.stop.fail(error)
                return
            if groups is None:
                return
            task = asyncio.create_task(self._trajectory(*groups), name=f"{groups[1].key}")
            running.add(task)
            task.add_done_callback(running.discard)
            crashpoint.reach("engine.admitted")

    async def _next(self, worker: Worker) -> tuple[_Group, Lease] | None:
        if not self._buffer:
            ahead = min(CLAIM_AHEAD, self._most_to_claim) // self._run.spec.samples
            claims = await self._journal.claim(worker, groups=max(1, ahead))
            for claim in claims:
                group = _Group(claim)
                self._buffer.extend((group, lease) for lease in claim.open)
        return self._buffer.popleft() if self._buffer else None

    @property
    def _most_to_claim(self) -> int:
        """Returns how many trajectories to claim.

        A worker that shares the run claims no more than it can begin now, so that other workers can
        run the rest. One slot is already held for the first claimed trajectory.
        """
        settings = self._settings
        return self._slots.free + 1 if settings.join else settings.concurrency

    async def _wait_for_work(self, worker: Worker) -> tuple[_Group, Lease] | None:
        """Waits for work that is admitted later, and claims it. A worker that shares the run also
        takes over the work that another worker gives back, or held when it died.

        Returns None when every trajectory is settled and the run is sealed. Without sharing,
        returns None as soon as the run is sealed. Also returns None after `idle` seconds without
        work, and when a stop is requested.
        """
        clock = asyncio.get_running_loop().time
        poll = min(STAND_BY_SECONDS, worker.lease_seconds / 3)
        due, idle_since = clock() + poll, clock()
        while not self.stop.requested and (self._settings.join or not self._sealed):
            idle_since = clock() if self._progress.running else idle_since
            if self._settings.idle is not None and clock() - idle_since >= self._settings.idle:
                return None
            seen, planned = self._journal.changes.count, self._progress.total
            if not await self._has_work():
                return None
            if self._progress.total > planned or clock() >= due:
                if (groups := await self._next(worker)) is not None:
                    return groups
                due = clock() + poll
            await self._journal.changes.wait(seen, timeout=max(0.0, due - clock()))
        return None

    # --- one trajectory

    async def _trajectory(self, group: _Group, lease: Lease) -> None:
        """Rolls out one trajectory, or reuses its records, and scores it. Its errors do not reach
        other trajectories."""
        enter_trajectory(lease.key)
        self._progress.started()
        slot, is_rolled_out = Slot(self._slots), False
        try:
            history = await self._reuse(lease) or await self._runner.load(lease)
            failures = 0
            if history.finished is None:
                async with self._suspects.turn(history.deaths, slot):
                    history = await self._runner.run(lease, group.claim.task, history)
            elif history.scoring_failures:
                failures = tries_spent(await self._journal.history(lease.id))
            if history.worlds:
                await self._worlds.release(lease)
            slot.give_up()
            group.members.append(Member(lease, group.claim.task, history, failures))
            crashpoint.reach("engine.finished")
            is_rolled_out = True
            if self.stop.in_scoring:
                raise RunStopped("nothing can be scored now")
            await self._score(group)
        except RunStopped:
            self._progress.stopped()
        except FATAL as error:
            self.stop.fail(error, in_scoring=is_rolled_out)
            self._progress.stopped()
        except asyncio.CancelledError:
            self._progress.stopped()
            if not self._cancels:  # Otherwise the trajectory would be missing without a message.
                self.stop.fail(
                    TrajectoryCancelled(f"code in this process cancelled the task of {lease.key}")
                )
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # This is a bug in Holdfast: stop and show it, rather than lose a group.
            self.stop.fail(as_exception(error))
            self._progress.stopped()
        finally:
            slot.give_up()
            self._unsettled.release()

    async def _reuse(self, lease: Lease) -> History | None:
        """Copies existing records of the trajectory into this run, and returns their history. The
        records come from the same trajectory in another run, or are the beginning of a fork.
        Returns None if there are no such records."""
        source = None if lease.next_seq else self._sources.pop(lease.id, None)
        if source is None:
            return None
        records = await read_source(self._journal, source, at=self._clock.now())
        if not records:
            return None
        history = History(records)
        is_over = history.finished is not None
        settled = is_over and self._settles and (self._scoring is None or bool(history.scored))
        lease.summary = summarize(history) if settled else None
        status = history.status if is_over else None
        await self._journal.append(lease, records, status=status, settled=settled or None)
        crashpoint.reach("engine.reused")
        return history

    async def _score(self, group: _Group) -> None:
        """Scores the member that just finished. With a group scorer, scores the group after its
        last member.
        """
        member = group.members[-1]
        group.waiting -= 1
        if self._scoring is None:
            if self._settles and not member.lease.settled:
                # The trajectory was finished under a scorer that the run no longer has.
                member.lease.summary = summarize(member.history)
                await self._journal.append(member.lease, (), settled=True)
            return self._note([member])
        if not self._scoring.scorer.is_group:
            group.members.pop()
            scored = [member] if member.is_unscored else []
            return self._note([member], settled=await self._scoring.settle(scored))
        if group.waiting == 0:
            valid = [member for member in group.members if member.is_unscored]
            others = await self._settled_members(group) if valid else ()
            self._note(group.members, settled=await self._scoring.settle(valid, others))
        return None

    def _note(self, members: Sequence[Member], *, settled: bool = True) -> None:
        """Counts the members as done. If `settled` is false, the members will be scored later."""
        if not settled:
            for _ in members:
                self._progress.stopped()
            return
        self._progress.settled([member.history for member in members])
        for member in members:
            self._progress.rewarded(member.lease.key.task, member.history.reward)
        progress, most = self._progress, self._settings.max_failures
        has_more = not self._sealed or progress.done_before + progress.done < progress.total
        if most is not None and progress.failed >= most and has_more:
            self.stop.request(
                f"{progress.failed} failed for good: max_failures ({most}) is reached"
            )

    async def _settled_members(self, group: _Group) -> list[TrajectoryView]:
        """Returns the group's members that were settled before. A group scorer compares the new
        members with them."""
        reused = [each for each in group.members if each.lease.settled and each.history.reused]
        return [each.view for each in reused] + [
            TrajectoryView(
                row.key,
                group.claim.task,
                History(await self._journal.history(row.id)),
                id=row.id,
            )
            for row in group.claim.settled
            if row.status.is_outcome
        ]

    # --- in the background

    async def _read_rewards(self) -> None:
        """Reads the rewards of trajectories that were settled before, if the mean is shown."""
        if self._progress.done_before and self._progress.shows_rewards:
            for task, reward in await self._journal.rewards(self._run):
                self._progress.rewarded(task, reward)

    async def _beat(self, worker: Worker) -> None:
        while True:
            await sleep_real_time(worker.lease_seconds / 3)
            try:
                await self._journal.heartbeat(worker)
            except JournalError as error:
                return self.stop.fail(error)

    async def _watch_deadline(self) -> None:
        if self._settings.run_deadline is None:
            return
        await sleep_real_time(self._settings.run_deadline)
        self.stop.request(f"the run's deadline of {self._settings.run_deadline:g} s is over")


async def _all_of(running: "set[asyncio.Task[None]]") -> None:
    await asyncio.wait(set(running))
