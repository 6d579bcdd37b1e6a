"""Prompts are written as they are, whatever was written before them."""

import asyncio
import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.dialects import prompt_json
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.dialects.prompt_json import MIN_TOKENS, PromptCache
from support.policy.answers import PATHS, answer_body, encoded, models, request
from support.policy.canned_server import Answer, Canned
from support.policy.clients import ids, policy_at, run

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
HOMES = st.sampled_from(["a", "b", ""])


def written(cache: PromptCache, prompt: "array[int]", home: str) -> bytes:
    return bytes(asyncio.run(cache.encode(prompt, home)))


def prompt_of(*ids: int) -> "array[int]":
    return array("i", ids)


@given(st.lists(st.tuples(HOMES, st.integers(0, 8), TOKENS), max_size=12))
def test_whatever_came_before_a_prompt_is_written_as_it_is(
    turns: list[tuple[str, int, list[int]]],
) -> None:
    cache, last = PromptCache(min_tokens=1), {"a": prompt_of(), "b": prompt_of(), "": prompt_of()}
    for home, keep, new in turns:
        # Grown, forked, cut, rewritten, or the same again.
        last[home] = last[home][:keep] + array("i", new)
        assert json.loads(written(cache, last[home], home)) == last[home].tolist()


def test_only_what_is_new_of_a_growing_prompt_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, sizes = PromptCache(), []

    def encode(prompt: "array[int]") -> bytes:
        sizes.append(len(prompt))
        return json.dumps(prompt.tolist(), separators=(",", ":")).encode()

    monkeypatch.setattr(prompt_json, "encode_prompt", encode)
    prompt = array("i", range(5000))
    for _ in range(3):
        written(cache, prompt, "home")
        prompt = prompt + prompt_of(1, 2, 3)
    assert sizes == [5000, 3, 3]


def test_an_array_that_is_changed_in_its_place_is_another_prompt() -> None:
    cache, prompt = PromptCache(min_tokens=1), prompt_of(1, 2, 3)
    written(cache, prompt, "home")
    prompt[1] = 7
    prompt.append(4)
    assert written(cache, prompt, "home") == b"[1,7,3,4]"


def test_homes_do_not_see_each_other() -> None:
    cache = PromptCache(min_tokens=1)
    written(cache, prompt_of(1, 2, 3), "a")
    assert written(cache, prompt_of(1, 9, 3, 4), "b") == b"[1,9,3,4]"
    assert written(cache, prompt_of(1, 2, 3, 4), "a") == b"[1,2,3,4]"


def test_what_is_kept_is_bounded_and_the_latest_stay() -> None:
    cache = PromptCache(min_tokens=1, max_bytes=10_000)
    for home in range(200):
        written(cache, array("i", range(100)), str(home))
        kept = cache._kept
        assert str(home) in kept
        assert cache._bytes == sum(len(item.packed) + len(item.text) for item in kept.values())
        assert cache._bytes <= 10_000
    assert len(cache._kept) > 5
    written(cache, array("i", range(5_000)), "more than may be kept")
    assert (list(cache._kept), cache._bytes) == ([], 0)


def test_short_prompts_and_those_of_no_home_are_not_kept() -> None:
    cache = PromptCache()
    written(cache, array("i", range(MIN_TOKENS - 1)), "home")
    written(cache, array("i", range(MIN_TOKENS)), "")
    assert not cache._kept
    written(cache, array("i", range(MIN_TOKENS)), "home")
    written(cache, prompt_of(1), "home")
    assert list(cache._kept) == ["home"]


def test_an_engine_is_sent_each_prompt_of_a_growing_conversation_exactly() -> None:
    first = list(range(MIN_TOKENS))
    second, other = [*first, 7, 8, 4], [*first[:-1], 9, 9]
    prompts = [first, second, other, [*other, 7, 8], [*other, 7, 8], second]

    async def main() -> list[list[int]]:
        async with Canned() as server:
            answers = [
                Answer(body=encoded(answer_body(Kind.VLLM, [7, 8], prompt=prompt)))
                for prompt in prompts
            ]
            server.always("/v1/models", models()).says(PATHS[Kind.VLLM], *answers)
            async with policy_at(server) as policy:
                for item in prompts:
                    query = request(prompt=item, home="trajectory")
                    assert ids(await policy.sample(query)) == [7, 8]
            return [body["prompt"] for body in server.bodies(PATHS[Kind.VLLM])]

    assert run(main()) == prompts


@pytest.mark.parametrize("code", ["q", "Q", "h"])
def test_numbers_of_another_size_are_other_numbers(code: str) -> None:
    cache = PromptCache(min_tokens=1)
    kept = array("i", [1, 0, 2, 0])
    assert written(cache, kept, "home") == b"[1,0,2,0]"
    # The same bytes to begin with.
    other: array[int] = array(code)
    other.frombytes(kept.tobytes())
    other.append(7)
    assert written(cache, other, "home") == str(other.tolist()).replace(" ", "").encode()
    assert written(cache, kept + array("i", [3]), "home") == b"[1,0,2,0,3]"


def test_nothing_at_all_can_be_gone_on_with() -> None:
    cache = PromptCache(min_tokens=0)
    for tokens, text in (([], b"[]"), ([5], b"[5]"), ([5, 6], b"[5,6]")):
        assert written(cache, array("i", tokens), "home") == text
