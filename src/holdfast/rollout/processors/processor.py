"""RolloutProcessor: the base class of objects that turn tasks into trajectories.

`setup` is called once, then `rollout` any number of times, then `acleanup` once, even after errors.
A processor may keep objects (a browser, a session, a client) that all rows use.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from holdfast.policy.policy import Policy
from holdfast.records.encoding.declared import function_name
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling, response_format_of
from holdfast.records.task import Task
from holdfast.rollout.code.fingerprint import code_of, fingerprint_of, fingerprinted
from holdfast.rollout.code.rewards import may_reward
from holdfast.rollout.context import Rollout
from holdfast.rollout.replay.session import Session
from holdfast.rollout.replay.unawaited import PendingSteps
from holdfast.rollout.threads.contain import contain, end_task

__all__ = [
    "FunctionProcessor",
    "Returned",
    "Reward",
    "RolloutConfig",
    "RolloutFunction",
    "RolloutProcessor",
    "SingleTurnRolloutProcessor",
    "as_processor",
    "code_of",
    "completion_params_of",
    "fingerprint_of",
    "fingerprinted",
    "run_rollout",
]

Reward = float | None
Returned = Reward | tuple[int, Reward]
"""What a rollout may return: None, its reward, or (turns used, reward)."""
RolloutFunction = Callable[[Rollout], Awaitable[Returned]]

NEVER_AWAITED = "{step}() was called and never awaited: await {step}(…)"


@dataclass(frozen=True)
class RolloutConfig:
    """The second argument of `RolloutProcessor.__call__`. `open` creates the durable context of a
    row's trajectory."""

    model: str
    sampling: Sampling
    open: Callable[[Task], Rollout]
    completion_params: Mapping[str, object] = field(default_factory=lambda: _DERIVED)
    """The run's parameters under the names of chat APIs. By default, they are made from `model` and
    `sampling`."""

    def __post_init__(self) -> None:
        if self.completion_params is _DERIVED:
            derived = completion_params_of(self.model, self.sampling)
            object.__setattr__(self, "completion_params", derived)


_DERIVED: Mapping[str, object] = {}


def completion_params_of(
    model: str, sampling: Sampling, *, n: int | None = None
) -> dict[str, object]:
    """Returns the model and the sampling parameters as a dict with the names of chat APIs."""
    params: dict[str, object] = {
        "model": model,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "top_p": sampling.top_p,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if (form := response_format_of(sampling)) is not None:
        params["response_format"] = form
    if sampling.reasoning_effort is not None:
        params["reasoning_effort"] = sampling.reasoning_effort
    params |= _more_params(sampling)
    return params if n is None else params | {"n": n}


def _more_params(sampling: Sampling) -> dict[str, object]:
    """Returns the parameters that are set and that only some chat APIs have."""
    params: dict[str, object] = {
        name: getattr(sampling, name)
        for name in MORE_PARAMS
        if getattr(sampling, name) != getattr(_PLAIN, name)
    }
    objects = {
        "logit_bias": sampling.biases,
        "stop_token_ids": list(sampling.stop_token_ids),
        "extra_body": sampling.extra,
        "chat_template_kwargs": sampling.template_kwargs,
    }
    return params | {name: objects[name] for name in objects if name in params}


_PLAIN = Sampling()
MORE_PARAMS = (
    *("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "stop_token_ids", "ignore_eos", "extra_body", "chat_template_kwargs"),
    "separate_reasoning",
)


class RolloutProcessor:
    """The base class of processors. Override `rollout`.

    For processors that were written for eval-protocol, override `__call__` instead, which takes a
    list of rows.
    """

    streams_replies = False
    """Whether replies become durable in parts while they are streamed to an agent."""

    @property
    def identity(self) -> str:
        """The settings of this processor as a text. If this text has changed, a run cannot be
        resumed."""
        return ""

    needs_policy = True
    """Whether the rollouts sample. If they do not, no engine is started or contacted."""

    @property
    def may_reward(self) -> bool:
        """Whether the rollouts may give rewards. False if the code of `rollout` shows that it gives
        none, so that the run needs a scorer."""
        is_called_with_rows = type(self).__call__ is not RolloutProcessor.__call__
        return is_called_with_rows or may_reward(self.rollout)

    def wrap_policy(self, policy: Policy) -> Policy:
        """Returns the policy from which the rollouts sample. By default, this is the run's own
        policy."""
        return policy

    def check_setup(self) -> None:
        """Raises `UsageError` for a mistake in the setup that would fail every row. Called before
        an engine is started or asked."""

    async def setup(self) -> None:
        """Prepares the processor. Called once, before the first row."""

    async def rollout(self, t: Rollout) -> Returned:
        """Makes one trajectory. May return its reward, or (turns used, reward)."""
        raise UsageError(f"{type(self).__name__} defines no `async def rollout(self, t)`")

    def __call__(
        self, tasks: Sequence[Task], config: RolloutConfig
    ) -> "list[asyncio.Task[Returned]]":
        """Starts the rollouts of all rows and returns their asyncio tasks, in the order of the
        rows. The caller owns the tasks."""
        return [
            asyncio.create_task(run_rollout(self, config.open(task)), name=f"rollout {task.id}")
            for task in tasks
        ]

    async def acleanup(self) -> None:
        """Releases what the processor owns. Called once, after the last row, even if the run
        failed."""


async def run_rollout(processor: RolloutProcessor, t: Rollout) -> Returned:
    """Runs a rollout. Raises an error if the rollout called a step and never awaited it."""
    # Created inside its task, so that a task cancelled before its start leaves no coroutine behind.
    pending = PendingSteps.of_this_task()
    try:
        made = processor.rollout(t)
        if not isinstance(made, Awaitable):
            raise UsageError(f"{type(processor).__name__}.rollout has to be `async def`")
        returned = await contain(made)
    except Exception as error:
        if step := await pending.never_awaited():
            error.add_note(NEVER_AWAITED.format(step=step))
        raise
    if step := await pending.never_awaited():
        raise UsageError(NEVER_AWAITED.format(step=step))
    return returned


class FunctionProcessor(RolloutProcessor):
    """A processor made from a plain async function."""

    def __init__(self, function: RolloutFunction):
        self.function = function

    @property
    def may_reward(self) -> bool:
        return may_reward(self.function)

    async def rollout(self, t: Rollout) -> Returned:
        return await self.function(t)


class SingleTurnRolloutProcessor(RolloutProcessor):
    """Answers the task's messages with one reply."""

    async def rollout(self, t: Rollout) -> Returned:
        t.add(*t.task.messages)
        await t.generate()
        return None


def as_processor(candidate: object) -> RolloutProcessor:
    """Returns a processor for `candidate`: a processor itself, a class of processors that is
    created without arguments, or an async function."""
    if isinstance(candidate, RolloutProcessor):
        return candidate
    if isinstance(candidate, type) and issubclass(candidate, RolloutProcessor):
        _check_takes(candidate, wants="a class is made without arguments: give an instance")
        return candidate()
    if _is_async(candidate):
        _check_takes(candidate, None, wants="a rollout takes one argument: async def solve(t)")
        return FunctionProcessor(candidate)
    raise UsageError(
        f"{_shown(candidate)} is not a rollout: it wants an async function of one argument, or a "
        f"RolloutProcessor{_meant(candidate)}"
    )


def _shown(candidate: object) -> str:
    is_named = inspect.isroutine(candidate) or inspect.iscoroutine(candidate)
    return candidate.__name__ if is_named else f"{candidate!r:.100}"  # type: ignore[attr-defined]


def _meant(candidate: object) -> str:
    if inspect.iscoroutine(candidate):
        candidate.close()
        return f"; it was called already: give {candidate.__name__} itself"
    if inspect.isasyncgenfunction(candidate):
        return "; it yields, and a rollout returns (or nothing)"
    if inspect.isroutine(candidate):
        return " (write `async def`)"
    if isinstance(candidate, str):
        return "; import it, and give the function"
    return ""


def _is_async(candidate: object) -> TypeGuard[RolloutFunction]:
    """Returns whether the candidate is an async function or an object with an async `__call__`."""
    if inspect.iscoroutinefunction(candidate):
        return True
    is_object = callable(candidate) and not isinstance(candidate, type)
    return is_object and inspect.iscoroutinefunction(candidate.__call__)  # type: ignore[operator]


def _check_takes(candidate: Callable[..., object], *arguments: object, wants: str) -> None:
    """Raises `UsageError` if the candidate does not accept `arguments`. `wants` tells what is
    expected."""
    signature = inspect.signature(candidate)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UsageError(f"{function_name(candidate)}{signature}: {error}; {wants}") from error


async def start_rollout(processor: RolloutProcessor, session: Session) -> "asyncio.Task[Returned]":
    """Starts one attempt's rollout as a separate task, which the caller owns. A processor that
    overrides `__call__` takes a list of rows, as in eval-protocol, and gets a list of one row."""
    if type(processor).__call__ is RolloutProcessor.__call__:
        rollout = run_rollout(processor, Rollout(session))
        return asyncio.create_task(rollout, name=f"rollout {session.task.id}")
    tasks: object = processor([session.task], _config(session))
    if isinstance(tasks, list) and len(tasks) == 1 and isinstance(tasks[0], asyncio.Task):
        return tasks[0]
    raise await _wrong_result(processor, tasks)


def _config(session: Session) -> RolloutConfig:
    spec = session.context.spec
    params = completion_params_of(spec.model, spec.sampling, n=spec.samples)
    return RolloutConfig(spec.model, spec.sampling, lambda row: Rollout(session), params)


async def _wrong_result(processor: RolloutProcessor, result: object) -> UsageError:
    """Returns the error for a processor whose `__call__` returned a wrong result. Ends the tasks
    and coroutines in that result."""
    items = list(result) if isinstance(result, list | tuple) else [result]
    for item in items:
        if isinstance(item, asyncio.Task):
            await end_task(item)
        elif asyncio.iscoroutine(item):
            item.close()
    kinds = ", ".join(type(item).__name__ for item in items[:5])
    text = f"{len(items)} of {kinds}" if isinstance(result, list | tuple) else kinds
    return UsageError(
        f"{type(processor).__name__} returned {text} for 1 row; it wants a list of asyncio tasks, "
        "of which task i belongs to row i"
    )
