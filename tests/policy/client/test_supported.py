"""What an engine cannot be asked for is refused by name before it is asked, and nothing is lost."""

import asyncio
from array import array
from typing import Any

import pytest

from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.client.supported import check_run
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Request
from holdfast.records.errors import Unsupported, UsageError
from holdfast.records.message import user
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine
from support.policy.answers import PROMPT, plain, prompt_of_body, request
from support.policy.clients import ids, sample

ENGINES = ["vllm", "vllm-scale-out", "sglang", "fireworks", "chat"]


def request_with(**changes: Any) -> Request:
    sampling = Sampling(4, **changes)
    stops = sampling.stop_token_ids
    messages = (user("hi"),)
    return Request(array("i", [5, 6]), sampling, 1, "r", stop_token_ids=stops, messages=messages)


def sent(dialect: str, **changes: Any) -> dict[str, Any]:
    """The parameters that an engine of this kind gets, over a socket."""

    async def main() -> None:
        policy = EnginePolicy(engine.url, engine.model)
        try:
            await policy.check()
            engine.reset()
            policy.check_sampling(Sampling(4, **changes))
            await policy.sample(request_with(**changes))
        finally:
            await policy.aclose()

    with FakeEngine(dialect=dialect) as engine:
        asyncio.run(main())
        (call,) = engine.calls()
    parameters: Any = call.parameters
    return {**parameters, **parameters.get("sampling_params", {})}


@pytest.mark.parametrize("dialect", ENGINES)
def test_penalties_and_extras_reach_every_engine(dialect: str) -> None:
    extra = {"cache_salt": "mine", "nested": {"a": [1]}}
    fields = sent(
        dialect,
        min_p=0.25,
        presence_penalty=0.5,
        repetition_penalty=1.25,
        logit_bias={5: -1},
        ignore_eos=True,
        extra_body=extra,
    )
    assert fields == fields | extra
    assert fields == fields | {"min_p": 0.25, "presence_penalty": 0.5, "repetition_penalty": 1.25}
    assert fields == fields | {"logit_bias": {"5": -1.0}, "ignore_eos": True}


@pytest.mark.parametrize("dialect", ["vllm-scale-out", "sglang"])
def test_extras_go_into_what_is_nested_and_change_nothing_there(dialect: str) -> None:
    fields = sent(dialect, extra_body={"sampling_params": {"min_tokens": 2}})
    assert (fields["min_tokens"], fields["temperature"]) == (2, 1.0)


@pytest.mark.parametrize("dialect", ENGINES)
def test_stop_token_ids_end_a_reply_or_are_refused(dialect: str) -> None:
    if dialect == "fireworks":
        with pytest.raises(Unsupported, match="ends no reply at token ids") as refused:
            sent(dialect, stop_token_ids=(9,))
        assert refused.value.what == "stop_token_ids"
    else:
        assert sent(dialect, stop_token_ids=(9,))["stop_token_ids"] == [9]


def test_sglang_has_no_stop_token_ids_beside_ignore_eos() -> None:
    with pytest.raises(Unsupported, match="give one of both"):
        sent("sglang", stop_token_ids=(9,), ignore_eos=True)


def test_what_the_request_has_already_is_no_extra() -> None:
    for dialect, name in (("vllm-scale-out", "detokenize"), ("chat", "stop")):
        extra = {name: 1} if dialect == "chat" else {"sampling_params": {name: False}}
        with pytest.raises((Unsupported, UsageError), match=rf"extra_body\..*{name}: "):
            sent(dialect, stop=("x",), extra_body=extra)


@pytest.mark.parametrize(
    ("host", "changes"),
    [
        ("https://api.openai.com", {"min_p": 0.1}),
        ("https://api.openai.com", {"chat_template_kwargs": {"a": 1}}),
        ("https://api.anthropic.com", {"presence_penalty": 1}),
        ("https://api.anthropic.com", {"logit_bias": {5: 1}}),
        ("https://api.anthropic.com", {"top_k": 5}),
    ],
    ids=str,
)
def test_hosts_that_lack_a_parameter_are_never_asked_for_it(host: str, changes: Any) -> None:
    policy = EnginePolicy(host, "m", dialect=Kind.CHAT)
    endpoint: Endpoint = policy.endpoints[0]
    endpoint.dialect = DIALECTS[Kind.CHAT]
    check_run(Sampling(), endpoint)
    with pytest.raises(Unsupported, match=f"this engine .*{next(iter(changes))}"):
        check_run(Sampling(**changes), endpoint)


def test_a_reply_with_counted_penalties_begins_anew_where_another_goes_on() -> None:
    """An engine counts the tokens of a reply in each request from 0 on: what went on from earlier
    tokens would be drawn from another distribution."""
    kind = Kind.VLLM
    aborted, whole = plain(kind, [40, 41], finish="abort"), plain(kind, [50, 51], finish="stop")
    for changes, begun in (
        ({}, [*PROMPT, 40, 41]),
        ({"repetition_penalty": 1.5}, [*PROMPT, 40, 41]),
        ({"presence_penalty": 0.5}, PROMPT),
        ({"frequency_penalty": 0.5}, PROMPT),
        ({"extra_body": {"a": 1}}, PROMPT),
    ):
        item = request(seed=None)
        entry = Request(item.prompt, Sampling(8, **changes), None, "r")  # type: ignore[arg-type]
        completion, bodies = sample(aborted, whole, body=entry, kind=kind)
        assert prompt_of_body(kind, bodies[1]) == begun
        assert ids(completion)[-2:] == [50, 51]
        assert (len(ids(completion)) == 2) == (begun == PROMPT)
