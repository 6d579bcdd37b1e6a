"""Which action a reply means: lenient about words, strict about ambiguity."""

import pytest

from holdfast.environments import replies
from holdfast.records.errors import ToolSaysNo, UsageError

MOVES = replies.ActionNames(["left", "right", "up", "down", "turn left", "pick up"])


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ("left", "left"),
        ("  LEFT.\n", "left"),
        ("I go right, right now!", "right"),
        ("Left is a hole, up is a wall.\nSo: **right**", "right"),
        ("right\n\nThat is my answer.", "right"),
        ("It would be left or right. <action>up</action>", "up"),
        ("<action>left</action> no, wait: <ACTION>\n down </ACTION> is better than left", "down"),
        ("turn left", "turn left"),
        ("Pick\tup", "pick up"),
        ("go-left", "left"),
        ('{"move": "down"}', "down"),
    ],
)
def test_a_reply_that_names_one_action_is_understood(reply, word):
    assert MOVES.read(reply) == word


@pytest.mark.parametrize(
    "reply",
    ["left or right", "I was told: not up.\ndown, or right?", "<action>left or up</action>"],
)
def test_a_reply_that_names_two_is_refused_with_both(reply):
    with pytest.raises(ToolSaysNo, match="were named, and one action is wanted") as refused:
        MOVES.read(reply)
    assert "<action>" in str(refused.value)


@pytest.mark.parametrize("reply", ["", "fly", "leftover", "upright", "<action>fly</action> left"])
def test_a_reply_without_an_action_is_told_which_there_are(reply):
    with pytest.raises(ToolSaysNo, match="Possible are: left, right, up, down, turn left, pick up"):
        MOVES.read(reply)


@pytest.mark.parametrize("reply", ["1", "I take 1.", "Step 12: I choose 1", "(1)", "<action>1"])
def test_a_number_is_a_word_of_its_own(reply):
    assert replies.ActionNames(["0", "1", "2"]).read(reply) == "1"


@pytest.mark.parametrize("reply", ["-1", "1.5", "0.1", "x1", "10", "+1"])
def test_part_of_another_number_is_not_a_word(reply):
    with pytest.raises(ToolSaysNo):
        replies.ActionNames(["0", "1", "2"]).read(reply)


@pytest.mark.parametrize("arguments", [[], [""], ["left", "LEFT"], ["a  b", "a b"]])
def test_words_that_cannot_be_told_apart_are_refused(arguments):
    with pytest.raises(UsageError, match="words for actions"):
        replies.ActionNames(arguments)


def test_a_long_list_of_actions_is_shown_in_part():
    possible = replies.ActionNames([str(number) for number in range(100)]).possible
    assert possible.endswith("39 and 60 more, up to 99")


@pytest.mark.parametrize(
    "reply",
    [
        '{"move": 3}',
        'I think\n```json\n{"move": 3}\n```\nis best.',
        'with {braces} and {"move": 3}',
        '{"move": 1} or <action>{"move": 3}</action>',
    ],
)
def test_the_one_object_of_a_reply_is_found(reply):
    assert replies.json_object(reply) == {"move": 3}


def test_an_object_within_an_object_is_part_of_it():
    assert replies.json_object('so: {"a": {"b": 1}}') == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("nothing", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('{"a": 1} {"b": 2}', "2 JSON objects"),
        ('{"a": ' * 20_000, "no JSON object"),
    ],
)
def test_no_object_or_several_are_refused(reply, message):
    with pytest.raises(ToolSaysNo, match=message):
        replies.json_object(reply)


@pytest.mark.parametrize(
    "reply", ["<action>" * 50_000, "</action>" * 50_000, "1" * 100_000 + "x", "{" * 100_000]
)
def test_a_reply_that_is_made_to_be_slow_is_not(reply):
    for read in (MOVES.read, replies.json_object):
        with pytest.raises(ToolSaysNo):
            read(reply)
    with pytest.raises(ToolSaysNo):
        replies.read_numbers(reply, 1, possible="a number")


@pytest.mark.parametrize("reply", ["1e999", "1" * 400, "1 2", "many"])
def test_numbers_are_finite_and_as_many_as_wanted(reply):
    with pytest.raises(ToolSaysNo, match="Wanted: a number"):
        replies.read_numbers(reply, 1, possible="a number")


def test_a_value_error_of_a_users_function_means_that_it_did_not_understand():
    with pytest.raises(ToolSaysNo, match="not understood: invalid literal"):
        replies.apply_reader(int, "three")
    with pytest.raises(ZeroDivisionError):
        replies.apply_reader(lambda reply: 1 / 0, "three")
