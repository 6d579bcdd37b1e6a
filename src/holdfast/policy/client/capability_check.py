"""Reports what an endpoint can do and what it lacks for training. The check samples some tokens."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable

from msgspec import Struct, structs

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import UNFINISHED, Seeds
from holdfast.policy.policy import Completion, Draft, Partial, Policy, Request
from holdfast.records.encoding.tokens import (
    count,
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)
from holdfast.records.errors import HoldfastError
from holdfast.records.message import user
from holdfast.records.samples.logprobs import PROCESSING, LogprobsMode
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSource

PROMPT = array("i", [5, 6, 7, 8])
TOKENS = 12
PLAIN = "sample at temperature 1 and top_p 1 alone"


class CapabilityFinding(Struct, frozen=True):
    """One ability of an engine. `fit` says whether it is good enough for training."""

    what: str
    fit: bool
    detail: str
    failed: bool = False
    """Whether the check itself failed. Then `detail` is the engine's answer."""
    remedy: str = ""
    """The change that would make the engine fit, or "" if there is none."""


class Inspection(Struct, frozen=True):
    url: str
    model: str
    dialect: str
    max_model_len: int | None
    findings: tuple[CapabilityFinding, ...]

    @property
    def is_fit_for_training(self) -> bool:
        return all(finding.fit for finding in self.findings)

    @property
    def is_fit_for_evaluation(self) -> bool:
        """Returns whether at least one check succeeded."""
        return not all(finding.failed for finding in self.findings)


async def inspect(policy: EnginePolicy) -> Inspection:
    """Inspects the first replica of a checked policy."""
    endpoint = policy.endpoints[0]
    checks = _CHECKS if policy.has_tokens else (_chat,)
    findings = [await _run_check(check, policy) for check in checks]
    return Inspection(
        url=endpoint.name,
        model=policy.model,
        dialect=endpoint.dialect.kind.value,
        max_model_len=endpoint.described.max_model_len,
        findings=tuple(findings),
    )


_LOGPROBS = {
    LogprobsMode.PROCESSED: CapabilityFinding(
        "logprobs", True, "of the distribution that was sampled from"
    ),
    LogprobsMode.TEMPERED: CapabilityFinding(
        "logprobs",
        True,
        "with temperature, but not with cuts: sample uncut (top_p 1, no top_k or min_p)",
    ),
    LogprobsMode.RAW: CapabilityFinding(
        "logprobs",
        False,
        "raw: temperature and top_p are not in them",
        remedy=f"start it with processed ones ({PROCESSING}), or {PLAIN}",
    ),
    LogprobsMode.UNKNOWN: CapabilityFinding(
        "logprobs", False, "of a distribution that could not be measured", remedy=PLAIN
    ),
}


Check = Callable[[EnginePolicy], Awaitable[CapabilityFinding]]


async def _run_check(check: Check, policy: EnginePolicy) -> CapabilityFinding:
    try:
        return await check(policy)
    except HoldfastError as error:
        name = (check.__doc__ or check.__name__).split(".")[0]
        return CapabilityFinding(name, False, f"failed: {error}", failed=True)


def _request(*, tokens: int = TOKENS, temperature: float = 1.0, seed: int | None = 7) -> Request:
    return Request(PROMPT, Sampling(tokens, temperature), seed, "holdfast-policy-check")


async def _chat(policy: EnginePolicy) -> CapabilityFinding:
    """token ids."""
    request = structs.replace(_request(), messages=(user("Say hello."),))
    reply = await policy.sample(request)
    assert reply.message is not None, "chat answers with a message"
    return CapabilityFinding(
        "token ids", False, "none: this engine answers with messages, good for evaluation only"
    )


async def _ids(policy: EnginePolicy) -> CapabilityFinding:
    """token ids."""
    completion = await policy.sample(_request())
    return CapabilityFinding(
        "token ids", True, f"{count(completion.ids)} ids with as many logprobs"
    )


async def _logprobs(policy: EnginePolicy) -> CapabilityFinding:
    """logprobs."""
    await policy.sample(_request(tokens=1))  # Raises if the engine cannot sample.
    return _LOGPROBS[policy.logprobs_mode]


async def _versions(policy: EnginePolicy) -> CapabilityFinding:
    """weight versions."""
    spans = (await policy.sample(_request())).versions
    versions = [span.version for span in spans if span.source is VersionSource.ENGINE]
    if UNFINISHED in versions:
        return CapabilityFinding(
            "weight versions",
            False,
            "an update of its weights did not end, and they may be half loaded",
            remedy="run the same `holdfast train` again, which sends them, or start it anew",
        )
    if versions:
        return CapabilityFinding(
            "weight versions", True, f"reported per span of tokens (now {versions[-1]!r})"
        )
    return CapabilityFinding(
        "weight versions",
        True,
        "not reported: spans are marked as assumed from the last acknowledged update "
        "(vLLM reports them with --enable-scale-out)",
    )


async def _seeds(policy: EnginePolicy) -> CapabilityFinding:
    """seeds."""
    is_by_position = policy.seeds is Seeds.POSITION
    detail = await repeatability(policy, _request(), seeds_by_position=is_by_position)
    return CapabilityFinding("seeds", True, detail)


async def _streams(policy: EnginePolicy) -> CapabilityFinding:
    """streaming."""
    saved: list[Draft] = []

    async def save(draft: Draft) -> None:
        saved.append(draft)

    request = structs.replace(_request(), partial=Partial(save, 4))
    streamed = await policy.sample(request)
    whole = await policy.sample(_request())
    if _tokens(streamed) != _tokens(whole):
        return CapabilityFinding(
            "streaming", True, "works; its tokens differ from those of a whole reply"
        )
    return CapabilityFinding("streaming", True, "works: a reply can go on from its last token")


def _tokens(completion: Completion) -> list[int]:
    return unpack_ids(completion.ids).tolist()


_CHECKS: tuple[Check, ...] = (_ids, _logprobs, _versions, _seeds, _streams)


# --- seeds


OTHER_REQUESTS = (1, 3, 7)
"""How many other requests run beside the tested request, in each trial."""
_TRIED = "alone and beside 1, 3 and 7 other requests"


async def repeatability(policy: Policy, request: Request, *, seeds_by_position: bool) -> str:
    """Tests how well replies repeat with the same seed, and returns the result in words.

    The same request is sent alone and beside other requests, because an engine may compute a batch
    in another way if its other requests change. Tokens and logprobs are compared bit by bit.
    `seeds_by_position` says that the engine promises the same tokens for a reply that continues
    after an interruption. Then the request is also continued from the middle of its reply.
    """
    first, second = await policy.sample(request), await policy.sample(request)
    if first.ids != second.ids:
        return "do not repeat: a run cannot be reproduced, only resumed"
    beside = [await _beside(policy, request, others=number) for number in OTHER_REQUESTS]
    if any(item.ids != first.ids for item in beside):
        return "repeat alone, and not beside other requests: a run can be resumed, not reproduced"
    if off := max(_difference(first, entry) for entry in (second, *beside)):
        return f"repeat the tokens, {_TRIED}; their logprobs differ by up to {off:.2g}"
    if not seeds_by_position:
        return f"repeat exactly for whole replies (tokens and logprobs, {_TRIED})"
    if (await _from_middle(policy, request, first)).ids != first.ids:
        return f"repeat exactly for whole replies only, although the engine says more ({_TRIED})"
    return f"repeat exactly (tokens and logprobs, {_TRIED}), also when a reply goes on after a kill"


async def _beside(policy: Policy, request: Request, *, others: int) -> Completion:
    """Returns the reply to the request, which is sent together with `others` requests of other
    lengths."""
    seed, prompt = request.seed or 0, request.prompt
    together = [
        structs.replace(request, prompt=prompt + prompt[:1] * n, seed=seed + n)
        for n in range(1, others + 1)
    ]
    # In the middle, so that the request neither joins nor leaves an empty batch.
    half = others // 2
    together.insert(half, request)
    return (await asyncio.gather(*map(policy.sample, together)))[half]


async def _from_middle(policy: Policy, request: Request, whole: Completion) -> Completion:
    half = count(whole.ids) // 2
    ids, logprobs = unpack_ids(whole.ids)[:half], unpack_logprobs(whole.logprobs)[:half]
    draft = Draft(0, pack_ids(ids), pack_logprobs(logprobs))
    return await policy.sample(structs.replace(request, draft=draft))


def _difference(first: Completion, second: Completion) -> float:
    pairs = zip(unpack_logprobs(first.logprobs), unpack_logprobs(second.logprobs), strict=True)
    return max((abs(left - right) for left, right in pairs), default=0.0)
