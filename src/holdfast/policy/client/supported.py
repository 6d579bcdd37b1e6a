"""Decides which requests an engine supports.

A parameter that the engine would refuse, or ignore in silence, is refused by name before the
request is sent. The checks know the engines with a fixed interface. An OpenAI-compatible server may
support more or less than OpenAI's own. So the request is sent to it, and its own words are reported
if it refuses. Hosts that are known to ignore unknown parameters are listed.
"""

from array import array
from collections.abc import Mapping

from msgspec import structs

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.dialects.dialect import one_try
from holdfast.policy.policy import Request
from holdfast.records.errors import BadRequest, PolicyError, Truncated, Unsupported
from holdfast.records.sampling import Sampling

OTHER_ENGINES = "use vLLM, SGLang or another engine that can"
_LESS_USUAL = ("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos")
_OPENAI: tuple[str, ...] = ("presence_penalty", "frequency_penalty", "logit_bias")
_LACKING_HOSTS: Mapping[str, tuple[str, ...]] = {
    "api.openai.com": (*_LESS_USUAL, "chat_template_kwargs"),
    # Anthropic's chat API silently ignores unknown parameters.
    "api.anthropic.com": (*_LESS_USUAL, *_OPENAI, "chat_template_kwargs"),
}
_WORDS = {
    "stop_token_ids": "ends no reply at token ids (stop_token_ids); give stop, a text",
    "routed_experts": "gives no routed experts (routed_experts)",
    "chat_template_kwargs": "takes no arguments for a chat template (chat_template_kwargs)",
}
"""What to say about parameters for which "has no …" is not enough."""
_PLAIN = Sampling()
_PROMPT = array("i", [1])


def check_request(request: Request, endpoint: Endpoint) -> None:
    """Raises `Unsupported` if the engine does not support the request. The message is for agents
    and holds no address."""
    sampling, dialect, takes_json = request.sampling, endpoint.dialect, endpoint.takes_json
    if not takes_json:
        _check_embedded(sampling)
    if sampling.thinking_token_budget is not None and not (takes_json and dialect.ends_reasoning):
        raise Unsupported(
            "thinking_token_budget",
            "this engine ends no reasoning after a number of tokens; use vLLM, started with "
            "--reasoning-parser",
        )
    for name in (*dialect.lacks, *_LACKING_HOSTS.get(endpoint.host, ())):
        if getattr(sampling, name) != getattr(_PLAIN, name):
            lacks = _WORDS.get(name, f"has no {name}")
            raise Unsupported(name, f"this engine {lacks}; {OTHER_ENGINES}, or leave it out")
    if request.structure and not (takes_json and dialect.takes_structure):
        what = "tool_choice" if sampling.tool_choice else "parallel_tool_calls"
        raise Unsupported(what, f"this engine cannot keep a reply to tool calls; {OTHER_ENGINES}")
    dialect.check(request)


def check_run(sampling: Sampling, endpoint: Endpoint) -> None:
    """Raises `Unsupported` if the engine does not support requests with this sampling."""
    request = Request(_PROMPT, sampling, 0, "", stop_token_ids=sampling.stop_token_ids)
    check_request(request, endpoint)
    endpoint.body(one_try(request, endpoint.model, max_tokens=1, stream=True))


def _check_embedded(sampling: Sampling) -> None:
    if sampling.routed_experts:
        raise Unsupported(
            "routed_experts", f"the embedded engine gives no routed experts; {OTHER_ENGINES}"
        )
    if sampling.json is not False:
        raise Unsupported(
            "json",
            "the embedded engine cannot keep a reply to JSON; ask for JSON in the prompt, or "
            f"{OTHER_ENGINES}",
        )


# --- asked before the run is recorded


_ONLY_THE_ENGINE_KNOWS = ("extra_body", "logit_bias", "stop_token_ids")


async def check_taken(sampling: Sampling, endpoint: Endpoint) -> None:
    """Raises `Unsupported`, with the names of the parameter and the engine, if the engine refuses a
    parameter. Returns if the engine does not answer now, because the first replies will show a
    refusal.

    Only the engine knows which members of an `extra_body` it takes, and how large its vocabulary
    is. So the engine gets a request with each such parameter, which ends as soon as the engine
    accepts it. Chat APIs get no such request, because they do not end a request that early and
    charge for it.
    """
    if not endpoint.dialect.has_tokens:
        return
    for name in _ONLY_THE_ENGINE_KNOWS:
        if getattr(sampling, name) != getattr(_PLAIN, name):
            # One parameter at a time, to find out which one is refused.
            others = {other: getattr(_PLAIN, other) for other in _ONLY_THE_ENGINE_KNOWS}
            alone = structs.replace(sampling, **others | {name: getattr(sampling, name)})
            await _ask(name, alone, endpoint)


async def _ask(name: str, sampling: Sampling, endpoint: Endpoint) -> None:
    stops = sampling.stop_token_ids
    request = Request(_PROMPT, sampling, 0, "holdfast-sampling-check", stop_token_ids=stops)
    longest = endpoint.described.max_model_len or sampling.max_tokens + 1
    # At least as many tokens as the run requests, because they bound some parameters
    # (`min_tokens`).
    tokens = max(1, min(sampling.max_tokens, longest - 1))
    attempt = one_try(request, endpoint.model_name, max_tokens=tokens, stream=True)
    try:
        await endpoint.check_taken(attempt)
    except BadRequest as error:
        engine = endpoint.name if endpoint.takes_json else "the embedded engine"
        reason = error.reason.removeprefix("the engine ").replace("\n", " ")
        raise Unsupported(
            name,
            f"{name} is refused by {engine}: it {reason}; change it, or leave it out",
            why=f"{name}: {error.reason}",
        ) from error
    except (PolicyError, Truncated):
        return
