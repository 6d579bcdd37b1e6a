"""What a chat API says about its tokens is taken where it can be read, and refuses nothing."""

import json

import pytest

from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind
from holdfast.records.usage import Usage

OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 40,
    "total_tokens": 140,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 32},
}
DEEPSEEK = {"prompt_tokens": 100, "completion_tokens": 40, "prompt_cache_hit_tokens": 64}


def answer(usage: object) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "hello"}}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("usage", "result"),
    [
        (OPENAI, Usage(100, 40, 64, 32)),
        (DEEPSEEK, Usage(100, 40, 64)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "reasoning_tokens": 2}, Usage(9, 3, 0, 2)),
        ({"prompt_tokens": 9.0, "completion_tokens": 3}, Usage(9, 3)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(9)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": -4}}, Usage(9)),
        ({"prompt_tokens": 9, "completion_tokens_details": "many"}, Usage(9)),
        ({"prompt_tokens": -9}, None),
        ({}, None),
        ([], None),
        (None, None),
        ("a lot", None),
    ],
)
def test_it_is_read_where_it_can_be(usage: object, result: Usage | None) -> None:
    piece = DIALECTS[Kind.CHAT].whole(answer(usage))
    assert piece.usage == result
    assert piece.message is not None
    assert piece.message.text == "hello"


def test_an_answer_without_a_usage_is_an_answer() -> None:
    body = json.dumps({"choices": [json.loads(answer(None))["choices"][0]]}).encode()
    assert DIALECTS[Kind.CHAT].whole(body).usage is None


@pytest.mark.parametrize("details", [{"cached_tokens": 3}, None, 7, {"cached_tokens": "three"}])
def test_an_engine_with_tokens_says_what_was_cached(details: object) -> None:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "token_ids": [1, 2],
        "logprobs": {"token_logprobs": [-0.5, -0.5]},
    }
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": details}
    body = json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()
    cached = 3 if details == {"cached_tokens": 3} else 0
    assert DIALECTS[Kind.VLLM].whole(body).usage == Usage(4, 2, cached)
