"""Whatever is wrong with an answer, in whichever dialect: an error that shows it, never padding."""

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.client.completion_builder import CompletionBuilder
from holdfast.policy.dialects import DIALECTS
from holdfast.policy.dialects.dialect import EngineError, InvalidAnswer, Kind
from holdfast.policy.policy import Draft, Partial
from holdfast.records.errors import BadAnswer
from support.policy.answers import PROMPT, TOKEN_KINDS, answer_body, encoded, plain, request
from support.policy.canned_server import DONE, Answer, sse
from support.policy.clients import ONCE, ids, logprobs, sample

NAMES_PROMPT = tuple(kind for kind in TOKEN_KINDS if kind is not Kind.SGLANG)
HAS_SPANS = (Kind.VLLM, Kind.VLLM_GENERATE)
NAN = float("nan")
GOOD_IDS = [7, 8, 9]

CASES: list[tuple[str, tuple[Kind, ...], dict[str, Any]]] = [
    ("2 logprobs for 3 tokens", TOKEN_KINDS, {"logprobs": [-1, -1]}),
    ("0 logprobs for 3 tokens", TOKEN_KINDS, {"logprobs": []}),
    ("not finite", TOKEN_KINDS, {"logprobs": [-1, NAN, -1]}),
    ("not finite", TOKEN_KINDS, {"logprobs": [-1, -float("inf"), -1]}),
    ("not finite", TOKEN_KINDS, {"logprobs": [-1, -1e300, -1]}),
    ("null|no sampling_logprob", TOKEN_KINDS, {"logprobs": [-1, None, -1]}),
    ("positive", TOKEN_KINDS, {"logprobs": [-1, 0.5, -1]}),
    ("negative", TOKEN_KINDS, {"ids": [7, -8, 9]}),
    ("32 bits", TOKEN_KINDS, {"ids": [7, 2**31, 9]}),
    ("32 bits", TOKEN_KINDS, {"ids": [7, 2**63, 9]}),
    ("more than max_tokens", TOKEN_KINDS, {"ids": list(range(9))}),
    ("by its own count", TOKEN_KINDS, {"total": 99}),
    ("finish_reason 'error'", TOKEN_KINDS, {"finish": "error"}),
    ("another prompt", NAMES_PROMPT, {"prompt": [1, 2, 4]}),
    ("another prompt", NAMES_PROMPT, {"prompt": [1, 2]}),
    ("another prompt: of 4 tokens, and 3 were sent", TOKEN_KINDS, {"prompt_tokens": 4}),
    ("model 'n' answered, not 'm'", NAMES_PROMPT, {"model": "n"}),
    ("do not follow each other", HAS_SPANS, {"versions": [("a", 0, 1), ("b", 2, 3)]}),
    ("do not follow each other", HAS_SPANS, {"versions": [("a", 0, 2), ("b", 1, 3)]}),
    ("do not follow each other", HAS_SPANS, {"versions": [("a", 1, 3)]}),
    ("do not follow each other", HAS_SPANS, {"versions": [("a", 0, 0), ("b", 0, 3)]}),
    ("cover 2 of 3", HAS_SPANS, {"versions": [("a", 0, 2)]}),
    ("cover 0 of 3", HAS_SPANS, {"versions": []}),
]
EACH = [(what, kind, more) for what, kinds, more in CASES for kind in kinds]


def malformed(kind: Kind, more: dict[str, Any]) -> Any:
    return answer_body(
        kind, more.get("ids", GOOD_IDS), **{k: v for k, v in more.items() if k != "ids"}
    )


async def drop(_: Draft) -> None:
    """Nothing is kept."""


def fails(answer: Any, kind: Kind, *, stream: bool, what: str) -> None:
    raw = answer if isinstance(answer, bytes) else encoded(answer)
    reply = Answer(chunks=sse(raw, DONE)) if stream else Answer(body=raw)
    body = request(partial=Partial(drop, 1) if stream else None)
    with pytest.raises(BadAnswer, match=what) as caught:
        sample(reply, body=body, kind=kind, retry=ONCE)
    assert raw[:30].decode() in str(caught.value)
    assert caught.value.retryable


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("what", "kind", "more"), EACH)
def test_a_malformed_answer_is_an_error_with_evidence(
    what: str, kind: Kind, more: dict[str, Any], stream: bool
) -> None:
    fails(malformed(kind, more), kind, stream=stream, what=what)


def without_ids(kind: Kind) -> Any:
    answer = answer_body(kind, GOOD_IDS)
    if kind is Kind.SGLANG:
        del answer["output_ids"]
        return answer
    choice = answer["choices"][0]
    del choice["token_ids"]
    for item in choice["logprobs"].get("content", ()):
        if kind is Kind.FIREWORKS:
            del item["token_id"]
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_logprobs_without_ids_are_an_error(kind: Kind, stream: bool) -> None:
    fails(without_ids(kind), kind, stream=stream, what="no (token_ids|token ids|output_ids|tokens)")


@pytest.mark.parametrize("kind", [Kind.VLLM, Kind.FIREWORKS])
def test_an_event_with_text_and_nothing_else_is_a_hole_in_the_stream(kind: Kind) -> None:
    event = answer_body(kind, [7])
    event["choices"][0] = {"index": 0, "text": "x", "finish_reason": "stop"}
    fails(event, kind, stream=True, what="text but no token_ids")


def with_logprobs_of_others(kind: Kind) -> Any:
    answer = answer_body(kind, GOOD_IDS)
    if kind is Kind.SGLANG:
        answer["meta_info"]["output_token_logprobs"][1][1] = 1
    else:
        answer["choices"][0]["logprobs"]["content"][1]["token_id"] = 1
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", [Kind.VLLM_GENERATE, Kind.SGLANG, Kind.FIREWORKS])
def test_logprobs_of_other_tokens_are_an_error(kind: Kind, stream: bool) -> None:
    fails(with_logprobs_of_others(kind), kind, stream=stream, what="belong to other tokens")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", NAMES_PROMPT)
def test_two_choices_are_an_error_and_so_is_another_one(kind: Kind, stream: bool) -> None:
    answer = answer_body(kind, GOOD_IDS)
    answer["choices"] *= 2
    fails(answer, kind, stream=stream, what="2 choices")
    answer["choices"] = [answer["choices"][0] | {"index": 1}]
    fails(answer, kind, stream=stream, what="choice 1")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", TOKEN_KINDS)
@pytest.mark.parametrize("raw", [b"null", b"[]", b"{}", b"<html>", b'{"x":' + b"[" * 5_000])
def test_what_is_no_answer_at_all_is_an_error(kind: Kind, raw: bytes, stream: bool) -> None:
    fails(raw, kind, stream=stream, what="malformed")


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_a_whole_answer_that_says_not_why_it_ends_is_an_error(kind: Kind) -> None:
    fails(answer_body(kind, GOOD_IDS, finish=None), kind, stream=False, what="finish_reason None")


def test_fireworks_may_name_the_ids_beside_the_logprobs_only() -> None:
    answer = answer_body(Kind.FIREWORKS, GOOD_IDS)
    del answer["choices"][0]["token_ids"]
    assert ids(sample(Answer(body=answer), kind=Kind.FIREWORKS)[0]) == GOOD_IDS


def test_fireworks_may_have_only_one_kind_of_logprob_but_not_now_this_now_that() -> None:
    answer = answer_body(Kind.FIREWORKS, GOOD_IDS)
    content = answer["choices"][0]["logprobs"]["content"]
    content[1]["sampling_logprob"] = None
    fails(answer, Kind.FIREWORKS, stream=False, what="no sampling_logprob")
    for item in content:
        item.pop("sampling_logprob")
    assert logprobs(sample(Answer(body=answer), kind=Kind.FIREWORKS)[0]) == [-99.0] * 3
    content[1].pop("logprob")
    fails(answer, Kind.FIREWORKS, stream=False, what="no logprob")


@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_nothing_of_a_malformed_answer_is_kept(kind: Kind) -> None:
    bad = malformed(kind, {"logprobs": [-1, -1]})
    completion, bodies = sample(Answer(body=bad), plain(kind, [4, 5, 6]), kind=kind)
    assert ids(completion) == [4, 5, 6]
    assert (completion.tries, completion.seams) == (2, ())
    assert bodies[0] == bodies[1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def put(answer: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    answer = copy.deepcopy(answer)
    holder = answer
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return answer


@pytest.mark.parametrize("kind", TOKEN_KINDS)
@given(data=st.data(), value=JSON, stream=st.booleans())
def test_whatever_comes_is_a_valid_completion_or_an_error_and_then_nothing_is_taken(
    kind: Kind, data: st.DataObject, value: Any, stream: bool
) -> None:
    versions = {"version": "v"} if kind is Kind.SGLANG else {"versions": [("v", 0, 3)]}
    good = answer_body(kind, GOOD_IDS, prompt=PROMPT, total=3, **versions)
    body = json.dumps(put(good, data.draw(st.sampled_from(places(good))), value)).encode()
    query = request()
    sampled, dialect = CompletionBuilder(query), DIALECTS[kind]
    sampled.begin(query.prompt, version=None)
    try:
        piece = dialect.reader()(body) if stream else dialect.whole(body)
        if piece is not None:
            sampled.take(piece, model="m")
    except (InvalidAnswer, EngineError):
        assert (len(sampled), len(sampled.logprobs), sampled.finish_reason) == (0, 0, None)
        return
    sampled.finish_reason = sampled.finish_reason or "stop"
    completion = sampled.completion(model="m", tries=1, seconds=0.0)
    assert len(completion.ids) == len(completion.logprobs)
    assert [span.end for span in completion.versions][-1:] == (
        [len(sampled)] if sampled.ids else []
    )
    assert sampled.finish_reason in ("stop", "length", "abort")


def test_the_answers_of_these_tests_are_good_but_for_what_is_changed() -> None:
    for kind in TOKEN_KINDS:
        completion, bodies = sample(plain(kind, GOOD_IDS, prompt=PROMPT), kind=kind)
        assert ids(completion) == GOOD_IDS
        assert len(bodies) == 1
        assert bodies[0].get("stream", False) is False
        assert PROMPT in (bodies[0].get(name) for name in ("prompt", "token_ids", "input_ids"))
