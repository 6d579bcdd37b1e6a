"""Turns records into spans, with the attributes of OpenTelemetry's `gen_ai` conventions.

Each trajectory is a trace. Its turns, tool calls and actions in environments are the children of
its own span. A run is a separate trace, with its training steps. Each trajectory's trace links to
the run's trace, and is not part of it, because viewers cannot show a trace of a million spans.
Everything follows from the records, so the same records give the same spans, whoever sends them and
whenever.

Ids are digests of the moment in which the run was created, of the trajectory and of the step. The
journal knows when an attempt began and how long each step took, so a step begins where the step
before it in the same scope ended.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from holdfast.journal.types import TrajectoryRow
from holdfast.records.failure import Failure
from holdfast.records.history import History, added_messages
from holdfast.records.run import Run
from holdfast.records.samples.summary import final_failure
from holdfast.records.step import (
    AttemptFailed,
    AttemptStarted,
    EnvironmentStepped,
    Forked,
    Generated,
    Record,
    Refilled,
    Scored,
    ScoringFailed,
    ToolIntent,
    ToolResult,
    ancestors,
    is_cut_by,
    scope_of,
)
from holdfast.records.task import Task
from holdfast.records.usage import NOTHING, Usage
from holdfast.tracing.messages import bounded, messages_text
from holdfast.version import installed_version

_REQUESTED = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop",
}
"""Attributes of a request, and the fields of `Sampling` that they show."""
Attributes = dict[str, str | int | float | bool | tuple[str, ...]]
_RESOURCE = Resource({"service.name": "holdfast", "service.version": installed_version()})
_SCOPE = InstrumentationScope("holdfast", installed_version())


def _context(run: Run, *place: object, trace: Sequence[object] = ()) -> SpanContext:
    """Returns the ids of a span. `place` identifies the span within the run, and `trace` identifies
    its trace."""
    beginning = repr(run.created)
    ids = [
        hashlib.blake2b("\0".join(map(str, (beginning, *parts))).encode(), digest_size=size)
        for parts, size in ((trace, 16), (place, 8))
    ]
    trace_id, span_id = (int.from_bytes(digest.digest(), "big") or 1 for digest in ids)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(1))


def _span(
    name: str,
    context: SpanContext,
    times: tuple[float, float],
    attributes: Mapping[str, object],
    *,
    parent: SpanContext | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    error: str = "",
    events: Sequence[Event] = (),
    links: Sequence[Link] = (),
) -> ReadableSpan:
    status = Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET)
    return ReadableSpan(
        name,
        context=context,
        parent=parent,
        resource=_RESOURCE,
        attributes={key: value for key, value in attributes.items() if value not in (None, "", ())},
        events=events,
        links=links,
        kind=kind,
        status=status,
        start_time=_nanoseconds(times[0]),
        end_time=_nanoseconds(times[1]),
        instrumentation_scope=_SCOPE,
    )


def _nanoseconds(at: float) -> int:
    return round(at * 1e6) * 1000  # A float knows the present time to the microsecond only.


# --- runs and training steps


def run_span(run: Run, counts: Mapping[str, int], *, end: float) -> ReadableSpan:
    """Returns the span of a run that is over. `counts` has the number of trajectories by status."""
    attributes = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": run.spec.name,
        "gen_ai.request.model": run.spec.model,
        "holdfast.run": run.spec.name,
        "holdfast.tags": run.spec.tags,
        **{f"holdfast.{status}": count for status, count in counts.items()},
    }
    times = (run.created, max(end, run.created))
    return _span(f"invoke_workflow {run.spec.name}", _context(run), times, attributes)


def step_span(
    run: Run, consumer: str, step: int, numbers: Mapping[str, float], *, start: float
) -> ReadableSpan:
    """Returns the span of a training step, which began when its last trajectory had ended."""
    attributes: dict[str, object] = {
        "holdfast.run": run.spec.name,
        "holdfast.consumer": consumer,
        "holdfast.training.step": step,
        **{f"holdfast.training.{name}": number for name, number in numbers.items()},
    }
    times = (start, start + numbers.get("trainer_seconds", 0.0))
    context = _context(run, consumer, step)
    return _span(f"training step {step}", context, times, attributes, parent=_context(run))


# --- trajectories


class _Clock:
    """Computes when steps began and ended, from the times of attempts and the durations of
    steps."""

    def __init__(self) -> None:
        self.now = 0.0
        """The latest time in the records so far."""
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        """The end of the last step in each scope."""

    def begin(self, path: str) -> float:
        scope, _ = scope_of(path)
        if path not in self._starts:
            above = self.begin(ancestors(path)[-1]) if scope else 0.0
            self._starts[path] = max(self.now, above, self._ends.get(scope, 0.0))
        return self._starts[path]

    def end(self, path: str, seconds: float) -> tuple[float, float]:
        """Returns the start and the end of a step that took `seconds`."""
        start = self.begin(path)
        end = start + max(seconds, 0.0)
        for place in (path, *ancestors(path)):
            scope, _ = scope_of(place)
            self._ends[scope] = max(self._ends.get(scope, 0.0), end)
        return start, end

    def again(self, cut: str) -> None:
        """Forgets the starts of the steps that are repeated after a cut at the path `cut`."""
        for path in [path for path in self._starts if is_cut_by(path, cut)]:
            del self._starts[path]

    @property
    def last(self) -> float:
        return max((self.now, *self._ends.values()))


class TrajectorySpans:
    """Makes the spans of one trajectory. `take` gets the records of its log, one after the
    other."""

    def __init__(self, run: Run, row: TrajectoryRow, task: Task):
        self._run = run
        self._row = row
        self._task = task
        self._history = History(settled=row.settled)
        self._clock = _Clock()
        self._made: Counter[str] = Counter()
        self._events: list[Event] = []
        self._start = 0.0
        self._context = self._context_of()

    def _context_of(self, *place: object) -> SpanContext:
        trajectory = (self._row.key.task, self._row.key.sample)
        return _context(self._run, *trajectory, *place, trace=trajectory)

    def take(self, record: Record) -> ReadableSpan | None:
        """Takes the next record, and returns the span that ends with it. Returns None if no span
        does."""
        if isinstance(record, Forked | Refilled):
            self._clock.again(record.path if isinstance(record, Forked) else "0")
        elif isinstance(record, ToolIntent):
            self._clock.again(record.path)  # It may be a repetition in a later attempt.
        self._history.take(record)
        self._note(record)
        match record:
            case Generated():
                return self._turn(record)
            case EnvironmentStepped():
                return self._action(record)
            case ToolResult() if isinstance(
                intent := self._history.steps.get(record.path), ToolIntent
            ):
                return self._tool(intent, record)
        return None

    def _step(
        self, name: str, path: str, seconds: float, attributes: Attributes, *, error: str = "",
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> ReadableSpan:  # fmt: skip
        tools = [above for above in ancestors(path) if self._is_tool(above)]
        parent = self._context_of(tools[-1], self._made[tools[-1]]) if tools else self._context
        context = self._context_of(path, self._made[path])
        self._made[path] += 1  # After a fork, another step has this path.
        times = self._clock.end(path, seconds)
        attributes |= {"gen_ai.conversation.id": str(self._row.key), "holdfast.step": path}
        return _span(name, context, times, attributes, parent=parent, kind=kind, error=error)

    def _is_tool(self, path: str) -> bool:
        return isinstance(self._history.steps.get(path), ToolIntent)

    def _turn(self, record: Generated) -> ReadableSpan:
        step = self._history.steps[record.path]
        assert isinstance(step, Generated), "the fold keeps the generation"
        added = added_messages(self._history, self._task, step)
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": step.dialect or "unknown",
            "gen_ai.request.model": step.model,
            "gen_ai.response.model": step.model,
            "gen_ai.response.finish_reasons": (step.finish_reason,),
            "gen_ai.input.messages": messages_text(added),
            "gen_ai.output.messages": messages_text(
                [step.message], finish_reason=step.finish_reason
            ),
            "holdfast.tries": step.tries,
            "holdfast.weights": tuple(dict.fromkeys(span.version for span in step.versions)),
            **_requested(step),
            **_used(step.billed),
        }
        name = f"chat {step.model}"
        return self._step(name, step.path, step.seconds, attributes, kind=SpanKind.CLIENT)

    def _tool(self, intent: ToolIntent, result: ToolResult) -> ReadableSpan:
        attributes = _called(intent.name, intent.arguments, result.content, result.error)
        attributes |= {"gen_ai.tool.call.id": intent.call_id}
        if result.reward is not None:
            attributes["holdfast.reward"] = result.reward
        name, error = f"execute_tool {intent.name}", result.error
        return self._step(name, intent.path, result.seconds, attributes, error=error)

    def _action(self, step: EnvironmentStepped) -> ReadableSpan:
        name = "reset" if step.is_opening else "step"
        attributes = _called(name, step.action, step.observation, step.error)
        attributes |= {"holdfast.reward": step.reward, "holdfast.done": step.done}
        name, error = f"execute_tool {name}", step.error
        return self._step(name, step.path, step.seconds, attributes, error=error)

    # --- the trajectory's own span

    def _note(self, record: Record) -> None:
        """Notes the time of a record. Adds an event for a failure, a later attempt, a fork, a
        refill or a score."""
        at: float | None = getattr(record, "at", None)
        if at is None:
            return
        self._clock.now = max(self._clock.now, at)
        self._start = self._start or at
        match record:
            case AttemptFailed() | ScoringFailed():
                self._event("exception", at, _failed(record.failure))
            case AttemptStarted() if record.attempt > 1:
                self._event("attempt", at, {"holdfast.attempt": record.attempt})
            case Forked() | Refilled():
                kind = "fork" if isinstance(record, Forked) else "refill"
                self._event(kind, at, {"holdfast.reason": bounded(record.reason)})
            case Scored() if record.reward is not None:
                values = {"reward": record.reward, **record.metrics}
                for name, value in values.items():
                    self._event("gen_ai.evaluation.result", at, _evaluated(name, value))

    def _event(self, name: str, at: float, attributes: Attributes) -> None:
        self._events.append(Event(name, attributes, _nanoseconds(at)))

    def own_span(self) -> ReadableSpan:
        """Returns the span of the whole trajectory, up to its last record so far."""
        history, spec = self._history, self._run.spec
        agent = spec.rollout.partition("@")[0]
        replies = [step.message for step in history.generations if "." not in step.path]
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": str(self._row.key),
            "gen_ai.request.model": spec.model,
            "gen_ai.input.messages": messages_text(self._task.messages),
            "gen_ai.output.messages": messages_text(replies[-1:]),
            "holdfast.run": spec.name,
            "holdfast.task": self._row.key.task,
            "holdfast.sample": self._row.key.sample,
            "holdfast.status": history.status.name.lower(),
            "holdfast.reused_from": history.reused,
            **_used(sum(history.used.values(), NOTHING)),
        }
        if history.reward is not None:
            attributes["holdfast.reward"] = history.reward
        failure = final_failure(history)
        return _span(
            f"invoke_agent {agent}",
            self._context,
            (self._start or self._run.created, max(self._clock.last, self._run.created)),
            attributes | ({"error.type": failure.type} if failure else {}),
            error=failure.line if failure else "",
            events=self._events,
            links=[Link(_context(self._run))],
        )

    @property
    def end(self) -> float:
        return self._clock.last


def _requested(step: Generated) -> Attributes:
    sampling = step.sampling
    return {
        f"gen_ai.request.{name}": getattr(sampling, field)
        for name, field in _REQUESTED.items()
        if getattr(sampling, field)
    }


def _used(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _called(name: str, arguments: str, result: str, error: str) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": bounded(arguments),
        "gen_ai.tool.call.result": bounded(result),
        "error.type": error,
    }


def _failed(failure: Failure) -> Attributes:
    return {
        "exception.type": failure.type,
        "exception.message": bounded(failure.message),
        "exception.stacktrace": bounded(failure.traceback),
        "holdfast.cause": failure.cause.value,
    }


def _evaluated(name: str, value: float) -> Attributes:
    return {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": value}
