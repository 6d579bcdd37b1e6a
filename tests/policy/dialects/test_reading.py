"""The prompt that an answer repeats is compared, and read only where it is another one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import Kind, remove_echo
from holdfast.records.errors import BadAnswer
from support.policy.answers import answer_body, encoded, request
from support.policy.canned_server import Answer
from support.policy.clients import ONCE, ids, sample

SENT = Raw(b"[1,2,3]")
NAMES_PROMPT = (Kind.VLLM, Kind.VLLM_GENERATE, Kind.FIREWORKS)
PROMPTS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
LOOKALIKE = '{"a":1,"prompt_token_ids":[1,2,3],"b":2}'


@pytest.mark.parametrize("kind", NAMES_PROMPT)
def test_the_prompt_that_was_sent_is_left_out(kind: Kind) -> None:
    body = msgspec.json.encode(answer_body(kind, [7, 8], prompt=[1, 2, 3]))
    assert b"[1,2,3]" in body
    result = remove_echo(body, SENT)
    assert b"[1,2,3]" not in result
    assert DIALECTS[kind].whole(result).prompt is None
    assert DIALECTS[kind].whole(result).ids == [7, 8]


@pytest.mark.parametrize("kind", NAMES_PROMPT)
@pytest.mark.parametrize("other", [[], [1, 2], [1, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3], [1, 2, 33]])
def test_another_prompt_stays_and_is_refused(kind: Kind, other: list[int]) -> None:
    answer = answer_body(kind, [7, 8], prompt=other)
    body = msgspec.json.encode(answer)
    assert remove_echo(body, SENT) == body
    with pytest.raises(BadAnswer, match="another prompt"):
        sample(Answer(body=body), body=request(), kind=kind, retry=ONCE)


@pytest.mark.parametrize("kind", NAMES_PROMPT)
def test_a_prompt_that_is_written_otherwise_is_read(kind: Kind) -> None:
    body = encoded(answer_body(kind, [7, 8], prompt=[1, 2, 3]))
    assert b"[1, 2, 3]" in body
    assert remove_echo(body, SENT) == body
    assert ids(sample(Answer(body=body), body=request(), kind=kind, retry=ONCE)[0]) == [7, 8]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'"prompt_token_ids":[1,2,3]',
        b'{"prompt_token_ids":[1,2,3]',
        b'{"prompt_token_ids":[1,2,3]5}',
        b'{"x\\"prompt_token_ids":[1,2,3]}',
        msgspec.json.encode({"text": LOOKALIKE}),
        msgspec.json.encode({LOOKALIKE: LOOKALIKE}),
    ],
)
def test_what_is_no_field_is_left_as_it_is(body: bytes) -> None:
    assert remove_echo(body, SENT) == body


@given(text=st.text() | st.just(LOOKALIKE), versions_told=PROMPTS, sent=PROMPTS)
def test_an_answer_says_the_same_without_it(
    text: str, versions_told: list[int], sent: list[int]
) -> None:
    answer = {"text": text, "prompt_token_ids": versions_told, "more": [text]}
    result = msgspec.json.decode(
        remove_echo(msgspec.json.encode(answer), Raw(msgspec.json.encode(sent)))
    )
    assert result == answer | {"prompt_token_ids": None if versions_told == sent else versions_told}
