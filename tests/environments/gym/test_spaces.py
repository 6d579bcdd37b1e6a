"""What a policy sees of an observation, and what it may write as an action."""

import numpy as np
import pytest
from gymnasium import spaces

from holdfast.environments.gym.spaces import (
    action_reader,
    format_observation,
    recordable,
    without_ansi,
)
from holdfast.records.errors import ToolSaysNo, UsageError


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("plain", "plain"),
        ("\x1b[41mS\x1b[0mFF\n", "[S]FF\n"),
        ("|\x1b[35mR\x1b[0m:\x1b[43m \x1b[0m|\x1b[34;1mB\x1b[0m", "|{R}:[ ]|(B)"),
        ("\x1b[7mx\x1b[27my", "[x]y"),
        ("\x1b[48;5;196mx\x1b[49my\x1b[38;2;1;7;41mz\x1b[39m", "[x]y{z}"),
        ("\x1b[31mtwo\nlines\x1b[m", "{two}\n{lines}"),
        ("\x1b[2J\x1b[Hcleared\x07", "cleared"),
    ],
)
def test_colour_becomes_brackets_and_other_codes_go(shown, text):
    assert without_ansi(shown) == text


BOX = spaces.Box(-10, 10, (3,))


@pytest.mark.parametrize(
    ("space", "observation", "text"),
    [
        (spaces.Discrete(16), np.int64(5), "5"),
        (spaces.Tuple([spaces.Discrete(32)] * 3), (14, np.int64(10), 0), "(14, 10, 0)"),
        (BOX, np.array([0.1, -1.23456789, 3], np.float32), "(0.1, -1.23457, 3)"),
        (spaces.Box(0, 9, (2, 2), int), np.eye(2, dtype=int), "[[1, 0], [0, 1]]"),
        (spaces.MultiDiscrete([3, 4]), np.array([2, 1]), "(2, 1)"),
        (spaces.Text(9), "hello", "hello"),
        (
            spaces.Dict({"where": spaces.Discrete(9), "seen": BOX}),
            {"where": 3, "seen": np.zeros(3)},
            "seen: (0, 0, 0)\nwhere: 3",
        ),
    ],
)
def test_an_observation_is_described_from_its_space(space, observation, text):
    assert format_observation(space, observation) == text


def test_parts_are_shown_by_their_names():
    cards = spaces.Tuple([spaces.Discrete(32), spaces.Discrete(11)])
    assert format_observation(cards, (14, 10), ["sum", "dealer"]) == "sum: 14, dealer: 10"
    assert format_observation(BOX, np.ones(3), ["x", "y", "z"]) == "x: 1, y: 1, z: 1"
    with pytest.raises(UsageError, match="2 names are given, and an observation has 3 parts"):
        format_observation(BOX, np.ones(3), ["x", "y"])


def test_a_picture_is_no_text():
    picture = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    with pytest.raises(UsageError, match="give `render=`"):
        format_observation(picture, np.zeros((64, 64, 3), np.uint8))


@pytest.mark.parametrize(
    ("space", "reply", "action"),
    [
        (spaces.Discrete(3, start=5), "I take 6", 6),
        (spaces.Discrete(10**6), "number 999999!", 999_999),
        (spaces.Box(-1, 1, (1,)), "push 0.5", [0.5]),
        (spaces.Box(-1, 1, (2,)), "thinking of 3\n[-1e-1, .5]", [-0.1, 0.5]),
        (spaces.MultiDiscrete([3, 4]), "2 and 3", [2, 3]),
        (spaces.MultiBinary(3), "1, 0, 1", [1, 0, 1]),
        (spaces.Text(9), " hello ", "hello"),
    ],
)
def test_a_reply_becomes_an_action_of_the_space(space, reply, action):
    read, _ = action_reader(space)
    result = read(reply)
    assert space.contains(result)
    assert result == action if np.isscalar(action) else np.allclose(result, action)


@pytest.mark.parametrize(
    ("space", "reply"),
    [
        (spaces.Discrete(3), "3"),
        (spaces.Discrete(10**6), "1000000"),
        (spaces.Discrete(10**6), "1.5"),
        (spaces.Box(-1, 1, (1,)), "2"),
        (spaces.Box(-1, 1, (1,)), "0.1 0.2"),
        (spaces.Box(-1, 1, (1,)), "harder"),
        (spaces.MultiDiscrete([3, 4]), "1.5, 2"),
        (spaces.MultiDiscrete([3, 4]), "1e300, 2"),
        (spaces.Text(3), "too long"),
    ],
)
def test_what_is_no_action_of_the_space_is_refused(space, reply):
    read, _ = action_reader(space)
    with pytest.raises(ToolSaysNo, match="Nothing happened"):
        read(reply)


def test_a_space_that_no_text_belongs_to_needs_a_function():
    with pytest.raises(UsageError, match="give `actions="):
        action_reader(spaces.Dict({"a": spaces.Discrete(2)}))


def test_of_an_info_only_what_a_journal_can_hold_is_kept():
    info = {
        "prob": np.float64(0.5),
        "mask": np.array([1, 0], np.int8),
        "nested": {"a": [np.bool_(True), None, b"x"]},
        "picture": np.zeros((100, 100)),
        "object": object(),
        "long": "x" * 100_000,
        "big": 2**70,
    }
    assert recordable(info) == {
        "prob": 0.5,
        "mask": [1, 0],
        "nested": {"a": [True, None, b"x"]},
    }
