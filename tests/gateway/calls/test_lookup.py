"""What a trajectory was sent before is not read again, and it is read as if it had been."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.gateway.calls import digest
from holdfast.gateway.calls.answer import MAX_CONVERSATIONS, MIN_MESSAGES, ConversationCache
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.wires.openai.chat import OpenAIChat
from holdfast.records.message import Message, user

WIRE = OpenAIChat()
Said = list[dict[str, object]]


def words(count: int, start: str = "message") -> Said:
    return [{"role": "user", "content": f"{start} {number}"} for number in range(count)]


def sent(said: Said, **layout: object) -> bytes:
    return json.dumps({"model": "m", "messages": said, "max_tokens": 5}, **layout).encode()


class Reader:
    """Reads arrays of texts, and remembers which."""

    def __init__(self) -> None:
        self.read: list[list[object]] = []

    def __call__(self, raw: bytes) -> tuple[Message, ...]:
        self.read.append(json.loads(raw))
        return tuple(user(str(one)) for one in self.read[-1])


def test_only_what_is_new_is_read() -> None:
    cache, reader = ConversationCache(), Reader()
    texts = [f"text {number}" for number in range(MIN_MESSAGES)]
    for more in range(3):
        said = texts + ["more"] * more
        found = cache.messages(Raw(json.dumps(said).encode()), reader)
        assert [one.content for one in found] == said
    assert reader.read == [texts, ["more"], ["more"]]


def test_the_same_array_again_has_nothing_new() -> None:
    cache, reader = ConversationCache(), Reader()
    raw = Raw(json.dumps(["text"] * MIN_MESSAGES).encode())
    assert cache.messages(raw, reader) == cache.messages(raw, reader)
    assert reader.read[1:] == [[]]


def test_an_element_that_only_begins_alike_is_another() -> None:
    cache, reader = ConversationCache(), Reader()
    cache.messages(Raw(json.dumps([1] * MIN_MESSAGES).encode()), reader)
    longer = [1] * (MIN_MESSAGES - 1) + [12]
    found = cache.messages(Raw(json.dumps(longer).encode()), reader)
    assert [one.content for one in found] == [str(one) for one in longer]


def test_a_rewritten_past_is_read_anew() -> None:
    cache = ConversationCache()
    said = words(MIN_MESSAGES)
    WIRE.parse(sent(said), cache)
    said[3]["content"] = "rewritten"
    assert WIRE.parse(sent([*said, *words(1)]), cache) == WIRE.parse(sent([*said, *words(1)]))


def test_short_conversations_are_not_kept_and_only_the_latest_long_ones_are() -> None:
    cache, reader = ConversationCache(), Reader()
    for number in range(MAX_CONVERSATIONS + 1):
        cache.messages(Raw(json.dumps([f"{number}"] * MIN_MESSAGES).encode()), reader)
    cache.messages(Raw(json.dumps(["short"]).encode()), reader)
    reader.read.clear()
    for number in (MAX_CONVERSATIONS, 1, 0):
        cache.messages(Raw(json.dumps([f"{number}"] * MIN_MESSAGES + ["new"]).encode()), reader)
    assert [len(one) for one in reader.read] == [1, 1, MIN_MESSAGES + 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": 5},
        {"role": "nobody", "content": "x"},
        {"role": "user", "content": "x", "surprise": 1},
    ],
)
def test_a_wrong_message_is_refused_in_the_same_words(wrong: dict[str, object]) -> None:
    cache = ConversationCache()
    said = words(MIN_MESSAGES)
    WIRE.parse(sent(said), cache)
    with pytest.raises(RequestRejected) as without:
        WIRE.parse(sent([*said, wrong]))
    with pytest.raises(RequestRejected) as knowing:
        WIRE.parse(sent([*said, wrong]), cache)
    told = [(one.value.message, one.value.param, one.value.code) for one in (without, knowing)]
    assert told[0] == told[1]
    assert f"messages[{MIN_MESSAGES}]" in str(without.value.param)
    # And what was known is known still.
    assert WIRE.parse(sent([*said, *words(1)]), cache) == WIRE.parse(sent([*said, *words(1)]))


@pytest.mark.parametrize("body", [b'{"model": "m", "messages": []}', b'{"model": "m"}', b"[", b""])
def test_a_body_without_messages_is_refused_in_the_same_words(body: bytes) -> None:
    with pytest.raises(RequestRejected) as without:
        WIRE.parse(body)
    with pytest.raises(RequestRejected) as knowing:
        WIRE.parse(body, ConversationCache())
    assert knowing.value.message == without.value.message


conversations = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.lists(st.sampled_from(["a", "b", 'quo"te', "é]", "\\", "[,"]), max_size=6),
        st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}]),
    ),
    min_size=1,
    max_size=8,
)


@given(conversations)
def test_whatever_was_sent_before_a_request_is_read_as_by_itself(turns: list) -> None:
    cache, said = ConversationCache(), words(MIN_MESSAGES)
    for keep, new, layout in turns:
        said = [*said[:keep], *({"role": "user", "content": text} for text in new)] or words(1)
        asked = WIRE.parse(sent(said, **layout), cache)
        assert asked == WIRE.parse(sent(said, **layout))
        assert cache.digests(asked.messages) == digest.digests(asked.messages)
