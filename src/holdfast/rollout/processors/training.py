"""TrainingRolloutProcessor: makes one reply for each sample, as the completion params say.

A group consists of the n samples of a task. These are n trajectories with the same prompt ids. Each
has its own durable steps, retries and score, so a failure costs only one sample. The samples are in
the journal like those of any other rollout. The row view (`holdfast export --what rows`) gives them
the shape that training recipes read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role
from holdfast.records.sampling import Sampling, as_kept, json_of, wrong_type
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import (
    MORE_PARAMS,
    Returned,
    RolloutProcessor,
    completion_params_of,
)
from holdfast.rollout.processors.row_clients import ClientCache
from holdfast.rollout.replay.speaker import Speaker

_SAMPLED = ("max_tokens", "temperature", "top_p", "stop", "json", "reasoning_effort", *MORE_PARAMS)
_WHERE = frozenset({"model", "base_url", "api_base"})
READ = frozenset({"n", "response_format", *_WHERE, *_SAMPLED} - {"json"})
IGNORED = frozenset(
    {
        # How an answer is sent, and how often it is requested.
        *("stream", "stream_options", "timeout", "num_retries", "max_retries", "cache", "caching"),
        # These request what is always recorded.
        *("logprobs", "top_logprobs", "return_token_ids", "raw_output"),
        "return_reasoning_with_separate_field",
        # For the provider's own records.
        *("user", "metadata", "provider", "custom_llm_provider", "drop_params"),
    }
)
"""Parameters of eval-protocol's rows that do not change the sampling."""


class CompletionParams(msgspec.Struct, frozen=True):
    """Completion params after parsing. The run decides about a field that is None."""

    model: str | None = None
    n: int | None = None
    base_url: str | None = None
    changes: dict[str, Any] = {}
    """Changes to the run's sampling, as keywords for `t.generate`. `extra_body` contains only the
    members that Holdfast does not know."""


class TrainingRolloutProcessor(RolloutProcessor):
    """Answers the last message of each task once, with the model that its completion params name.

    The params of a row are `completion_params` in its metadata, or in its `input_metadata` if it is
    an EvaluationRow. They override the processor's own params, which override the run's. Rows that
    name another model or `base_url` than the run's share one client for each (endpoint, model). The
    processor owns these clients and closes all of them in `acleanup`.
    """

    @checks_arguments()
    def __init__(
        self,
        completion_params: Mapping[str, object] | None = None,
        *,
        drop_trailing_assistant_messages: bool = True,
        renderer: Renderer | None = None,
        api_keys: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
        patience: float | None = None,
    ):
        """`completion_params` apply to every row that does not override them.

        `renderer`, `api_keys`, `retry` and `patience` are for endpoints and models other than the
        run's. `retry` and `patience` default to those of the run. `api_keys` maps an address to its
        key, so that a row that names another address gets no key sent there.
        """
        self.drop_trailing_assistant_messages = drop_trailing_assistant_messages
        self._own = {} if completion_params is None else dict(completion_params)
        self._renderer = renderer
        self._clients = ClientCache(api_keys=api_keys, retry=retry, patience=patience)
        params = read_params(self._own, where="completion_params")
        if completion_params is not None and params.model is None:
            raise ValueError("completion_params name no model; give 'model'")
        self._params = params

    @property
    def identity(self) -> str:
        """The settings as a text, without the code. If this text has changed, a run cannot be
        resumed."""
        own = {key: value for key, value in sorted(self._own.items()) if key != "n"}
        renderer = self._renderer.name if self._renderer else ""
        return f"{own!r} {self.drop_trailing_assistant_messages} {renderer}"

    @property
    def samples(self) -> int | None:
        """The number of samples per task that the completion params name, or None."""
        return self._params.n

    async def setup(self) -> None:
        """Checks the endpoint that the processor's own completion params name, if any, before the
        first row."""
        if self._params.base_url is not None and self._params.model is not None:
            await self._clients.get((self._params.base_url,), self._params.model).check()

    async def rollout(self, t: Rollout) -> Returned:
        row = row_params(t.task)
        self._check_row(t, row)
        params = read_params({**self._own, **row}, where=f"task {t.task.id!r}")
        t.add(*self._prompt(t.task))
        await t.generate(
            tools=t.task.tools,
            **params.changes,
            speaker=self._speaker(t.speaker, params, named_by_row=bool(_WHERE & row.keys())),
        )
        return None

    def _check_row(self, t: Rollout, row: Mapping[str, object]) -> None:
        """Raises `ValueError` if the params of a row are invalid, or ask for another number of
        samples than the run has."""
        spec, where = t.session.context.spec, f"task {t.task.id!r}"
        run = completion_params_of(spec.model, spec.sampling)
        read_params({**run, **self._own, **row}, where=where)
        n = read_params(row, where=where).n
        if n is not None and n != spec.samples:
            raise ValueError(
                f"{where} asks for n={n}, but the run draws {spec.samples} samples of each "
                f"task; start it with samples={n} (--samples {n})"
            )

    def _prompt(self, task: Task) -> tuple[Message, ...]:
        messages = task.messages
        if self.drop_trailing_assistant_messages:
            while messages and messages[-1].role is Role.ASSISTANT:
                messages = messages[:-1]
        if not messages:
            raise ValueError(f"task {task.id!r} has no message to answer")
        return messages

    def _speaker(self, own: Speaker, params: CompletionParams, *, named_by_row: bool) -> Speaker:
        """Returns the run's own speaker, unless the params name another model or endpoint."""
        model = params.model or own.policy.model
        urls = None if params.base_url is None else (params.base_url,)
        client = self._clients.client_for(own.policy, urls, model)
        if client is None:
            return own
        policy = client.for_rows() if named_by_row else client
        return Speaker(policy, self._renderer or own.renderer)

    async def acleanup(self) -> None:
        await self._clients.aclose()


def samples_for(processor: RolloutProcessor, samples: int | None) -> int:
    """Returns the number of samples per task: `samples` if given, otherwise the number in the
    processor's completion params, and 1 if there is none."""
    if samples is not None:
        return samples
    own_samples = processor.samples if isinstance(processor, TrainingRolloutProcessor) else None
    return 1 if own_samples is None else own_samples


def row_params(task: Task) -> dict[str, object]:
    """Returns a task's own completion params, without those that are None."""
    return _params_in(_mapping(task, "input_metadata"), task) | _params_in(task.metadata, task)


def _params_in(holder: Mapping[str, object], task: Task) -> dict[str, object]:
    parameters = holder.get("completion_params") or {}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"task {task.id!r}: completion_params are not an object: {parameters!r}")
    return {str(name): value for name, value in parameters.items() if value is not None}


def _mapping(task: Task, name: str) -> Mapping[str, object]:
    value = task.metadata.get(name)
    return value if isinstance(value, Mapping) else {}


def read_params(
    params: Mapping[str, object], *, where: str = "completion_params"
) -> CompletionParams:
    """Parses completion params. Raises `ValueError`, which names the first unknown or invalid
    param."""
    named = flatten(params, where=where)
    if unknown := sorted(named.keys() - READ - IGNORED):
        raise ValueError(f"{where}: {_unknown(unknown[0])}")
    if "api_base" in named:
        named.setdefault("base_url", named["api_base"])
    if isinstance(named.get("stop"), str):
        named["stop"] = (named["stop"],)
    try:
        if (form := named.pop("response_format", None)) is not None:
            named["json"] = json_of(form)
        named = as_kept(named)
        changed = {name: named[name] for name in _SAMPLED if name in named}
        sampling = msgspec.convert(changed, Sampling)
        changes = {name: getattr(sampling, name) for name in changed}
        read = msgspec.convert({**named, "changes": changes}, CompletionParams)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {wrong_type(named) or error}") from error
    except UsageError as error:
        raise ValueError(f"{where}: {error}") from error
    if read.n is not None and read.n < 1:
        raise ValueError(f"{where}: n must be 1 or more, not {read.n}")
    if read.model is not None and not read.model:
        raise ValueError(f"{where}: the model's name is empty")
    return read


def flatten(params: Mapping[str, object], *, where: str) -> dict[str, object]:
    """Moves the known members of `extra_body` out of it: `{"extra_body": {"top_k": 5}}` becomes
    `{"top_k": 5}`.

    Clients send in `extra_body` the parameters that they do not know. Unknown members stay in it.
    Raises `ValueError` for a model, an address or `n` in `extra_body`, and for a parameter that has
    another value outside. Params that are None are dropped.
    """
    named = {name: value for name, value in params.items() if value is not None}
    extra = named.pop("extra_body", None) or {}
    if not isinstance(extra, Mapping):
        raise ValueError(f"{where}: extra_body is an object, not {extra!r:.200}")
    known = READ | IGNORED | {"api_key"}
    inner = {name: value for name, value in extra.items() if value is not None}
    _check_inner(inner, named, where)
    rest = {name: value for name, value in inner.items() if name not in known}
    named |= {name: value for name, value in inner.items() if name in known}
    return named | {"extra_body": rest} if rest else named


def _check_inner(inner: Mapping[str, object], named: Mapping[str, object], where: str) -> None:
    if wrong := sorted(inner.keys() & {"n", *_WHERE}):
        raise ValueError(
            f"{where}: extra_body.{wrong[0]}: give {wrong[0]} itself, and not in extra_body"
        )
    for name in sorted(inner.keys() & named.keys()):
        if inner[name] != named[name]:
            raise ValueError(
                f"{where}: {name} is {named[name]!r:.100}, and in extra_body {inner[name]!r:.100}; "
                "give it once"
            )


def _unknown(name: str) -> str:
    if name == "api_key":
        return "a key would be recorded; give the processor api_keys={address: key} instead"
    near = nearest(name, READ)
    meant = f"is {near!r} meant? " if near else ""
    return f"unknown completion parameter {name!r}; {meant}known: {', '.join(sorted(READ))}"
