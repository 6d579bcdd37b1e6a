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
Messages = list[dict[str, object]]


def user_messages(count: int, start: str = "message") -> Messages:
    return [{"role": "user", "content": f"{start} {number}"} for number in range(count)]


def sent(message: Messages, **layout: object) -> bytes:
    return json.dumps({"model": "m", "messages": message, "max_tokens": 5}, **layout).encode()


class Reader:
    """Reads arrays of texts, and remembers which."""

    def __init__(self) -> None:
        self.read: list[list[object]] = []

    def __call__(self, raw: bytes) -> tuple[Message, ...]:
        self.read.append(json.loads(raw))
        return tuple(user(str(item)) for item in self.read[-1])


def test_only_what_is_new_is_read() -> None:
    cache, reader = ConversationCache(), Reader()
    texts = [f"text {number}" for number in range(MIN_MESSAGES)]
    for more in range(3):
        message = texts + ["more"] * more
        messages = cache.messages(Raw(json.dumps(message).encode()), reader)
        assert [message.content for message in messages] == message
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
    messages = cache.messages(Raw(json.dumps(longer).encode()), reader)
    assert [message.content for message in messages] == [str(item) for item in longer]


def test_a_rewritten_past_is_read_anew() -> None:
    cache = ConversationCache()
    messages = user_messages(MIN_MESSAGES)
    WIRE.parse(sent(messages), cache)
    messages[3]["content"] = "rewritten"
    assert WIRE.parse(sent([*messages, *user_messages(1)]), cache) == WIRE.parse(
        sent([*messages, *user_messages(1)])
    )


def test_short_conversations_are_not_kept_and_only_the_latest_long_ones_are() -> None:
    cache, reader = ConversationCache(), Reader()
    for number in range(MAX_CONVERSATIONS + 1):
        cache.messages(Raw(json.dumps([f"{number}"] * MIN_MESSAGES).encode()), reader)
    cache.messages(Raw(json.dumps(["short"]).encode()), reader)
    reader.read.clear()
    for number in (MAX_CONVERSATIONS, 1, 0):
        cache.messages(Raw(json.dumps([f"{number}"] * MIN_MESSAGES + ["new"]).encode()), reader)
    assert [len(items) for items in reader.read] == [1, 1, MIN_MESSAGES + 1]


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
    messages = user_messages(MIN_MESSAGES)
    WIRE.parse(sent(messages), cache)
    with pytest.raises(RequestRejected) as without:
        WIRE.parse(sent([*messages, wrong]))
    with pytest.raises(RequestRejected) as knowing:
        WIRE.parse(sent([*messages, wrong]), cache)
    lines = [(item.value.message, item.value.param, item.value.code) for item in (without, knowing)]
    assert lines[0] == lines[1]
    assert f"messages[{MIN_MESSAGES}]" in str(without.value.param)
    # And what was known is known still.
    assert WIRE.parse(sent([*messages, *user_messages(1)]), cache) == WIRE.parse(
        sent([*messages, *user_messages(1)])
    )


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
    cache, messages = ConversationCache(), user_messages(MIN_MESSAGES)
    for keep, new, layout in turns:
        messages = [
            *messages[:keep],
            *({"role": "user", "content": text} for text in new),
        ] or user_messages(1)
        request = WIRE.parse(sent(messages, **layout), cache)
        assert request == WIRE.parse(sent(messages, **layout))
        assert cache.digests(request.messages) == digest.digests(request.messages)
