"""What an engine can be asked for: refused by name before it is sent, where the engine would refuse
it, or ignore it in silence.

Known are the engines whose interface is fixed. An OpenAI-compatible server may know more or less
than OpenAI's own: it is sent what was asked for, and its own words are reported if it refuses.
Hosts that are known to ignore what they do not know are listed.
"""

from array import array
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from holdfast.policy.client.completion_builder import CompletionBuilder
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.dialects.dialect import Kind, SampleRequest
from holdfast.policy.policy import Request
from holdfast.records.errors import Unsupported
from holdfast.records.sampling import Sampling

OTHER_ENGINES = "use vLLM, SGLang or another engine that can"
_LESS_USUAL = ("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos")
_OPENAI: tuple[str, ...] = ("presence_penalty", "frequency_penalty", "logit_bias")
_LACKING: Mapping[Kind, tuple[str, ...]] = {
    Kind.FIREWORKS: ("stop_token_ids", "routed_experts"),
    Kind.CHAT: ("routed_experts",),
}
_LACKING_HOSTS: Mapping[str, tuple[str, ...]] = {
    "api.openai.com": (*_LESS_USUAL, "chat_template_kwargs"),
    # It ignores what it does not know, and says nothing.
    "api.anthropic.com": (*_LESS_USUAL, *_OPENAI, "chat_template_kwargs"),
}
_WORDS = {
    "top_k": "has no top_k",
    "min_p": "has no min_p",
    "presence_penalty": "has no presence_penalty",
    "frequency_penalty": "has no frequency_penalty",
    "repetition_penalty": "has no repetition_penalty",
    "logit_bias": "has no logit_bias",
    "stop_token_ids": "ends no reply at token ids (stop_token_ids); give stop, a text",
    "ignore_eos": "has no ignore_eos",
    "routed_experts": "gives no routed experts (routed_experts)",
    "chat_template_kwargs": "takes no arguments for a chat template (chat_template_kwargs)",
}


def check_sampling(sampling: Sampling, endpoint: Endpoint) -> None:
    """Raises `Unsupported`, with a message for agents: it holds no address."""
    if not endpoint.takes_json:
        _check_embedded(sampling)
    _check_budget(sampling, endpoint)
    for name in _lacking(endpoint):
        if getattr(sampling, name) != getattr(_PLAIN, name):
            raise Unsupported(name, f"this engine {_WORDS[name]}; {OTHER_ENGINES}, or leave it out")
    if sampling.ignore_eos and sampling.stop_token_ids and endpoint.dialect.kind is Kind.SGLANG:
        raise Unsupported(
            "stop_token_ids", "SGLang ends no reply at token ids with ignore_eos: give one of both"
        )


_PLAIN = Sampling()
_PROMPT = array("i", [0])


def check_run(sampling: Sampling, endpoint: Endpoint) -> None:
    """The same for all replies of a run, with a request like theirs."""
    check_sampling(sampling, endpoint)
    request = Request(_PROMPT, sampling, 0, "", stop_token_ids=sampling.stop_token_ids)
    endpoint.body(SampleRequest(request, endpoint.model, _PROMPT, 1, 0, stream=True))


def _lacking(endpoint: Endpoint) -> Iterable[str]:
    hosted = _LACKING_HOSTS.get(urlsplit(endpoint.url).hostname or "", ())
    return (*_LACKING.get(endpoint.dialect.kind, ()), *hosted)


def check_whole_answer(request: Request, endpoint: Endpoint) -> None:
    """vLLM's `/v1/completions` has routed experts in answers in one piece alone."""
    is_in_parts = request.partial is not None and endpoint.dialect.kind is Kind.VLLM
    if request.experts_from is not None and is_in_parts:
        raise Unsupported(
            "routed_experts",
            "vLLM streams no routed experts on /v1/completions: start it with --enable-scale-out, "
            "or sample replies in one piece (--partial-tokens 0)",
        )


def check_experts(sampled: CompletionBuilder) -> None:
    """Raises `Unsupported` for an answer without the routed experts that were asked for."""
    if sampled.lacks_experts:
        raise Unsupported(
            "routed_experts",
            "the engine gives no routed experts: start vLLM or SGLang with "
            "--enable-return-routed-experts and a model that has experts, or leave them out",
        )


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


def _check_budget(sampling: Sampling, endpoint: Endpoint) -> None:
    if sampling.thinking_token_budget is not None and (
        not endpoint.takes_json or endpoint.dialect.kind in (Kind.SGLANG, Kind.FIREWORKS)
    ):
        raise Unsupported(
            "thinking_token_budget",
            "this engine ends no reasoning after a number of tokens; use vLLM, started with "
            "--reasoning-parser",
        )


def check_structure(structure: str, sampling: Sampling, endpoint: Endpoint) -> None:
    """The same for a reply that is kept to tool calls."""
    if structure and (not endpoint.takes_json or endpoint.dialect.kind is Kind.FIREWORKS):
        what = "tool_choice" if sampling.tool_choice else "parallel_tool_calls"
        raise Unsupported(what, f"this engine cannot keep a reply to tool calls; {OTHER_ENGINES}")
