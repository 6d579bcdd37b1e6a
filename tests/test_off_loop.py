"""Large texts: the same ids as small ones get, without keeping the interpreter to oneself."""

import random
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.off_loop import MIN_THREAD_SIZE
from holdfast.policy.dialects.prompt_json import encode_prompt
from holdfast.policy.rendering.select import renderer_for
from holdfast.policy.rendering.tokenizer import Tokenizer, load_tokenizer
from holdfast.records.encoding.tokens import ids_of, last_of
from holdfast.records.message import user
from support.policy.chat_models import QWEN3, TOOL, write_model


def random_text(count: int) -> str:
    chance = random.Random(count)
    return " ".join(f"{chance.random():.5f} é<|im_end|>ü" for _ in range(count))


TEXT = random_text(30_000)
"""Seconds of work."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), QWEN3)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def turns_beside(work: Callable[[], object]) -> int:
    """How often this thread gets on while another one does `work`."""
    begun, over, turns = threading.Event(), threading.Event(), 0

    def working() -> None:
        begun.set()
        work()
        over.set()

    thread = threading.Thread(target=working)
    thread.start()
    begun.wait()
    while not over.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    return turns


def test_others_get_on_while_a_text_is_encoded_and_decoded(tokenizer: Tokenizer) -> None:
    ids: list[int] = []
    assert turns_beside(lambda: ids.extend(tokenizer.encode(TEXT))) > 20
    # Where the library keeps the interpreter, as it does for a single text, there are two or three.
    assert turns_beside(lambda: tokenizer.decode(ids)) > 20
    assert tokenizer.decode(ids) == TEXT


@settings(max_examples=10)
@given(st.integers(0, 50), st.sampled_from(["a", " ", "\n", "é", "0", "<|im_end|>"]))
def test_a_text_of_any_size_has_the_ids_that_the_library_gives_it(
    tokenizer: Tokenizer, beyond: int, piece: str
) -> None:
    text = (random_text(10) + piece * 7) * (MIN_THREAD_SIZE // 200) + piece * beyond
    assert len(text) > MIN_THREAD_SIZE
    assert tokenizer.encode(text) == tokenizer._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_whole(text) == tokenizer._backend.encode(text).ids


@pytest.mark.parametrize("family", ["qwen3", "template"])
def test_threads_that_share_a_renderer_get_what_each_would_get_alone(
    folder: Path, family: str
) -> None:
    renderer = renderer_for(folder, family=family)

    def turn(number: int) -> tuple[list[int], list[int] | None]:
        tools = [{**TOOL, "number": number % 3}]
        prompt = list(renderer.render([user(f"{number} " * 50)], tools))
        completion = [*prompt[:5], renderer.stop_token_ids[0]]
        return prompt, renderer.bridge(prompt, completion, [user(str(number))], tools)

    alone = [turn(number) for number in range(60)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(turn, range(60))) == alone


@settings(max_examples=10)
@given(st.lists(st.integers(0, 2**31 - 1), max_size=5), st.integers(1, 3))
def test_many_ids_are_packed_and_written_like_few(ids: list[int], times: int) -> None:
    many = [*ids, *range(65_536 * times), *ids]
    assert ids_of(many) == array("i", many)
    assert encode_prompt(array("i", many)) == str(many).replace(" ", "").encode()


@given(st.lists(st.sampled_from([0, 1, 256, 65_536, 2**24]), max_size=12), st.integers(0, 257))
def test_the_last_place_of_a_token_is_one_of_a_token(ids: list[int], token: int) -> None:
    position = max((at for at, item in enumerate(ids) if item == token), default=-1)
    assert last_of(ids, token) == last_of(array("i", ids), token) == position
