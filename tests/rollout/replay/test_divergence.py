"""A divergence in words: few of them, found quickly, with both sides in them."""

import asyncio

import pytest

from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.speaker import Speaker
from support.rollout.kills import ended
from support.rollout.stage import call

LONG = "word " * 5_000


def divergence_text(then: str, now: str) -> str:
    async def rollout(t, text):
        t.add(text)
        await t.generate(max_tokens=8)

    async def check():
        before = await ended(lambda t: rollout(t, then))
        after = await ended(lambda t: rollout(t, now), before.records)
        (fork,) = after.history.forks
        return fork.difference

    return asyncio.run(check())


def test_short_texts_are_told_line_by_line():
    message = divergence_text("one\ntwo\nthree", "one\n2\nthree")
    assert "-two" in message
    assert "+2" in message


@pytest.mark.parametrize(
    ("then", "now", "parts"),
    [
        (f"{LONG}red{LONG}", f"{LONG}blue{LONG}", ("word red", "word blue")),
        (f"{LONG}\nred", f"{LONG}\nblue", ("\\nred", "\\nblue")),
        ("begin" + "x" * 700, "begun" + "x" * 700, ("'user\\nbegin", "'user\\nbegun")),
        ("a\r\nb", "a\nb", ("a\\r\\nb", "a\\nb")),
        ("\x00\x1b[2J" + LONG, "\x00\x1b[3J" + LONG, ("\\x1b[2J", "\\x1b[3J")),
        ("é" * 900, "é" * 899 + "e", ("'", "'")),
    ],
    ids=["long line", "last line", "one line", "line ends", "control", "unicode"],
)
def test_both_sides_are_told_where_they_part(then, now, parts):
    messages = divergence_text(then, now)
    recorded, _, rest = messages.partition("now: ")
    assert parts[0] in recorded
    assert parts[1] in rest
    assert len(messages) < 1_000


def test_what_only_differs_in_the_ends_of_lines_is_told_too():
    text = divergence.of_observations("same", "same\n")
    assert text == "they part at character 4\nrecorded: 'same'\nnow: 'same\\n'"


def test_texts_of_many_lines_are_not_compared_line_by_line(monkeypatch):
    # That takes the square of their number, on the event loop.
    monkeypatch.setattr(divergence.difflib, "unified_diff", lambda *_, **__: pytest.fail("slow"))
    lines = [f"line {index % 97}" for index in range(10_000)]
    text = divergence.of_observations("\n".join(lines), "\n".join(lines[1:]))
    assert "they part at character 5" in text


def test_a_common_beginning_is_found_to_the_character():
    for at in (0, 1, 7, 8, 9, 20_000):
        left, right = "a" * at + "b" + "c" * 30_000, "a" * at + "d"
        assert f"character {at:,}\n" in divergence.of_observations(left, right)


async def test_a_huge_call_is_told_by_its_ends():
    async def calling(t, arguments):
        await t.tool(call("f", arguments, call_id=""))

    async def valued(t):
        await t.value(lambda: 1, name="v")

    before = await ended(lambda t: calling(t, '{"a": "' + "x" * 100_000 + '"}'))
    after = await ended(valued, before.records)
    changed = await ended(lambda t: calling(t, '{"a": "' + "x" * 99_999 + 'y"}'), before.records)
    other, changed = after.history.forks[0].difference, changed.history.forks[0].difference
    assert other.startswith("recorded tool f({")
    assert other.endswith("now value 'v'")
    assert len(other) < 1_000
    assert "xx\"})'" in changed
    assert "xy\"})'" in changed


async def test_messages_are_told_where_no_tokens_stand_for_them():
    async def asking(t, arguments):
        t.add("the same", arguments)
        await t.generate(speaker=Speaker(t.speaker.policy, MessagesOnly()))

    before = await ended(lambda t: asking(t, "red"))
    after = await ended(lambda t: asking(t, "blue"), before.records)
    outcome = after.history.forks[0].difference
    assert outcome.startswith("the messages: ")
    assert '-{"role":"user","content":"red"}' in outcome
    assert '+{"role":"user","content":"blue"}' in outcome


async def test_a_call_that_differs_in_its_id_alone_is_told_by_it():
    async def calling(t, name):
        await t.tool(call("f", call_id=name))

    before = await ended(lambda t: calling(t, "one"))
    after = await ended(lambda t: calling(t, "two"), before.records)
    assert (after.history.forks[0].difference) == "the tool call's id: recorded 'one', now 'two'"


async def test_sampling_is_told_by_what_differs():
    async def asking(t, **sampling):
        t.add("go")
        await t.generate(**sampling)

    before = await ended(lambda t: asking(t, temperature=0.5))
    after = await ended(lambda t: asking(t, temperature=0.7, stop="x"), before.records)
    assert (after.history.forks[0].difference) == (
        "sampling: temperature: recorded 0.5, now 0.7; stop: recorded (), now ('x',)"
    )
