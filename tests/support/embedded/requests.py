"""Requests to the embedded engine, and their responses."""

import asyncio
from typing import Any

from holdfast.embedded.scheduler.engine import DecodeEngine
from support.embedded.client import NAME, completion, serving

_VARYING = ("top_logprobs", "bytes")


def through(engine: DecodeEngine, ask: Any) -> Any:
    async def main() -> Any:
        async with serving(engine) as client:
            return await ask(client)

    return asyncio.run(main())


def body_for(path: str, **changes: Any) -> dict[str, Any]:
    if path == "/v1/completions":
        return completion(**changes)
    names = ("n", "max_tokens", "seed", "logprobs", "stop", "stop_token_ids", "temperature")
    inner = {"max_tokens": 8, "seed": 7, "logprobs": 0}
    inner |= {name: changes.pop(name) for name in names if name in changes}
    return {"model": NAME, "token_ids": [5, 6, 7], "sampling_params": inner, **changes}


def keys(value: Any) -> Any:
    """The shape of an answer: names all the way down, numbers and texts left out."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items() if name not in _VARYING}
    return [keys(value[0])] if isinstance(value, list) and value else None
