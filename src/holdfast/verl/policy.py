"""Uses verl's own inference servers as a policy.

verl handles pauses, aborts and weights: it holds a request while weights change, and reports the
steps whose weights sampled a reply. The policy only sends requests and checks the replies.
"""

import time
from typing import Any

from ray.exceptions import RayError

from holdfast.policy.client.completion_builder import check_logprobs, pack
from holdfast.policy.dialects.dialect import InvalidAnswer
from holdfast.policy.policy import Completion, Request
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs
from holdfast.records.errors import BadAnswer, EngineUnavailable
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.step import VersionSource, VersionSpan

_FINISH = {"completed": "stop", "stop": "stop", "length": "length", None: "stop"}


class ServerPolicy:
    """`LLMServerClient.generate` as a policy. Its versions are `step-N`, where N is verl's global
    step.

    All requests of one trajectory share one id. verl sends them to one server, whose prefix cache
    has the earlier turns.
    """

    def __init__(
        self, client: Any, *, model: str, logprobs_mode: LogprobsMode, unique_ids: bool = False
    ):
        """`unique_ids` gives every request its own id. This is needed if verl passes the ids on to
        its engines (`full_determinism`), because an engine refuses two requests with the same id at
        the same time."""
        self.model = model
        self._client = client
        self._mode = logprobs_mode
        self._unique_ids = unique_ids

    async def check(self) -> None:
        """Does nothing: verl has started its servers before any agent loop runs."""

    async def ready(self) -> None:
        """Does nothing: verl holds requests by itself."""

    @property
    def seconds_down(self) -> float:
        return 0.0

    async def sample(self, request: Request) -> Completion:
        began = time.monotonic()
        prompt = request.prompt.tolist()
        try:
            output = await self._client.generate(
                request.id if self._unique_ids else request.home or request.id,
                prompt_ids=prompt,
                sampling_params=_params(request),
            )
        except (ConnectionError, TimeoutError, RuntimeError, RayError) as error:
            raise EngineUnavailable(f"verl's servers: {type(error).__name__}: {error}") from error
        return _completion(
            output, request, model=self.model, mode=self._mode, seconds=time.monotonic() - began
        )

    async def aclose(self) -> None:
        """Does nothing: verl manages the servers."""


def _params(request: Request) -> dict[str, Any]:
    how = request.sampling
    params: dict[str, Any] = {
        "temperature": how.temperature,
        "top_p": how.top_p,
        "top_k": how.top_k or -1,
        "repetition_penalty": how.repetition_penalty,
        "max_tokens": how.max_tokens,
        "logprobs": True,
    }
    if how.stop:
        params["stop"] = list(how.stop)
    if request.stop_token_ids or how.stop_token_ids:
        params["stop_token_ids"] = sorted({*request.stop_token_ids, *how.stop_token_ids})
    if request.seed is not None:
        params["seed"] = request.seed
    return params


def _completion(
    output: Any, request: Request, *, model: str, mode: LogprobsMode, seconds: float
) -> Completion:
    """Checks a reply, and converts it to a `Completion`. The reply must have token ids, and for
    each a finite logprob of at most 0. Raises `EngineUnavailable` for an aborted request, which is
    then sent again."""
    if output.stop_reason in ("aborted", "abort"):
        raise EngineUnavailable(f"verl aborted request {request.id}: it is sampled again")
    if output.token_ids is None or not len(output.token_ids):
        raise BadAnswer("verl's server gave no token ids")
    if output.log_probs is None:
        raise BadAnswer(
            "verl's server gave no logprobs; set actor_rollout_ref.rollout.calculate_log_probs=True"
        )
    try:
        ids = pack(output.token_ids)
        logprobs = check_logprobs(output.log_probs, len(ids))
        versions = _versions(output.extra_fields, len(ids))
    except (InvalidAnswer, TypeError, ValueError) as error:
        raise BadAnswer(f"what verl's server gave is not an answer: {error}") from error
    reason = _FINISH.get(output.stop_reason, str(output.stop_reason))
    if len(ids) >= request.sampling.max_tokens and output.stop_reason != "stop":
        reason = "length"
    return Completion(
        ids=pack_ids(ids),
        logprobs=pack_logprobs(logprobs),
        finish_reason=reason,
        versions=versions,
        model=model,
        tries=1,
        seconds=seconds,
        logprobs_mode=mode,
    )


def version_name(step: int) -> str:
    return f"step-{step}"


def step_of(version: str) -> int | None:
    """Returns the step of a version that this policy named, or None for any other name."""
    prefix, _, number = version.partition("-")
    return int(number) if prefix == "step" and number.isdecimal() else None


def _versions(fields: dict[str, Any], length: int) -> tuple[VersionSpan, ...]:
    """Returns one span for the whole reply. If the weights changed during the reply, the span names
    the older weights, because verl does not say at which token they changed."""
    least, most = fields.get("min_global_steps"), fields.get("max_global_steps")
    if least is None:
        return (VersionSpan("", 0, length, VersionSource.UNKNOWN),)
    source = VersionSource.ENGINE if least == most else VersionSource.ASSUMED
    return (VersionSpan(version_name(int(least)), 0, length, source),)
