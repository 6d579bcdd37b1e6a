"""Possible: what an endpoint cannot do, said before it is asked."""

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Request
from holdfast.records.errors import Unsupported

_OTHERS = "use vLLM, SGLang or another engine that can"


def check_possible(request: Request, endpoint: Endpoint) -> None:
    """Raises `Unsupported`, with a message for agents: it holds no address."""
    sampling = request.sampling
    is_embedded = not endpoint.takes_json
    if sampling.json is not False and is_embedded:
        raise Unsupported(
            "json",
            "the embedded engine cannot keep a reply to JSON; ask for JSON in the prompt, or "
            f"{_OTHERS}",
        )
    if request.structure and (is_embedded or endpoint.dialect.kind is Kind.FIREWORKS):
        what = "tool_choice" if sampling.tool_choice else "parallel_tool_calls"
        raise Unsupported(what, f"this engine cannot keep a reply to tool calls; {_OTHERS}")
    if sampling.top_k and is_embedded:
        raise Unsupported("top_k", f"the embedded engine draws of all tokens; {_OTHERS}")
    if sampling.thinking_token_budget is not None and (
        is_embedded or endpoint.dialect.kind in (Kind.SGLANG, Kind.FIREWORKS)
    ):
        raise Unsupported(
            "thinking_token_budget",
            "this engine ends no reasoning after a number of tokens; use vLLM, started with "
            "--reasoning-parser",
        )
