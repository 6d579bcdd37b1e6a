"""Text from tokens, one at a time; stop strings; tool calls."""

import random
from collections.abc import Sequence

import pytest

from holdfast.embedded.http.parse_tool_calls import ToolCallParser
from holdfast.embedded.model.load import LoadedModel
from holdfast.embedded.scheduler.detokenizer import GenerationText


def ids_of(model: LoadedModel, text: str) -> list[int]:
    return list(model.tokenizer(text)["input_ids"])


def pushed(text: GenerationText, ids: list[int]) -> list[str]:
    pieces = []
    for i, token in enumerate(ids):
        pieces.append(text.push(token, last="length" if i == len(ids) - 1 else None))
        if text.stopped_by:
            break
    return pieces


def test_characters_made_of_several_tokens_come_whole(model: LoadedModel) -> None:
    command = "naïve → 漢字 ✓ 🪸 end"
    text = GenerationText(model.decode)
    pieces = pushed(text, ids_of(model, command))
    assert "".join(pieces) == text.whole == command
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(5))
def test_any_tokens_give_the_text_that_decoding_them_at_once_gives(
    model: LoadedModel, seed: int
) -> None:
    chance = random.Random(seed)
    ids = [chance.randrange(3, model.vocabulary) for _ in range(300)]
    text = GenerationText(model.decode)
    pushed(text, ids)
    # Broken bytes may be counted in another way; whole characters may not.
    whole = model.decode(ids, skip_special_tokens=True)
    assert text.whole.replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_special_tokens_are_left_out_unless_wanted(model: LoadedModel) -> None:
    ids = [1, *ids_of(model, "sum"), 0]
    skipped, kept = (
        GenerationText(model.decode),
        GenerationText(model.decode, skip_special_tokens=False),
    )
    pushed(skipped, ids)
    pushed(kept, ids)
    assert (skipped.whole, kept.whole) == ("sum", "<|im_start|>sum<|endoftext|>")


@pytest.mark.parametrize("stop", ["m of twe", " of", "calculator f", "s", "The sum"])
def test_a_stop_string_is_found_across_tokens(model: LoadedModel, stop: str) -> None:
    command = "The sum of twelve and thirty; ask the calculator for the rest."
    text = GenerationText(model.decode, stop=["not there", stop])
    pieces = pushed(text, ids_of(model, command))
    assert text.stopped_by == stop
    assert "".join(pieces) == text.whole == command[: command.index(stop)]


def test_the_first_of_several_stop_strings_wins_and_may_be_kept(model: LoadedModel) -> None:
    command = "The sum of twelve and thirty"
    text = GenerationText(model.decode, stop=["thirty", "twelve"], include_stop=True)
    pushed(text, ids_of(model, command))
    assert (text.stopped_by, text.whole) == ("twelve", "The sum of twelve")


def test_what_may_become_a_stop_string_is_shown_when_it_does_not(model: LoadedModel) -> None:
    text = GenerationText(model.decode, stop=["sum of nothing"])
    shown = ""
    command = "The sum of twelve"
    for token in ids_of(model, command):
        shown += text.push(token)
        assert command.startswith(shown)
        assert len(shown) <= max(0, len(text.whole) - len("um of nothing"))
    assert shown + text.flush() == command


def test_the_cost_of_a_token_does_not_grow_with_the_text(model: LoadedModel) -> None:
    decoded: list[int] = []

    def decode(ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        decoded.append(len(ids))
        return model.decode(ids, skip_special_tokens=skip_special_tokens)

    text = GenerationText(decode, stop=["never there"])
    ids = ids_of(model, "The sum of twelve and thirty. ") * 50
    pushed(text, ids)
    assert max(decoded) <= 20
    assert len(decoded) <= 3 * len(ids)


CALL = '<tool_call>{"name": "calculator", "arguments": {"x": "1 + 2"}}</tool_call>'


def divided(text: str, *, size: int) -> tuple[str, list[tuple[str, str]]]:
    parser, content = ToolCallParser(), ""
    for start in range(0, len(text), size):
        content += parser.push(text[start : start + size])
    content += parser.close()
    return content, [(c["function"]["name"], c["function"]["arguments"]) for c in parser.calls]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "message", "count"),
    [
        ("Just words, 1 < 2 <tool", "Just words, 1 < 2 <tool", 0),
        (CALL, "", 1),
        (f"I ask.\n{CALL}\n{CALL}\n", "I ask.\n", 2),
        (f"{CALL} and then", " and then", 1),
        (CALL.removesuffix("</tool_call>"), "", 1),
        ("<tool_call>no json</tool_call>!", "<tool_call>no json</tool_call>!", 0),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', 0),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", 0),
        ('<tool_call>{"name": "a"', '<tool_call>{"name": "a"', 0),
    ],
)
def test_tool_calls_are_found_however_the_text_arrives(
    text: str, message: str, count: int, size: int
) -> None:
    calculator = ("calculator", '{"x": "1 + 2"}')
    assert divided(text, size=size) == (message, [calculator] * count)


def test_calls_have_ids_of_their_own() -> None:
    parser = ToolCallParser()
    parser.push(CALL + CALL)
    assert len({call["id"] for call in parser.calls}) == 2
    assert all(call["type"] == "function" for call in parser.calls)
