"""A stop string across a seam ends a completion where an engine that never stopped would."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.policy.client.completion_builder import CompletionBuilder, StopStringSearch
from holdfast.policy.dialects.dialect import Kind, Piece
from holdfast.policy.policy import Draft
from support.policy.answers import logprob_of, logprobs_of, plain, request, streamed
from support.policy.clients import ids, logprobs, sample
from support.policy.drafts import Kept, draft_of

VOCABULARY = [bytes([number]) for number in range(256)]
VOCABULARY += [b"ab", b"ba", "aé".encode(), "😀b".encode(), b"bab"]
ALPHABET = "abé😀"


def decode(tokens: Sequence[int]) -> str:
    return b"".join(VOCABULARY[token] for token in tokens).decode("utf-8", "replace")


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


def uninterrupted(tokens: list[int], stops: tuple[str, ...]) -> tuple[list[int], str]:
    """What an engine gives that looks at all its text after each token."""
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[:end])
        if any(stop in text for stop in stops):
            return tokens[:end], "stop"
    return tokens, "length"


def interrupted(
    tokens: list[int], stops: tuple[str, ...], *, seams: Sequence[int], chunk: int
) -> tuple[list[int], str]:
    """The same tokens from engines that each look only at what they sampled themselves."""
    body = request(max_tokens=max(1, len(tokens)), stop=stops, decode=decode, draft=Draft())
    sampled = CompletionBuilder(body)
    for end in [*seams, len(tokens)]:
        sampled.begin(body.prompt, version=None)
        begun, watch = len(sampled), StopStringSearch.at_seam(body, sampled)
        while len(sampled) < end and sampled.finish_reason is None:
            upto = min(end, len(sampled) + chunk)
            _sample(sampled, tokens[begun:upto], begun, stops)
            if watch is not None and watch.found(sampled):
                break
        if sampled.finish_reason is not None:
            return sampled.ids.tolist(), sampled.finish_reason
    return sampled.ids.tolist(), "length"


def _sample(sampled: CompletionBuilder, own: list[int], begun: int, stops: tuple[str, ...]) -> None:
    for at in range(len(sampled) - begun, len(own)):
        text = decode(own[: at + 1])
        reason = "stop" if any(stop in text for stop in stops) else None
        piece = Piece(ids=[own[at]], logprobs=[logprob_of(own[at])], finish_reason=reason)
        sampled.take(piece, model="m")
        if reason:
            return


TOKENS = st.lists(
    st.one_of(st.sampled_from(tokens_of(ALPHABET)), st.integers(256, len(VOCABULARY) - 1)),
    min_size=1,
    max_size=16,
) | st.text(ALPHABET, min_size=1, max_size=8).map(tokens_of)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=2).map(tuple)


@settings(max_examples=400)
@given(
    tokens=TOKENS,
    stops=STOPS,
    seams=st.lists(st.integers(1, 15), max_size=3, unique=True).map(sorted),
    chunk=st.integers(1, 4),
)
@example(tokens=tokens_of("a😀b"), stops=("😀",), seams=[2], chunk=1)
@example(tokens=tokens_of("ab😀b"), stops=("b😀b",), seams=[3, 4], chunk=1)
@example(tokens=tokens_of("aabb"), stops=("ab", "bb"), seams=[2], chunk=4)
def test_interruptions_do_not_change_where_a_completion_ends(
    tokens: list[int], stops: tuple[str, ...], seams: list[int], chunk: int
) -> None:
    seams = [seam for seam in seams if seam < len(tokens)]
    expected = uninterrupted(tokens, stops)
    assert interrupted(tokens, stops, seams=seams, chunk=chunk) == expected


def test_without_stop_strings_or_text_or_a_seam_there_is_nothing_to_watch() -> None:
    drafted = draft_of([1, 2])
    watched = request(draft=drafted, stop=("x",), decode=decode)
    assert StopStringSearch.at_seam(watched, CompletionBuilder(watched)) is not None
    for body in (
        request(draft=drafted, decode=decode),
        request(draft=drafted, stop=("x",)),
        request(stop=("x",), decode=decode),
    ):
        assert StopStringSearch.at_seam(body, CompletionBuilder(body)) is None


def test_a_stop_string_that_ended_before_the_seam_is_not_found_again() -> None:
    """The engine read its text otherwise and went on: it is not for us to stop it here."""
    drafted = tokens_of("a</s>")
    body = request(draft=draft_of(drafted), stop=("</s>",), decode=decode)
    sampled = CompletionBuilder(body)
    watch = StopStringSearch.at_seam(body, sampled)
    assert watch is not None
    sampled.begin(body.prompt, version=None)
    sampled.take(Piece(ids=[97], logprobs=[-1.0]), model="m")
    assert not watch.found(sampled)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_stop_string_across_a_draft_and_its_rest_cuts_the_completion(stream: bool) -> None:
    draft = draft_of(tokens_of("one EN"))
    rest = tokens_of("D two")
    more: dict[str, Any] = {"draft": draft, "stop": ("END",), "decode": decode, "max_tokens": 50}
    body = Kept(draft).request(**more) if stream else request(**more)
    reply = streamed(Kind.VLLM, rest) if stream else plain(Kind.VLLM, rest)
    completion, bodies = sample(reply, body=body)
    assert decode(ids(completion)) == "one END"
    assert logprobs(completion) == logprobs_of(tokens_of("one END"))
    assert completion.versions[-1].end == len(completion.ids) // 4
    assert (completion.finish_reason, completion.seams) == ("stop", (6,))
    assert bodies[0]["stop"] == ["END"]


def test_a_stop_string_across_two_seams_cuts_the_completion() -> None:
    body = request(stop=("END",), decode=decode, max_tokens=50, seed=None)
    completion, bodies = sample(
        plain(Kind.VLLM, tokens_of("one E"), finish="abort"),
        plain(Kind.VLLM, tokens_of("N"), finish="abort"),
        plain(Kind.VLLM, tokens_of("D two"), finish="abort"),
        body=body,
    )
    assert decode(ids(completion)) == "one END"
    assert (completion.finish_reason, len(bodies)) == ("stop", 3)
