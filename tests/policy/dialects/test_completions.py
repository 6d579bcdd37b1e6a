"""Every malformed answer is an error with evidence; nothing is padded or guessed."""

import copy
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.client.completion_builder import CompletionBuilder
from holdfast.policy.dialects.completions import Completions
from holdfast.policy.dialects.dialect import EngineError, InvalidAnswer
from holdfast.policy.policy import Completion, Request
from holdfast.records.errors import BadAnswer, EngineUnavailable
from holdfast.records.sampling import Sampling
from holdfast.records.step import VersionSource, VersionSpan
from support.policy.canned_server import Answer
from support.policy.clients import ONCE, ids, logprobs, sample

REQUEST = Request(array("i", [1, 2, 3]), Sampling(max_tokens=4), seed=1, id="r")
GOOD: dict[str, Any] = {
    "id": "cmpl-r",
    "model": "m",
    "choices": [
        {
            "finish_reason": "stop",
            "token_ids": [7, 8, 9],
            "prompt_token_ids": [1, 2, 3],
            "logprobs": {"token_logprobs": [-0.5, -1.25, 0.0], "tokens": ["a", "b", "c"]},
        }
    ],
}


def read(body: bytes) -> Completion:
    return sample(Answer(body=body), body=REQUEST, retry=ONCE)[0]


def changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    body = copy.deepcopy(GOOD)
    change(body, body["choices"][0])
    return msgspec.json.encode(body)


def test_a_good_answer_is_read_exactly() -> None:
    completion = read(msgspec.json.encode(GOOD))
    assert ids(completion) == [7, 8, 9]
    assert logprobs(completion) == [-0.5, -1.25, 0.0]
    assert completion.finish_reason == "stop"
    assert completion.versions == (VersionSpan("", 0, 3, VersionSource.UNKNOWN),)
    assert (completion.model, completion.tries, completion.seams) == ("m", 1, ())
    assert completion.seconds > 0


def test_an_answer_need_not_repeat_the_prompt() -> None:
    body = changed(lambda _, choice: choice.pop("prompt_token_ids"))
    assert ids(read(body)) == [7, 8, 9]


def put(where: str, key: str, value: object) -> bytes:
    def change(body: dict[str, Any], choice: dict[str, Any]) -> None:
        {"body": body, "choice": choice, "logprobs": choice["logprobs"]}[where][key] = value

    return changed(change)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "malformed"),
        (b"<html>Bad Gateway</html>", "malformed"),
        (b"[]", "malformed"),
        (b"{}", "malformed"),
        (msgspec.json.encode(GOOD)[:-10], "malformed"),
        (msgspec.json.encode(GOOD).replace(b'"m"', b'"\xff"'), "malformed"),
        (b'{"x":' + b"[" * 100_000, "malformed"),
        (put("body", "model", "n"), "model 'n' answered, not 'm'"),
        (put("body", "model", None), "malformed"),
        (put("body", "choices", []), "0 choices"),
        (put("body", "choices", GOOD["choices"] * 2), "2 choices"),
        (put("choice", "index", 1), "choice 1 of an answer"),
        (put("choice", "finish_reason", None), "finish_reason None"),
        (put("choice", "finish_reason", "error"), "finish_reason 'error'"),
        (put("choice", "token_ids", None), "no token_ids"),
        (put("choice", "token_ids", []), "3 logprobs for no tokens"),
        (put("choice", "token_ids", [7, 8, -9]), "negative"),
        (put("choice", "token_ids", [7, 8, 2**31]), "32 bits"),
        (put("choice", "token_ids", [7, 8, 2**64]), "32 bits"),
        (put("choice", "token_ids", [7, 8, 9.5]), "malformed"),
        (put("choice", "token_ids", [7, 8, None]), "malformed"),
        (put("choice", "token_ids", [7, 8]), "3 logprobs for 2 tokens"),
        (put("choice", "token_ids", [7] * 5), "more than max_tokens"),
        (put("choice", "prompt_token_ids", [1, 2, 4]), "another prompt"),
        (put("choice", "prompt_token_ids", []), "another prompt"),
        (put("choice", "prompt_token_ids", [1, 2, 2**40]), "32 bits"),
        (put("choice", "logprobs", None), "no logprobs"),
        (put("logprobs", "token_logprobs", None), "no logprobs"),
        (put("logprobs", "token_logprobs", []), "0 logprobs for 3 tokens"),
        (put("logprobs", "token_logprobs", [-1, -1]), "2 logprobs for 3 tokens"),
        (put("logprobs", "token_logprobs", [-1, -1, None]), r"null.*token_logprobs\[2\]"),
        (put("logprobs", "token_logprobs", [-1, -1, "-1"]), "malformed"),
        (put("logprobs", "token_logprobs", [-1, -1, 0.5]), "positive"),
        # Finite as it is sent, but not in the 32 bits in which it would be kept.
        (put("logprobs", "token_logprobs", [-1, -1, -1e300]), "not finite"),
        (put("body", "usage", {"completion_tokens": 4}), "sampled 4 tokens by its own count"),
        (msgspec.json.encode(GOOD).replace(b"-1.25", b"NaN"), "not finite"),
        (msgspec.json.encode(GOOD).replace(b"-1.25", b"-Infinity"), "not finite"),
        (msgspec.json.encode(GOOD).replace(b"-1.25", b"-1e999"), "malformed"),
    ],
)
def test_a_malformed_answer_is_an_error_with_evidence(body: bytes, what: str) -> None:
    with pytest.raises(BadAnswer, match=what) as caught:
        read(body)
    assert caught.value.retryable
    assert body[:40].decode("utf-8", "replace") in str(caught.value)


def test_an_answer_without_any_token_is_an_error_with_evidence() -> None:
    def empty(_: object, choice: dict[str, Any]) -> None:
        choice.update(token_ids=[], logprobs={"token_logprobs": []})

    with pytest.raises(BadAnswer, match=r"no tokens.*cmpl-r"):
        read(changed(empty))


def test_an_aborted_generation_is_the_engines_failure() -> None:
    with pytest.raises(EngineUnavailable, match="aborted"):
        read(put("choice", "finish_reason", "abort"))


@pytest.mark.parametrize("logprobs", [None, {"token_logprobs": [-1, -1]}])
def test_an_aborted_generation_whose_tokens_are_unusable_is_a_bad_answer(logprobs: object) -> None:
    def change(_: object, choice: dict[str, Any]) -> None:
        choice.update(finish_reason="abort", logprobs=logprobs)

    with pytest.raises(BadAnswer, match="logprobs"):
        read(changed(change))


def test_an_abort_before_the_first_token_is_the_engines_failure() -> None:
    def change(_: object, choice: dict[str, Any]) -> None:
        choice.update(finish_reason="abort", token_ids=[], logprobs=None)

    with pytest.raises(EngineUnavailable, match="aborted"):
        read(changed(change))


def test_evidence_is_short_and_holds_no_secret() -> None:
    body = b'{"authorization": "Bearer sk-1234567890abcdef", "x": "' + b"y" * 100_000
    with pytest.raises(BadAnswer) as caught:
        read(body)
    assert "1234567890" not in str(caught.value)
    assert len(str(caught.value)) < 1_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*GOOD, *GOOD["choices"][0], "token_logprobs", "error"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(where=st.sampled_from(["body", "choice", "logprobs"]), key=st.data(), value=JSON)
def test_whatever_an_engine_answers_is_a_valid_completion_or_an_error(
    where: str, key: st.DataObject, value: object
) -> None:
    holder = {"body": GOOD, "choice": GOOD["choices"][0], "logprobs": {"token_logprobs": 0}}[where]
    body = put(where, key.draw(st.sampled_from(sorted(holder))), value)
    sampled = CompletionBuilder(REQUEST)
    sampled.begin(REQUEST.prompt, version=None)
    try:
        sampled.take(Completions().whole(body), model="m")
    except (InvalidAnswer, EngineError):
        assert len(sampled) == 0
        return
    assert sampled.finish_reason in ("stop", "length", "abort")
    completion = sampled.completion(model="m", tries=1, seconds=0.0)
    assert len(completion.ids) == len(completion.logprobs)
    assert len(completion.ids) > 0 or completion.finish_reason == "abort"
