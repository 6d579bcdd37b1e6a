"""A stream of bytes is cut into the same events, however it arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.dialects import sse
from holdfast.policy.dialects.sse import SseParser
from holdfast.records.errors import BadAnswer


def read(*chunks: bytes) -> list[bytes]:
    stream = SseParser()
    return [data for chunk in chunks for data in stream.feed(chunk)]


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    stream = SseParser()
    assert stream.feed(b"data: a") == []
    assert stream.feed(b"\n") == []
    assert stream.feed(b"\ndata: b\n\nda") == [b"a", b"b"]
    assert stream.feed(b"ta:c\n\n") == [b"c"]


def test_comments_and_other_fields_are_dropped() -> None:
    data = b": ping\n\nevent: token\nid: 7\ndata: a\nretry: 10\n\nevent: end\n\ndata: b\n\n"
    assert read(data) == [b"a", b"b"]


def test_the_data_of_several_lines_is_one() -> None:
    assert read(b"data: [1,\ndata: 2]\n\n") == [b"[1,\n2]"]


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
def test_a_line_end_that_is_cut_in_two_does_not_end_an_event(line: bytes) -> None:
    raw = line.join([b"event: x", b"data: [1,", b"data: 2]", b"", b"data: b", b"", b""])
    assert read(*(raw[at : at + 1] for at in range(len(raw)))) == [b"[1,\n2]", b"b"]


def test_blank_lines_more_than_needed_say_nothing() -> None:
    assert read(b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n") == [b"a", b"b"]


def test_what_the_stream_breaks_off_in_is_no_event() -> None:
    assert read(b"data: a\n\ndata: b\n") == [b"a"]


def test_an_event_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
    stream = SseParser()
    assert stream.feed(b"data: " + b"x" * 900) == []
    with pytest.raises(BadAnswer, match="more than 1,000 bytes"):
        stream.feed(b"x" * 100)


DATA = st.text('ab{}:"é😀 ', min_size=1, max_size=12).map(lambda text: text.strip(" ") or "x")


@given(
    data=st.lists(DATA, max_size=6),
    line=st.sampled_from([b"\n", b"\r\n"]),
    places=st.lists(st.integers(0, 400), max_size=10),
)
def test_the_same_events_come_out_wherever_the_bytes_are_cut(
    data: list[str], line: bytes, places: list[int]
) -> None:
    raw = b"".join(b"data: " + item.encode() + line + line for item in data)
    cuts = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    chunks = [raw[start:end] for start, end in pairwise(cuts)]
    assert read(*chunks) == [item.encode() for item in data]
