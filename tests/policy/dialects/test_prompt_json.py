"""Prompts are written as they are, whatever was written before them."""

import asyncio
import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.dialects import prompt_json
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.dialects.prompt_json import LEAST, Spellings
from support.policy.answers import PATHS, encoded, models, request, said
from support.policy.canned_server import Answer, Canned
from support.policy.clients import ids, policy_at, run

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
HOMES = st.sampled_from(["a", "b", ""])


def written(spellings: Spellings, prompt: "array[int]", home: str) -> bytes:
    return bytes(asyncio.run(spellings.of(prompt, home)))


def prompt_of(*ids: int) -> "array[int]":
    return array("i", ids)


@given(st.lists(st.tuples(HOMES, st.integers(0, 8), TOKENS), max_size=12))
def test_whatever_came_before_a_prompt_is_written_as_it_is(
    turns: list[tuple[str, int, list[int]]],
) -> None:
    spellings, last = Spellings(least=1), {"a": prompt_of(), "b": prompt_of(), "": prompt_of()}
    for home, keep, new in turns:
        # Grown, forked, cut, rewritten, or the same again.
        last[home] = last[home][:keep] + array("i", new)
        assert json.loads(written(spellings, last[home], home)) == last[home].tolist()


def test_only_what_is_new_of_a_growing_prompt_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    spellings, sizes = Spellings(), []

    def spelled(prompt: "array[int]") -> bytes:
        sizes.append(len(prompt))
        return json.dumps(prompt.tolist(), separators=(",", ":")).encode()

    monkeypatch.setattr(prompt_json, "spelled", spelled)
    prompt = array("i", range(5000))
    for _ in range(3):
        written(spellings, prompt, "home")
        prompt = prompt + prompt_of(1, 2, 3)
    assert sizes == [5000, 3, 3]


def test_an_array_that_is_changed_in_its_place_is_another_prompt() -> None:
    spellings, prompt = Spellings(least=1), prompt_of(1, 2, 3)
    written(spellings, prompt, "home")
    prompt[1] = 7
    prompt.append(4)
    assert written(spellings, prompt, "home") == b"[1,7,3,4]"


def test_homes_do_not_see_each_other() -> None:
    spellings = Spellings(least=1)
    written(spellings, prompt_of(1, 2, 3), "a")
    assert written(spellings, prompt_of(1, 9, 3, 4), "b") == b"[1,9,3,4]"
    assert written(spellings, prompt_of(1, 2, 3, 4), "a") == b"[1,2,3,4]"


def test_what_is_kept_is_bounded_and_the_latest_stay() -> None:
    spellings = Spellings(least=1, most=10_000)
    for home in range(200):
        written(spellings, array("i", range(100)), str(home))
        kept = spellings._kept
        assert str(home) in kept
        assert spellings._bytes == sum(len(one.packed) + len(one.text) for one in kept.values())
        assert spellings._bytes <= 10_000
    assert len(spellings._kept) > 5
    written(spellings, array("i", range(5_000)), "more than may be kept")
    assert (list(spellings._kept), spellings._bytes) == ([], 0)


def test_short_prompts_and_those_of_no_home_are_not_kept() -> None:
    spellings = Spellings()
    written(spellings, array("i", range(LEAST - 1)), "home")
    written(spellings, array("i", range(LEAST)), "")
    assert not spellings._kept
    written(spellings, array("i", range(LEAST)), "home")
    written(spellings, prompt_of(1), "home")
    assert list(spellings._kept) == ["home"]


def test_an_engine_is_sent_each_prompt_of_a_growing_conversation_exactly() -> None:
    first = list(range(LEAST))
    second, other = [*first, 7, 8, 4], [*first[:-1], 9, 9]
    prompts = [first, second, other, [*other, 7, 8], [*other, 7, 8], second]

    async def main() -> list[list[int]]:
        async with Canned() as server:
            answers = [Answer(body=encoded(said(Kind.VLLM, [7, 8], prompt=one))) for one in prompts]
            server.always("/v1/models", models()).says(PATHS[Kind.VLLM], *answers)
            async with policy_at(server) as policy:
                for one in prompts:
                    asked = request(prompt=one, home="trajectory")
                    assert ids(await policy.sample(asked)) == [7, 8]
            return [body["prompt"] for body in server.bodies(PATHS[Kind.VLLM])]

    assert run(main()) == prompts


@pytest.mark.parametrize("code", ["q", "Q", "h"])
def test_numbers_of_another_size_are_other_numbers(code: str) -> None:
    spellings = Spellings(least=1)
    kept = array("i", [1, 0, 2, 0])
    assert written(spellings, kept, "home") == b"[1,0,2,0]"
    # The same bytes to begin with.
    other: array[int] = array(code)
    other.frombytes(kept.tobytes())
    other.append(7)
    assert written(spellings, other, "home") == str(other.tolist()).replace(" ", "").encode()
    assert written(spellings, kept + array("i", [3]), "home") == b"[1,0,2,0,3]"


def test_nothing_at_all_can_be_gone_on_with() -> None:
    spellings = Spellings(least=0)
    for tokens, text in (([], b"[]"), ([5], b"[5]"), ([5, 6], b"[5,6]")):
        assert written(spellings, array("i", tokens), "home") == text
