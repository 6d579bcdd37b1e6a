"""Adapts processors that take rows and return rows, as eval-protocol defines them.

    class Mine(RolloutProcessor):
        def __call__(self, rows, config): return [asyncio.create_task(…) for row in rows]

`RowsRolloutProcessor` makes a Holdfast processor of such a processor. It calls the processor with
one row at a time, and records the returned row as one step, so that a resumed run does not call the
processor again. If the processor calls one of Holdfast's own (`SingleTurnRolloutProcessor()(rows,
config)`), its turns are recorded below that step. Other requests are repeated after a crash.
"""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, cast

from holdfast.engine.export.row_messages import RETURNED, messages_of
from holdfast.evaluation.eval_protocol.dataset_logger import DatasetLogger, journal_logger
from holdfast.evaluation.eval_protocol.retries import ExceptionHandlerConfig
from holdfast.evaluation.exceptions import exception_for_status
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
MAX_TASKS_PER_ROW = 64
"""The largest number of concurrent tasks for one row. The run limits the number of rows."""
RowTasks = list["asyncio.Task[EvaluationRow]"]


class RolloutResultPostProcessor(ABC):
    """Checks a row before it is recorded. `process` raises ResponseQualityError for a row that has
    to be rolled out again."""

    @abstractmethod
    def process(self, result: EvaluationRow) -> None: ...


class NoOpRolloutResultPostProcessor(RolloutResultPostProcessor):
    """A post-processor without any check."""

    def process(self, result: EvaluationRow) -> None:
        """Accepts every row."""


@dataclass
class RolloutProcessorConfig:
    """The configuration that a processor of rows gets as its second argument."""

    completion_params: dict[str, Any]
    mcp_config_path: str
    semaphore: asyncio.Semaphore
    server_script_path: str | None = None
    steps: int = DEFAULT_STEPS
    logger: DatasetLogger = field(default_factory=journal_logger)
    kwargs: dict[str, Any] = field(default_factory=dict)
    exception_handler_config: ExceptionHandlerConfig | None = None
    post_processor: RolloutResultPostProcessor | None = None


class TakesRows(processor.RolloutProcessor):
    """A Holdfast processor that a processor of rows may call with rows during a rollout."""

    def __call__(self, tasks: Sequence[Any], config: Any) -> "list[asyncio.Task[Any]]":
        if isinstance(config, RolloutProcessorConfig):
            return list(_delegate(self, tasks, config))
        return list(super().__call__(tasks, config))

    def cleanup(self) -> None:
        """Does nothing. It exists because eval-protocol's processors have this synchronous hook.
        `acleanup` does the work."""


class RolloutProcessor(TakesRows):
    """A base class. Override `rollout`, which makes one durable trajectory, or `__call__`, which
    takes rows and returns an asyncio task for each, as in eval-protocol."""


@dataclass
class _Work:
    """The rollout of one row, during the call of its processor."""

    t: Rollout
    owner: "RowsRolloutProcessor"
    params: dict[str, Any]
    limit: str | None = None
    """The reason of a truncation, or None."""


_work: "ContextVar[_Work | None]" = ContextVar("row_work", default=None)


class RowsRolloutProcessor(processor.RolloutProcessor):
    """Wraps a processor of rows as a Holdfast processor."""

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
        """Returns a copy with the decorator's arguments."""
        config = replace(
            self._config,
            mcp_config_path=str(mcp_config_path),
            server_script_path=server_script_path,
            steps=steps,
            kwargs=dict(rollout_processor_kwargs or {}),
        )
        return RowsRolloutProcessor(self.inner, config=config)

    def under(self, params: Mapping[str, Any]) -> "RowsRolloutProcessor":
        """Returns a copy that uses these completion params."""
        config = replace(self._config, completion_params=dict(params))
        return RowsRolloutProcessor(self.inner, config=config)

    @property
    def identity(self) -> str:
        """Text with the processor's code, its own identity, and its settings. If it changes, a new
        run begins."""
        own = self.inner.identity if isinstance(self.inner, processor.RolloutProcessor) else ""
        config = self._config
        rest = [
            config.mcp_config_path,
            config.server_script_path,
            config.steps,
            sorted(config.kwargs),
        ]
        return f"{type(self.inner).__name__} {code_of(self.inner)} {own} {rest!r}"

    async def setup(self) -> None:
        await _maybe_await(self.inner.setup())

    async def acleanup(self) -> None:
        helpers, self._helpers = self._helpers, {}
        for made in helpers.values():
            recorded = (await asyncio.gather(made, return_exceptions=True))[0]
            if isinstance(recorded, processor.RolloutProcessor):
                await recorded.acleanup()
        await _maybe_await(self.inner.acleanup())
        if callable(cleanup := getattr(self.inner, "cleanup", None)):
            await _maybe_await(cleanup())

    async def rollout(self, t: Rollout) -> Returned:
        recorded: dict[str, Any] = await t.value(lambda: self._call_inner(t), name=RETURNED)
        if recorded["limit"] is not None:
            raise Truncated(recorded["limit"])
        return None

    async def _call_inner(self, t: Rollout) -> dict[str, Any]:
        """Calls the processor and returns its row in the recorded form."""
        work = _Work(t, self, dict(self._config.completion_params))
        # Processors of Holdfast that are called in the meantime belong to this row.
        token = _work.set(work)
        try:
            tasks = self.inner([_initial_row(t, work.params)], self._row_config())
            done = await _single_row(tasks, self.inner)
        finally:
            _work.reset(token)
        if self._config.post_processor is not None:
            self._config.post_processor.process(done)
        if (error := exception_for_status(done.rollout_status)) is not None:
            raise error
        return {"row": returned_fields(done), "limit": work.limit}

    def _row_config(self) -> RolloutProcessorConfig:
        return replace(
            self._config,
            completion_params=dict(self._config.completion_params),
            semaphore=asyncio.Semaphore(MAX_TASKS_PER_ROW),
            kwargs=dict(self._config.kwargs),
        )

    async def helper(
        self, called: processor.RolloutProcessor, config: RolloutProcessorConfig
    ) -> processor.RolloutProcessor:
        """Returns the called processor, configured and set up. It is configured and set up only
        once, for all rows."""
        if id(called) not in self._helpers:
            self._helpers[id(called)] = asyncio.create_task(_set_up(called, config))
        return await asyncio.shield(self._helpers[id(called)])


def is_at_work() -> bool:
    """Returns whether the current task rolls out a row."""
    return _work.get() is not None


def row_processor(value: object) -> RowsRolloutProcessor | None:
    """Wraps a processor of rows, of Holdfast or of eval-protocol, as a Holdfast processor. Returns
    None for other values."""
    if isinstance(value, type | RowsRolloutProcessor):
        return None
    if isinstance(value, RolloutProcessor):
        call = type(value).__call__
        # Holdfast's own processors have this parameter.
        takes_tasks = "tasks" in inspect.signature(call).parameters
        is_own = call is not TakesRows.__call__
        return RowsRolloutProcessor(value) if is_own and not takes_tasks else None
    if isinstance(value, processor.RolloutProcessor):
        return None
    is_eval_protocol = all(hasattr(value, name) for name in ("setup", "acleanup", "cleanup"))
    return RowsRolloutProcessor(value) if is_eval_protocol and callable(value) else None


# --- the row and its result


def _initial_row(t: Rollout, params: dict[str, Any]) -> EvaluationRow:
    row = row_from(t.task)
    row.input_metadata.completion_params = {**row.input_metadata.completion_params, **params}
    metadata = row.execution_metadata
    metadata.rollout_id, metadata.run_id = str(t.key), t.key.run
    metadata.invocation_id, metadata.experiment_id = invocation_id() or t.key.run, t.key.run
    row.rollout_status = Status.rollout_running()
    return row


async def _single_row(returned: object, inner: object) -> EvaluationRow:
    tasks = list(returned) if isinstance(returned, list | tuple) else None
    if tasks is None or len(tasks) != 1 or not isinstance(tasks[0], Awaitable):
        raise UsageError(
            f"{type(inner).__name__} returned {returned!r:.200} for 1 row; it wants a list of "
            "asyncio tasks, of which task i returns row i"
        )
    row = await tasks[0]
    if not hasattr(row, "messages") or not hasattr(row, "rollout_status"):
        raise UsageError(f"{type(inner).__name__} returned {row!r:.200}; its tasks return rows")
    if isinstance(row, EvaluationRow):
        return row
    return EvaluationRow.model_validate(row.model_dump(mode="json", exclude_unset=True))


# --- Holdfast's processors, called with rows


def _delegate(
    called: processor.RolloutProcessor,
    rows: Sequence[EvaluationRow],
    config: RolloutProcessorConfig,
) -> RowTasks:
    work = _work.get()
    if work is None:
        raise UsageError(
            f"{type(called).__name__} takes rows within an evaluation only, from a processor that "
            "is rolling out a row; pass it to @evaluation_test, or run evaluate()"
        )
    _check_params(config, work)
    # Opened here, in the order of the calls, so that a resumed run finds each at its place.
    contexts = [work.t.beside() for _ in rows]
    return [
        asyncio.create_task(_roll_out(called, row, t, work=work, config=config))
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
            "whole run: set it in the evaluation's completion_params"
        )


async def _roll_out(
    called: processor.RolloutProcessor,
    row: EvaluationRow,
    t: Rollout,
    *,
    work: _Work,
    config: RolloutProcessorConfig,
) -> EvaluationRow:
    async with config.semaphore:
        helper = await work.owner.helper(called, config)
        t.task = task_of(row)
        try:
            await helper.rollout(t)
        except Truncated as limit:
            work.limit = limit.reason
    return _finish_row(row, t)


def _finish_row(row: EvaluationRow, t: Rollout) -> EvaluationRow:
    """Sets the row's messages, status and execution metadata, and returns the row."""
    if t.last is not None:
        view = TrajectoryView(t.key, t.task, t.session.history)
        fields = messages_of(view, t.last.step)
        row.execution_metadata.finish_reason = t.last.finish_reason
        row.execution_metadata.tool_call_count = sum(
            len(message.tool_calls) for message in t.messages[len(t.task.messages) :]
        )
    else:
        fields = [message.to_dict() for message in t.messages or t.task.messages]
    row.messages = [Message.model_validate(message) for message in fields]
    row.rollout_status = Status.rollout_finished()
    return row


async def _set_up(
    called: processor.RolloutProcessor, config: RolloutProcessorConfig
) -> processor.RolloutProcessor:
    arguments: dict[str, object] = {
        "mcp_config_path": config.mcp_config_path,
        "server_script_path": config.server_script_path,
        "rollout_processor_kwargs": config.kwargs,
    }
    known = {name: value for name, value in arguments.items() if value}
    configured = cast(
        "Callable[..., processor.RolloutProcessor] | None", getattr(called, "configured", None)
    )
    made = configured(**known) if known and configured is not None else called
    await _maybe_await(made.setup())
    return made


async def _maybe_await(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
