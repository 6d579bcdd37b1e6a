"""Processors that take rows and give rows: eval-protocol's contract, at the border of ours.

    class Mine(RolloutProcessor):
        def __call__(self, rows, config): return [asyncio.create_task(…) for row in rows]

`RowsRolloutProcessor` makes a processor of Holdfast's of one: it is called with one row at a time,
and the row that it gives back is recorded as one step, so that a resumed run does not call it
again. What it leaves to Holdfast's own processors (`SingleTurnRolloutProcessor()(rows, config)`) is
recorded turn by turn below that step. What it asks elsewhere is asked again after a crash.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, cast

from holdfast.engine.export.row_messages import RETURNED, message_fields, messages_of
from holdfast.evaluation.dataset_logger import DatasetLogger, default_logger
from holdfast.evaluation.definition.retries import ExceptionHandlerConfig
from holdfast.evaluation.exceptions import exception_for_status
from holdfast.evaluation.processors.post_processor import RolloutResultPostProcessor
from holdfast.evaluation.rows.convert import returned_fields, row_from, task_of
from holdfast.evaluation.rows.names import invocation_id
from holdfast.evaluation.rows.row import EvaluationRow, Message
from holdfast.evaluation.rows.status import Status
from holdfast.records.errors import Truncated, UsageError
from holdfast.records.view import TrajectoryView
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors import processor
from holdfast.rollout.processors.processor import Returned, code_of

DEFAULT_STEPS = 30
TASKS_OF_A_ROW = 64
"""Rows are bounded by the run; this bounds what one row does at once."""
RowTasks = list["asyncio.Task[EvaluationRow]"]


@dataclass
class RolloutProcessorConfig:
    """What a processor of rows is given beside them."""

    completion_params: dict[str, Any]
    mcp_config_path: str
    semaphore: asyncio.Semaphore
    server_script_path: str | None = None
    steps: int = DEFAULT_STEPS
    logger: DatasetLogger = default_logger
    kwargs: dict[str, Any] = field(default_factory=dict)
    exception_handler_config: ExceptionHandlerConfig | None = None
    post_processor: RolloutResultPostProcessor | None = None


class TakesRows(processor.RolloutProcessor):
    """A processor of Holdfast's that one of rows may call: with rows, within a row's rollout."""

    def __call__(self, tasks: Sequence[Any], config: Any) -> "list[asyncio.Task[Any]]":
        if isinstance(config, RolloutProcessorConfig):
            return list(_delegated(self, tasks, config))
        return list(super().__call__(tasks, config))

    def cleanup(self) -> None:
        """eval-protocol's name for what does not wait; `acleanup` is called in any case."""


class RolloutProcessor(TakesRows):
    """Override `rollout`, which makes one durable trajectory; or, as eval-protocol has it,
    `__call__`, which takes rows and gives an asyncio task for each."""


@dataclass
class _Work:
    """The rollout of one row, while its processor is called."""

    t: Rollout
    owner: "RowsRolloutProcessor"
    params: dict[str, Any]
    limit: str | None = None
    """What ended a turn of the policy early."""


_work: "ContextVar[_Work | None]" = ContextVar("row_work", default=None)


class RowsRolloutProcessor(processor.RolloutProcessor):
    """A processor of rows, as one of Holdfast's."""

    def __init__(self, inner: Any, *, config: RolloutProcessorConfig | None = None):
        self.inner = inner
        self._config = config or RolloutProcessorConfig({}, "", asyncio.Semaphore(1))
        self._helpers: dict[int, asyncio.Task[processor.RolloutProcessor]] = {}

    def configured(
        self,
        *,
        mcp_config_path: str = "",
        server_script_path: str | None = None,
        steps: int = DEFAULT_STEPS,
        rollout_processor_kwargs: dict[str, Any] | None = None,
    ) -> "RowsRolloutProcessor":
        """The same, with the decorator's word about it."""
        told = replace(
            self._config,
            mcp_config_path=str(mcp_config_path),
            server_script_path=server_script_path,
            steps=steps,
            kwargs=dict(rollout_processor_kwargs or {}),
        )
        return RowsRolloutProcessor(self.inner, config=told)

    def under(self, params: Mapping[str, Any]) -> "RowsRolloutProcessor":
        """The same, for rows that are rolled out with these completion params."""
        told = replace(self._config, completion_params=dict(params))
        return RowsRolloutProcessor(self.inner, config=told)

    @property
    def identity(self) -> str:
        """What makes another run: its code, and what it says itself."""
        own = self.inner.identity if isinstance(self.inner, processor.RolloutProcessor) else ""
        told = self._config
        rest = [told.mcp_config_path, told.server_script_path, told.steps, sorted(told.kwargs)]
        return f"{type(self.inner).__name__} {code_of(self.inner)} {own} {rest!r}"

    async def setup(self) -> None:
        await _awaited(self.inner.setup())

    async def acleanup(self) -> None:
        helpers, self._helpers = self._helpers, {}
        for made in helpers.values():
            found = (await asyncio.gather(made, return_exceptions=True))[0]
            if isinstance(found, processor.RolloutProcessor):
                await found.acleanup()
        await _awaited(self.inner.acleanup())
        if callable(cleanup := getattr(self.inner, "cleanup", None)):
            await _awaited(cleanup())

    async def rollout(self, t: Rollout) -> Returned:
        found: dict[str, Any] = await t.value(lambda: self._row_of(t), name=RETURNED)
        if found["limit"] is not None:
            raise Truncated(found["limit"])
        return None

    async def _row_of(self, t: Rollout) -> dict[str, Any]:
        """The row that the processor gives back, as it is recorded."""
        work = _Work(t, self, dict(self._config.completion_params))
        with _at_work(work):
            given = self.inner([_begun(t, work.params)], self._row_config())
            done = await _only(given, self.inner)
        if self._config.post_processor is not None:
            self._config.post_processor.process(done)
        if (error := exception_for_status(done.rollout_status)) is not None:
            raise error
        return {"row": returned_fields(done), "limit": work.limit}

    def _row_config(self) -> RolloutProcessorConfig:
        return replace(
            self._config,
            completion_params=dict(self._config.completion_params),
            semaphore=asyncio.Semaphore(TASKS_OF_A_ROW),
            kwargs=dict(self._config.kwargs),
        )

    async def helper(
        self, wanted: processor.RolloutProcessor, config: RolloutProcessorConfig
    ) -> processor.RolloutProcessor:
        """The processor that was called with rows, configured and set up once for all of them."""
        if id(wanted) not in self._helpers:
            self._helpers[id(wanted)] = asyncio.create_task(_set_up(wanted, config))
        return await asyncio.shield(self._helpers[id(wanted)])


def is_at_work() -> bool:
    """Whether a row is being rolled out here."""
    return _work.get() is not None


def row_processor(given: object) -> RowsRolloutProcessor | None:
    """Of a processor that takes rows, in Holdfast's shape or eval-protocol's own; else None."""
    if isinstance(given, type | RowsRolloutProcessor):
        return None
    if isinstance(given, RolloutProcessor):
        own = type(given).__call__ is not TakesRows.__call__
        return RowsRolloutProcessor(given) if own and not _takes_tasks(given) else None
    if isinstance(given, processor.RolloutProcessor):
        return None
    theirs = all(hasattr(given, name) for name in ("setup", "acleanup", "cleanup"))
    return RowsRolloutProcessor(given) if theirs and callable(given) else None


def _takes_tasks(given: RolloutProcessor) -> bool:
    """Whether its `__call__` is one of ours, which says so by the name of its parameter."""
    return "tasks" in inspect.signature(type(given).__call__).parameters


# --- the row that goes in


def _begun(t: Rollout, params: dict[str, Any]) -> EvaluationRow:
    row = row_from(t.task)
    row.input_metadata.completion_params = {**row.input_metadata.completion_params, **params}
    told = row.execution_metadata
    told.rollout_id, told.run_id = str(t.key), t.key.run
    told.invocation_id, told.experiment_id = invocation_id() or t.key.run, t.key.run
    row.rollout_status = Status.rollout_running()
    return row


async def _only(given: object, inner: object) -> EvaluationRow:
    tasks = list(given) if isinstance(given, list | tuple) else None
    if tasks is None or len(tasks) != 1 or not isinstance(tasks[0], Awaitable):
        raise UsageError(
            f"{type(inner).__name__} returned {given!r:.200} for 1 row; it wants a list of asyncio "
            "tasks, of which task i gives row i"
        )
    found = await tasks[0]
    if not hasattr(found, "messages") or not hasattr(found, "rollout_status"):
        raise UsageError(f"{type(inner).__name__} gave {found!r:.200}; its tasks give rows")
    if isinstance(found, EvaluationRow):
        return found
    return EvaluationRow.model_validate(found.model_dump(mode="json", exclude_unset=True))


class _at_work:  # noqa: N801  # used like a function
    """Holdfast's processors that are called meanwhile know for which row."""

    def __init__(self, work: _Work):
        self._work = work

    def __enter__(self) -> None:
        self._token = _work.set(self._work)

    def __exit__(self, *_: object) -> None:
        _work.reset(self._token)


# --- Holdfast's processors, called with rows


def _delegated(
    wanted: processor.RolloutProcessor,
    rows: Sequence[EvaluationRow],
    config: RolloutProcessorConfig,
) -> RowTasks:
    work = _work.get()
    if work is None:
        raise UsageError(
            f"{type(wanted).__name__} takes rows within an evaluation only, from a processor that "
            "is rolling out a row; give it to @evaluation_test, or run evaluate()"
        )
    _check_params(config, work)
    # Opened here, in the order of the calls: a resumed run finds each where it was.
    contexts = [work.t.beside() for _ in rows]
    return [
        asyncio.create_task(_rolled_out(wanted, row, t, work=work, config=config))
        for row, t in zip(rows, contexts, strict=True)
    ]


def _check_params(config: RolloutProcessorConfig, work: _Work) -> None:
    changed = {
        name
        for name in config.completion_params.keys() | work.params.keys()
        if config.completion_params.get(name) != work.params.get(name)
    }
    if changed:
        raise UsageError(
            f"the processor changed {min(changed)!r} of the completion params, which hold for the "
            "whole run: say it in the evaluation's completion_params"
        )


async def _rolled_out(
    wanted: processor.RolloutProcessor,
    row: EvaluationRow,
    t: Rollout,
    *,
    work: _Work,
    config: RolloutProcessorConfig,
) -> EvaluationRow:
    async with config.semaphore:
        helper = await work.owner.helper(wanted, config)
        t.task = task_of(row)
        try:
            await helper.rollout(t)
        except Truncated as limit:
            work.limit = limit.reason
    return _finished(row, t)


def _finished(row: EvaluationRow, t: Rollout) -> EvaluationRow:
    """The same row, with what became of it."""
    if t.last is not None:
        view = TrajectoryView(t.key, t.task, t.session.history)
        said = messages_of(view, t.last.step)
        row.execution_metadata.finish_reason = t.last.finish_reason
        row.execution_metadata.tool_call_count = sum(
            len(one.tool_calls) for one in t.messages[len(t.task.messages) :]
        )
    else:
        said = [message_fields(one) for one in t.messages or t.task.messages]
    row.messages = [Message.model_validate(one) for one in said]
    row.rollout_status = Status.rollout_finished()
    return row


async def _set_up(
    wanted: processor.RolloutProcessor, config: RolloutProcessorConfig
) -> processor.RolloutProcessor:
    told: dict[str, object] = {
        "mcp_config_path": config.mcp_config_path,
        "server_script_path": config.server_script_path,
        "rollout_processor_kwargs": config.kwargs,
    }
    known = {name: value for name, value in told.items() if value}
    configured = cast(
        "Callable[..., processor.RolloutProcessor] | None", getattr(wanted, "configured", None)
    )
    made = configured(**known) if known and configured is not None else wanted
    await _awaited(made.setup())
    return made


async def _awaited(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found
