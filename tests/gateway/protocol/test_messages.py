"""What a refusal says back of what was sent is short, on one line, and no key."""

import msgspec
import pytest

from holdfast.gateway.protocol.keys import Bearer, Keys
from holdfast.gateway.protocol.messages import (
    MAX_MESSAGE_CHARS,
    MAX_NAME_CHARS,
    RequestRejected,
    sanitize,
)
from holdfast.records.encoding.redaction import hide
from support.gateway.counter import BODIES, CHAT, COUNT, HELLO, exchange, opened, post


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain words", "plain words"),
        ("größer → 日本", "größer → 日本"),
        ("a\x00b\r\n\x1b[31mred\u202e", r"a\x00b\r\n\x1b[31mred\u202e"),
        ("\ud800", r"\ud800"),
        ("x" * 3000, "x" * (MAX_MESSAGE_CHARS - 1) + "…"),
        ("\x00" * 3000, (r"\x00" * MAX_MESSAGE_CHARS)[: MAX_MESSAGE_CHARS - 1] + "…"),
    ],
)
def test_what_is_told_is_short_and_printable(text, message):
    assert sanitize(text) == message
    assert RequestRejected(400, text, param=text).message == message


def test_a_key_is_never_told_wherever_it_stands():
    key = Keys().make(Bearer("run/a/0", 1, 1))
    for text in (key, f"'{key}' is no model", "x" * (MAX_MESSAGE_CHARS - 10) + key, f"{key}{key}"):
        cleaned = sanitize(text)
        assert key not in cleaned
        assert key[3:12] not in cleaned


@pytest.mark.parametrize("length", [40, 3000])
@pytest.mark.parametrize("most", [MAX_MESSAGE_CHARS, MAX_NAME_CHARS])
def test_no_half_of_a_known_secret_is_told_where_a_text_is_cut(most, length):
    secret = "Zebra" * (length // 5)
    hide(secret)
    for before in (0, most - 20, most - 1, 4 * most - 20):
        cleaned = sanitize("x" * before + secret, most)
        assert "Zeb" not in cleaned


@pytest.mark.parametrize("path", [*BODIES, COUNT])
async def test_no_half_of_a_known_secret_is_in_a_refusal_that_quotes_a_value(path):
    secret = "Quagga" * 20
    hide(secret)
    async with opened() as (counter, _, binding):
        for before in (0, 100, 150, 190, 400, 480, 590):
            value = "x" * before + secret
            for more in ({"tool_choice": value}, {value: 1}, {"tools": [{"type": value}]}):
                request = {**BODIES.get(path, HELLO), **more}
                reply = await exchange(counter.port, post(path, request, binding))
                assert reply.status == 400
                assert b"Quag" not in reply.body


@pytest.mark.parametrize("path", [*BODIES, COUNT, "/complete"])
async def test_every_address_tells_little_of_a_long_odd_value(path):
    odd = "\x1b[2J\n" + "long" * 5000
    async with opened() as (counter, _, binding):
        for name in [*BODIES.get(path, HELLO), "tools", "n", "stop", odd]:
            for value in (odd, [odd], {odd: odd}, f"{binding.key}{odd}"):
                request = {**BODIES.get(path, HELLO), name: value}
                reply = await exchange(counter.port, post(path, request, binding))
                if reply.status == 200:
                    continue
                assert reply.status == 400
                error = msgspec.json.decode(reply.body)["error"]
                # Anthropic has the parameter in the message.
                assert len(error["message"]) <= MAX_MESSAGE_CHARS + MAX_NAME_CHARS + 2
                assert error["message"].isprintable()
                assert len(error.get("param") or "") <= MAX_NAME_CHARS
                assert (error.get("param") or "").isprintable()
                assert binding.key.encode() not in reply.body


async def test_a_value_that_is_quoted_is_bounded_by_itself():
    async with opened() as (counter, _, binding):
        request = {**HELLO, "x" * 5000: 1}
        reply = await exchange(counter.port, post(CHAT, request, binding))
        assert reply.status == 400
        assert b"x" * 201 not in reply.body
