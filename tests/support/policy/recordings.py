"""What a real vLLM 0.32 said, from `tests/wire`."""

import json
from itertools import cycle, islice
from typing import Any

from support.paths import WIRE
from support.policy.answers import logprobs_of


def recorded(name: str) -> Any:
    return json.loads((WIRE / f"{name}.json").read_text())


def filled(name: str) -> Any:
    """A recorded answer whose tokens were left out but for the first five, and its logprobs too.

    The recorded ids are repeated until there are as many as the answer counts, and each gets the
    logprob of its own that `spoken` gives it; all else is as recorded.
    """
    answer = recorded(name)
    answer = answer.get("response", answer)
    choice = answer["choices"][0]
    ids = list(islice(cycle(choice["token_ids"]), answer["usage"]["completion_tokens"]))
    choice["token_ids"] = ids
    if "weight_versions" in choice:
        both = zip(ids, logprobs_of(ids), strict=True)
        choice["logprobs"] = {"content": [{"token_id": a, "logprob": b} for a, b in both]}
    else:
        choice["logprobs"] = {"token_logprobs": logprobs_of(ids)}
    return answer
