"""What each engine is asked, word for word."""

import json
from array import array
from typing import Any

import msgspec
import pytest

from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import InvalidAnswer, Kind, one_try
from holdfast.policy.policy import Request
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, system, user
from holdfast.records.sampling import Sampling
from support.policy.answers import PROMPT

SAMPLING = Sampling(50, temperature=0.5, top_p=0.9, stop=("END",))
TOOLS = ({"type": "function", "function": {"name": "add"}},)


def body(kind: Kind, *, stream: bool = False, **more: Any) -> dict[str, object]:
    prompt = array("i", [*PROMPT, 9])
    request = Request(prompt, SAMPLING, 11, "r", stop_token_ids=(2,), **more)
    fields = DIALECTS[kind].body(one_try(request, "m", max_tokens=20, stream=stream))
    sent: dict[str, object] = msgspec.json.decode(msgspec.json.encode(fields))
    return sent


def test_every_kind_has_its_dialect() -> None:
    assert {kind: dialect.kind for kind, dialect in DIALECTS.items()} == {
        item: item for item in Kind
    }


def test_vllm_is_asked_for_ids_and_the_logprobs_of_the_sampled_tokens() -> None:
    expected = {
        "model": "m",
        "prompt": [*PROMPT, 9],
        "max_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "logprobs": 0,
        "return_token_ids": True,
        "stop": ["END"],
        "stop_token_ids": [2],
        "seed": 11,
    }
    fields = body(Kind.VLLM)
    assert fields == fields | expected
    assert "stream" not in fields
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert body(Kind.VLLM, stream=True) == fields | streamed


def test_generate_is_asked_to_look_at_text_only_for_stop_strings() -> None:
    fields = body(Kind.VLLM_GENERATE, stream=True)
    params = fields["sampling_params"]
    assert isinstance(params, dict)
    assert (fields["token_ids"], fields["stream"]) == ([*PROMPT, 9], True)
    assert params == params | {
        "max_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "logprobs": 0,
        "stop": ["END"],
        "detokenize": True,
        "stop_token_ids": [2],
        "seed": 11,
    }


def test_sglang_is_asked_in_its_own_words() -> None:
    fields = body(Kind.SGLANG)
    assert (fields["input_ids"], fields["return_logprob"]) == ([*PROMPT, 9], True)
    params = fields["sampling_params"]
    assert isinstance(params, dict)
    assert params == params | {
        "max_new_tokens": 20,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "stop_token_ids": [2],
        "sampling_seed": 11,
    }


def test_fireworks_is_asked_for_ids() -> None:
    fields = body(Kind.FIREWORKS)
    assert (fields["prompt"], fields["return_token_ids"], fields["logprobs"]) == (
        [*PROMPT, 9],
        True,
        True,
    )
    assert (fields["max_tokens"], fields["seed"], fields["stop"]) == (20, 11, ["END"])


def test_a_chat_is_asked_with_messages_as_every_server_takes_them() -> None:
    call = ToolCall("c1", FunctionCall("add", '{"a": 1}'))
    messages = (
        system("be brief"),
        user("1 + 1?"),
        Message(Role.ASSISTANT, "", tool_calls=(call,), reasoning="hm"),
        Message(Role.TOOL, "2", tool_call_id="c1"),
        Message(Role.ASSISTANT, ""),
    )
    fields = body(Kind.CHAT, messages=messages, tools=TOOLS)
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert fields["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": ""},
    ]
    assert fields["tools"] == list(TOOLS)
    assert "stream" not in fields
    assert "prompt" not in fields


def test_a_chat_is_never_streamed() -> None:
    with pytest.raises(InvalidAnswer, match="never streamed"):
        DIALECTS[Kind.CHAT].reader()


@pytest.mark.parametrize(
    ("message", "content", "reasoning"),
    [
        ({"content": "hi"}, "hi", None),
        ({"content": None, "reasoning_content": "hm"}, "", "hm"),
        ({"content": "hi", "reasoning": "hm"}, "hi", "hm"),
        ({"content": "<think>hm</think>\n\nhi"}, "\n\nhi", "hm"),
        ({"content": "<thinking>hm</thinking>hi"}, "hi", "hm"),
        ({"content": "<think></think>hi"}, "hi", ""),
        ({"content": " <think>hm</think>hi"}, " <think>hm</think>hi", None),
        ({"content": "hi <think>hm</think>"}, "hi <think>hm</think>", None),
        ({"content": "<think>cut"}, "<think>cut", None),
        # As vLLM without --reasoning-parser: it has a field for reasoning, and says that there is
        # none.
        ({"content": "<think>hm</think>hi", "reasoning": None}, "<think>hm</think>hi", None),
        ({"content": "<think>a</think>hi", "reasoning_content": "b"}, "<think>a</think>hi", "b"),
    ],
)
def test_a_message_is_read_with_its_reasoning(
    message: dict[str, Any], content: str, reasoning: str | None
) -> None:
    answer = {"choices": [{"message": message, "finish_reason": "stop"}]}
    piece = DIALECTS[Kind.CHAT].whole(json.dumps(answer).encode())
    assert piece.message == Message(Role.ASSISTANT, content, reasoning=reasoning)


ALTERING = Sampling(
    50,
    top_k=5,
    min_p=0.1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.5,
    logit_bias=((7, -100.0),),
    stop_token_ids=(3,),
    ignore_eos=True,
    chat_template_kwargs='{"enable_thinking":false}',
)
NAMED = {
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {"7": -100.0},
    "ignore_eos": True,
}


@pytest.mark.parametrize("kind", list(Kind))
def test_each_engine_is_asked_for_all_that_it_knows_by_its_name(kind: Kind) -> None:
    prompt = array("i", PROMPT)
    request = Request(prompt, ALTERING, 11, "r", stop_token_ids=(3,), messages=(user("hi"),))
    fields = DIALECTS[kind].body(one_try(request, "m", max_tokens=20))
    params: Any = fields.get("sampling_params", fields)
    assert {name: params.get(name) for name in NAMED} == NAMED
    assert params.get("stop_token_ids") == (None if kind is Kind.FIREWORKS else [3])
    # A prompt of tokens is rendered already.
    written = {"enable_thinking": False} if kind is Kind.CHAT else None
    assert fields.get("chat_template_kwargs") == written


@pytest.mark.parametrize("kind", list(Kind))
def test_an_engine_is_not_bothered_with_what_nobody_asked_for(kind: Kind) -> None:
    fields = body(kind, messages=(user("hi"),))
    params: Any = fields.get("sampling_params", fields)
    own = {"top_k", "min_p", "repetition_penalty"} if kind is Kind.VLLM else set()
    assert params.keys() & {*NAMED, "chat_template_kwargs"} == own
