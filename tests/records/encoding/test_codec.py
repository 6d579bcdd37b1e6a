"""Every record survives its encoding; nothing else is taken for one."""

import math
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records import step
from holdfast.records.encoding.codec import checksum, decode, encode
from holdfast.records.errors import Cause, JournalCorrupt
from holdfast.records.failure import Failure
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, user
from holdfast.records.samples.experts import RoutedExperts
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from holdfast.records.usage import Usage

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.floats(allow_nan=False)
count = st.integers(0, 2**31 - 1)
paths = st.lists(st.integers(0, 99), min_size=1, max_size=5).map(lambda p: ".".join(map(str, p)))
jsons = st.recursive(
    st.none() | st.booleans() | count | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
messages = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=st.none() | text | st.lists(st.dictionaries(text, jsons, max_size=2), max_size=2),
    tool_calls=st.lists(
        st.builds(ToolCall, id=text, function=st.builds(FunctionCall, text, text)), max_size=2
    ).map(tuple),
    tool_call_id=st.none() | text,
    name=st.none() | text,
    reasoning=st.none() | text,
)
samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 10**6),
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    stop=st.lists(text, max_size=2).map(tuple),
)
failures = st.builds(
    Failure,
    cause=st.sampled_from(Cause),
    retryable=st.booleans(),
    type=text,
    message=text,
    traceback=text,
    step=text,
    attempt=count,
    phase=text,
)
experts = st.builds(RoutedExperts, st.binary(max_size=40), count, count, count, count, count)
spans = st.builds(step.VersionSpan, text, count, count, source=st.sampled_from(step.VersionSource))

BY_TYPE: dict[type, st.SearchStrategy[object]] = {
    str: text,
    int: count,
    float: number,
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    tuple[int, ...]: st.lists(count, max_size=3).map(tuple),
    tuple[str, ...]: st.lists(paths, max_size=3).map(tuple),
    float | None: st.none() | number,  # type: ignore[dict-item]
    int | None: st.none() | count,  # type: ignore[dict-item]
    str | None: st.none() | text,  # type: ignore[dict-item]
    RoutedExperts | None: st.none() | experts,  # type: ignore[dict-item]
    Usage | None: st.none() | st.builds(Usage, count, count, count, count),  # type: ignore[dict-item]
    Failure: failures,
    Message: messages,
    Sampling: samplings,
    Status: st.sampled_from(Status),
    step.Contract: st.sampled_from(step.Contract),
    LogprobsMode: st.sampled_from(LogprobsMode),
    tuple[step.VersionSpan, ...]: st.lists(spans, max_size=3).map(tuple),
    tuple[Message, ...]: st.lists(messages, max_size=3).map(tuple),
    tuple[Message | str, ...]: st.lists(messages | text, max_size=3).map(tuple),
    dict[str, float]: st.dictionaries(text, number, max_size=3),
    dict[str, str]: st.dictionaries(text, text, max_size=3),
    dict[str, object]: st.dictionaries(
        text,
        st.recursive(st.none() | st.booleans() | number | text, lambda inner: st.lists(inner)),
        max_size=3,
    ),
}
KINDS: list[type] = list(Record.__args__)


def any_of(kind: type) -> st.SearchStrategy[Record]:
    fields = {field.name: BY_TYPE[field.type] for field in msgspec.structs.fields(kind)}
    if "path" in fields:
        fields["path"] = paths
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_survives_its_encoding(kind: type) -> None:
    @given(any_of(kind))
    def survives(record: Record) -> None:
        result = decode(encode(record))
        assert result == record
        assert type(result) is kind

    survives()


def test_the_numbers_of_the_kinds_never_change() -> None:
    assert {kind.__struct_config__.tag: kind.__name__ for kind in KINDS} == {
        1: "AttemptStarted",
        2: "Generated",
        3: "ToolIntent",
        4: "ToolResult",
        5: "EnvironmentStepped",
        6: "ValueRecorded",
        7: "Forked",
        8: "AttemptFailed",
        9: "Finished",
        10: "Scored",
        11: "ScoringFailed",
        12: "Reopened",
        13: "Refilled",
        14: "Drafted",
        15: "Snapshotted",
        16: "CloseFailed",
        17: "Called",
        18: "Entered",
        20: "CallRefused",
        21: "Reused",
        22: "Edited",
    }


def test_the_numbers_of_the_statuses_never_change() -> None:
    assert [status.name for status in sorted(Status)] == [
        "PENDING",
        "RUNNING",
        "COMPLETED",
        "TRUNCATED",
        "FAILED",
        "ABORTED",
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        msgspec.msgpack.encode([99, "0"]),
        msgspec.msgpack.encode([6, "0"]),
        msgspec.msgpack.encode({"type": 6}),
        encode(step.ValueRecorded("0", b"", "name", b"value"))[:-1],
        encode(step.ValueRecorded("0", b"", "name", b"value")) + b"\0",
        encode(step.ToolResult("0", "text")).replace(b"text", b"\xff\xfe\xfd\xfc"),
        encode(step.Scored("s", 1.0, {}, {}, 0.0, {"a": 1})).replace(
            b"\xa1a\x01", b"\xa1a" + b"\x91" * 100_000 + b"\x01"
        ),
        encode(
            step.Generated(
                "0", b"", "", 0, b"", b"", b"", "stop", (), user(""), (), "m", Sampling(top_p=0.5)
            )
        ).replace(struct.pack(">d", 0.5), struct.pack(">d", -0.5)),
    ],
    ids=[
        "nothing",
        "noise",
        "unknown tag",
        "too short",
        "no array",
        "torn",
        "too long",
        "no text",
        "too deep",
        "impossible sampling",
    ],
)
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(JournalCorrupt, match="does not decode"):
        decode(body)


def test_the_checksum_covers_the_place_and_every_bit() -> None:
    body = encode(step.ToolResult("1", "42"))
    right = checksum(body, trajectory=1, seq=2, epoch=3)
    assert right == checksum(body, trajectory=1, seq=2, epoch=3)
    for place in [(2, 2, 3), (1, 1, 3), (1, 2, 4), (2, 1, 3)]:
        assert checksum(body, trajectory=place[0], seq=place[1], epoch=place[2]) != right
    for at in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[at // 8] ^= 1 << at % 8
        assert checksum(bytes(flipped), trajectory=1, seq=2, epoch=3) != right


def test_a_reward_keeps_its_exact_value() -> None:
    for reward in (0.1, 1e-300, math.inf, -0.0):
        result = decode(encode(step.Finished(Status.COMPLETED, "", reward, 0.0)))
        assert isinstance(result, step.Finished)
        assert result.reward is not None
        assert math.copysign(1, result.reward) == math.copysign(1, reward)
        assert result.reward == reward
