"""A token stream is what was sent and sampled, however its copies go on."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.encoding.tokens import pack_ids
from holdfast.records.message import assistant, user
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from holdfast.rollout.replay.prompt import Stream

TOKENS = st.lists(st.integers(0, 300), max_size=5)
TURNS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), TOKENS, TOKENS, st.booleans()), max_size=12
)


def turn(
    keep: int, delta: list[int], ids: list[int], *, path: str = "0", base: str = ""
) -> Generated:
    return Generated(
        path=path, fingerprint=b"f", base=base, keep=keep, delta=pack_ids(delta), ids=pack_ids(ids),
        logprobs=b"", engine_finish_reason="stop", versions=(), message=assistant("said"),
        added=(user("asked"),), model="m", sampling=Sampling(),
    )  # fmt: skip


@given(TURNS)
def test_copies_that_go_on_do_not_see_each_other(
    turns: list[tuple[int, int, list[int], list[int], bool]],
) -> None:
    streams: list[tuple[Stream, list[int]]] = [(Stream(), [])]
    for number, (which, most, delta, ids, is_looked_at) in enumerate(turns):
        stream, messages = streams[which % len(streams)]
        keep, other = min(most, len(messages)), stream.copy()
        other.advance(turn(keep, delta, ids, path=str(number)), [user("asked")], ())
        streams.append((other, [*messages[:keep], *delta, *ids]))
        if is_looked_at:
            assert other.ids.tolist() == streams[-1][1]
    for stream, messages in streams:
        assert stream.ids.tolist() == messages


def test_a_stream_that_advances_itself_keeps_what_its_copies_have() -> None:
    stream = Stream()
    stream.advance(turn(0, [1, 2], [3]), [user("a")], ())
    before = stream.copy()
    stream.advance(turn(3, [4], [5, 6], path="1", base="0"), [user("a"), user("b")], ())
    stream.advance(turn(2, [7], [8], path="2", base="1"), [user("c")], ())
    assert before.ids == array("i", [1, 2, 3])
    assert stream.ids == array("i", [1, 2, 7, 8])
    assert (before.base, stream.base) == ("0", "2")
