"""`DataSource` and `generate_rollout` give slime its tasks and rollouts.

The tasks of a rollout are a pure function of its id, so that no cursor can run ahead of the trained
rollouts. The ledger reserves a batch under its id, even while slime prefetches the next batch.
`save` commits the groups that the checkpoint holds, and `load` returns the rest.
"""

from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from holdfast import crashpoint
from holdfast.convert.selection import MissingReward
from holdfast.convert.slime import is_placeholder, to_slime
from holdfast.delivery.stream import RolloutStream, StepGroup
from holdfast.delivery.thread import LoopThread, call_at_exit
from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect
from holdfast.journal import open_journal, opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer, GroupEnd, LedgerEntry
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.slime.arguments import evaluations_of
from holdfast.slime.config import (
    POST_PROCESS,
    SlimeConfig,
    config_of,
    evaluation_data,
    evaluation_sampling,
    plan_of,
    training_data,
    training_sampling,
)

Result = TypeVar("Result")
CONSUMER = "slime"


class DataSource:
    """slime's data source over a journal: `save(rollout_id)` commits, `load(rollout_id)` rewinds.

    The first `load` or rollout opens the journal. The consumer's lease is held until `close` or the
    end of the process.
    """

    def __init__(self, args: Any):
        self._args = args
        self._config = config_of(args)
        family = getattr(args, "holdfast_renderer", None)
        self._renderer = renderer_for(self._config.model_folder, family=family)
        self._sampling = training_sampling(args)
        self._tasks = training_data(args).tasks(self._renderer, self._sampling)
        shuffle = bool(getattr(args, "rollout_shuffle", False))
        self._stream_of_tasks = EpochStream(self._tasks, seed=args.rollout_seed, shuffle=shuffle)
        self._thread: LoopThread | None = None
        self._streams: dict[str, RolloutStream] = {}

    # --- what slime calls

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        raise UsageError(
            "holdfast.slime.DataSource gives its tasks to holdfast.slime.generate_rollout alone: "
            f"name that as --rollout-function-path (a rollout function wants {num_samples} prompts)"
        )

    def add_samples(self, samples: list[list[Any]]) -> None:
        """Accepts only an empty list. slime would put unfinished samples back as prompts here, but
        Holdfast continues them from the journal."""
        if samples:
            raise UsageError(
                "samples are not put back into holdfast.slime.DataSource: unfinished rollouts go "
                "on from the journal by themselves"
            )

    def save(self, rollout_id: int) -> None:
        """Commits the groups up to `rollout_id`. slime calls this method when its checkpoint is on
        disk. Raises `UsageError` for a rollout that was never given to slime, because untrained
        groups would count as trained."""
        check_whole("rollout_id", rollout_id, least=0)
        stream = self._training()
        last = max((entry.step or 0 for entry in self.ledger()), default=0) - 1
        if rollout_id > last:
            raise UsageError(
                f"save({rollout_id}): the last rollout that run {self._config.run!r} has given is "
                f"{'none' if last < 0 else last}; save a rollout that was trained"
            )
        self._call(stream.commit(rollout_id + 1))

    def load(self, rollout_id: int | None = None) -> None:
        """Rewinds to the checkpoint of `rollout_id`. The groups of later rollouts are given to
        slime again."""
        done = -1 if rollout_id is None else rollout_id
        check_whole("rollout_id", done, least=-1)
        self._call(self._check_rollouts(done + 1))
        if self._config.run in self._streams:
            self._call(self._streams[self._config.run].rewind(done + 1))
        else:
            self._training(done + 1)
            self._check_begun(done)

    def _check_begun(self, done: int) -> None:
        """Raises `UsageError` if a new training begins, but the run already has rollouts of a
        training without checkpoints. Such a training cannot continue, so these rollouts belong to
        another training."""
        if done < 0 and self._config.checkpoints is None and self.ledger():
            self.close()
            raise UsageError(
                f"run {self._config.run!r} of this journal has rollouts of a training without "
                "checkpoints (--save), and the trainer begins anew, with other weights: give "
                "another holdfast_run, or another holdfast_journal"
            )

    def __len__(self) -> int:
        return len(self._tasks)

    # --- what the rollout function calls

    def roll_out(self, rollout_id: int) -> list[StepGroup]:
        groups = self._config.groups
        first = rollout_id * groups
        tasks = self._stream_of_tasks.draw(first, groups)
        return self._call(self._training().roll_out(rollout_id + 1, tasks))

    def evaluate(self, rollout_id: int) -> dict[str, list[StepGroup]]:
        """Evaluates each data set of `--eval-prompt-data` or `--eval-config`, in a separate run
        from which nothing is trained."""
        results = {}
        for dataset in evaluations_of(self._args):
            sampling = evaluation_sampling(self._args, dataset)
            tasks = [
                structs.replace(task, id=f"{task.id}@{rollout_id}")
                for task in evaluation_data(self._args, dataset).tasks(self._renderer, sampling)
            ]
            stream = self._opened(
                f"{self._config.run}-eval-{dataset.name}",
                sampling,
                samples=dataset.n_samples_per_eval_prompt or 1,
                done=0,
            )
            results[dataset.name] = self._call(stream.roll_out(None, tasks))
        return results

    @property
    def config(self) -> SlimeConfig:
        return self._config

    def ledger(self) -> list[LedgerEntry]:
        """Returns the ledger's entry of each group."""
        return self._call(self._training().ledger())

    def close(self) -> None:
        """Gives the leases back. Open trajectories continue when the journal is opened again."""
        thread, self._thread = self._thread, None
        streams, self._streams = list(self._streams.values()), {}
        if thread is not None:
            thread.close(_close(streams))

    # --- opening

    async def _check_rollouts(self, done: int) -> None:
        """Raises `UsageError` if the checkpoint's rollouts are not in this run of this journal, or
        have another number of groups."""
        if self._config.run in self._streams:
            ledger = await self._streams[self._config.run].ledger()
        else:
            async with opened_journal(self._config.journal) as journal:
                run = await journal.find_run(self._config.run)
                if run is None:
                    return  # Opening the stream explains what this means.
                ledger = await journal.ledger(run, CONSUMER)
        groups = self._config.groups
        delivered = {entry.task: entry.step for entry in ledger if 0 < (entry.step or 0) <= done}
        gone = {entry.task for entry in ledger if entry.end is GroupEnd.DISMISSED}
        known = done * groups <= len(ledger)
        drawn = self._stream_of_tasks.draw(0, done * groups) if known else []
        expected = {task.id: n // groups + 1 for n, task in enumerate(drawn) if task.id not in gone}
        delivered = {task: step for task, step in delivered.items() if task not in gone}
        if not known or delivered != expected:
            raise UsageError(
                f"load({done - 1}): the rollouts up to there, with --rollout-batch-size {groups}, "
                f"are not those that run {self._config.run!r} has given: resume with the batch "
                "size and the journal that it began with, and from a checkpoint of it"
            )

    def _training(self, done: int | None = None) -> RolloutStream:
        """Returns the stream of the training, which is opened at its first use. If slime did not
        call `load`, training continues after the last committed rollout."""
        config = self._config
        return self._opened(config.run, self._sampling, samples=config.samples, done=done)

    def _opened(
        self, name: str, sampling: Sampling, *, samples: int, done: int | None
    ) -> RolloutStream:
        if name not in self._streams:
            plan = plan_of(
                self._args,
                name,
                sampling,
                samples=samples,
                model=self._config.checkpoints or str(self._config.model_folder),
                renderer=self._renderer.name,
            )
            stream = RolloutStream(
                plan,
                self._connect,
                journal=partial(open_journal, self._config.journal),
                consumer=CONSUMER,
                trained=name == self._config.run,
            )
            self._call(stream.open(done, begins=done == 0))
            self._streams[name] = stream
        return self._streams[name]

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._thread is None:
            self._thread = LoopThread("holdfast rollouts")
            call_at_exit(self.close)
        return self._thread.call(work)

    @asynccontextmanager
    async def _connect(
        self, journal: Journal, consumer: Consumer | None
    ) -> AsyncIterator[Connection]:
        """Connects to slime's own engines. slime itself pauses them and gives them weights."""
        address = EngineAddress(
            urls=self._config.urls, is_trained=True, remedy="name it in holdfast_policy"
        )
        async with connect(
            address,
            engines=EmbeddedEngines(lambda line: None),
            notify=lambda line: None,
            renderer=self._renderer,
        ) as connection:
            yield connection


async def _close(streams: Sequence[RolloutStream]) -> None:
    async with AsyncExitStack() as stack:
        for stream in streams:
            stack.push_async_callback(stream.close)


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> list[Any] | dict[str, dict[str, Any]]:
    """Returns groups of slime's samples, for `--rollout-function-path`. The same `rollout_id`
    always gives the same groups."""
    if not isinstance(data_source, DataSource):
        raise UsageError(
            "holdfast.slime.generate_rollout takes its tasks from holdfast.slime.DataSource: name "
            f"that as --data-source-path, not {type(data_source).__name__}"
        )
    check_whole("rollout_id", rollout_id, least=0)
    if evaluation:
        return _evaluation(data_source.evaluate(rollout_id))
    groups = data_source.roll_out(rollout_id)
    rows = slime_rows(groups, data_source.config, rollout_id=rollout_id)
    crashpoint.reach("slime.answered")
    return _as_samples(rows, groups)


def slime_rows(
    groups: Sequence[StepGroup], config: SlimeConfig, *, rollout_id: int
) -> list[list[Any]]:
    """Converts groups to slime's rows. A trajectory without a reward counts as failed. Raises
    `NotTrainable` for placeholders, groups of different sizes and several branches, unless Holdfast
    normalizes the rewards."""
    if not any(sample.reward is not None for group in groups for sample in group.samples):
        raise NotTrainable(
            f"no trajectory of rollout {rollout_id} has a reward: name a scorer (holdfast_scorer), "
            "or return the reward from the rollout"
        )
    samples = [sample for group in groups for sample in group.filled()]
    if not config.leaves_placeholders_out:
        _check_plain(groups, config)
    first = rollout_id * config.groups
    experts = {key: rows for group in groups for key, rows in group.experts.items()}
    return to_slime(
        samples,
        group_size=config.samples,
        placeholders=config.leaves_placeholders_out,
        missing_reward=MissingReward.LEAVE_OUT,
        first_group=first,
        first_index=first * config.samples,
        experts=None if config.layers is None else experts,
        layers=config.layers,
    )


def _check_plain(groups: Sequence[StepGroup], config: SlimeConfig) -> None:
    remedy = f"give slime --custom-reward-post-process-path {POST_PROCESS}"
    for group in groups:
        members = {sample.sample for sample in group.samples if sample.reward is not None}
        if len(members) < config.samples:
            raise NotTrainable(
                f"task {group.task.id!r} has {len(members)} valid trajectories with a reward of "
                f"{config.samples}, and slime's own normalization would take a placeholder into "
                f"the baseline: {remedy}, or let Holdfast refill more often"
            )
        if len(group.samples) > len(members):
            raise NotTrainable(
                f"task {group.task.id!r} has trajectories with several branches, and slime's own "
                f"normalization would take all groups as one: {remedy}"
            )


def _as_samples(rows: Sequence[Sequence[Any]], groups: Sequence[StepGroup]) -> list[list[Any]]:
    from slime.utils.types import Sample

    tasks = {group.task.id: group.task for group in groups}
    means = _mean_rewards(groups)

    def made(row: dict[str, Any]) -> Any:
        task = tasks[row["metadata"]["holdfast"]["task"]]
        reward = means[task.id] if is_placeholder(row) else row["reward"]
        return Sample.from_dict(row | _about(task, row) | {"reward": reward})

    return [
        [
            [made(row) for row in member] if isinstance(member, list) else made(member)
            for member in group
        ]
        for group in rows
    ]


def _mean_rewards(groups: Sequence[StepGroup]) -> dict[str, float]:
    """Returns the mean reward of each task. For a task without a reward, this is the mean of all
    trajectories. A placeholder gets this value, so that it does not change any mean that slime
    logs."""
    members = [{s.sample: s.reward for s in g.samples if s.reward is not None} for g in groups]
    everyone = [reward for group in members for reward in group.values()]
    return {
        group.task.id: fmean(rewards.values() if rewards else everyone or [0.0])
        for group, rewards in zip(groups, members, strict=True)
    }


def _about(task: Task, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the prompt and the label of a row. The prompt of an ABORTED placeholder is empty."""
    prompt: Any = "" if is_placeholder(row) else msgspec.to_builtins(task.messages)
    label = None if task.ground_truth is None else str(task.ground_truth)
    return {"prompt": prompt, "label": label}


def _evaluation(groups_by_name: dict[str, list[StepGroup]]) -> dict[str, dict[str, Any]]:
    """Returns the results of an evaluation. A failed trajectory has no reward and is not part of
    any mean."""
    results = {}
    for name, groups in groups_by_name.items():
        samples = [s for group in groups for s in group.samples if s.reward is not None]
        rows = [row for group in to_slime(samples) for row in group]
        made = _as_samples([rows], groups)[0]
        flat = [
            sample
            for member in made
            for sample in (member if isinstance(member, list) else [member])
        ]
        results[name] = {
            "rewards": [sample.reward for sample in flat],
            "truncated": [sample.status.value == "truncated" for sample in flat],
            "samples": flat,
        }
    return results
