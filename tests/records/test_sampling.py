"""What a Sampling says, and that what it does not say is not written."""

import msgspec
import pytest

from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling, json_of, response_format_of, schema_text

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}


def test_what_is_not_asked_for_is_not_written() -> None:
    """Fingerprints and run specs of before are those of now."""
    assert msgspec.msgpack.encode(Sampling()) == b"\x80"
    old = Sampling(64, 0.5, 0.9, ("x",))
    assert msgspec.json.encode(old) == (
        b'{"max_tokens":64,"temperature":0.5,"top_p":0.9,"stop":["x"]}'
    )


def test_it_is_read_back_as_it_was_written() -> None:
    for one in (Sampling(json=True), Sampling(json=schema_text(SCHEMA), reasoning_effort="low")):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Sampling) == one
        assert hash(one) == hash(msgspec.structs.replace(one))


def test_a_schema_keeps_the_order_of_its_members() -> None:
    found = Sampling(json=schema_text(SCHEMA)).schema
    assert found == SCHEMA
    assert isinstance(found["properties"], dict)
    assert list(found["properties"]) == ["z", "a"]


@pytest.mark.parametrize("text", ["", "no", "[1]", "true", '"x"', "{", "[" * 5000])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a JSON schema is an object"):
        Sampling(json=text)


@pytest.mark.parametrize("effort", ["", "High", "very high", "x" * 100, "a\n"])
def test_what_is_no_effort_is_refused_by_its_name(effort: str) -> None:
    with pytest.raises(UsageError, match="reasoning_effort"):
        Sampling(reasoning_effort=effort)


def test_a_response_format_is_told_as_it_is_read() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for given in ({"type": "json_object"}, form):
        sampling = Sampling(json=json_of(given))
        told = response_format_of(sampling)
        assert told is not None
        assert json_of(told) == sampling.json
    assert json_of({"type": "text"}) is False
    assert response_format_of(Sampling()) is None


@pytest.mark.parametrize(
    ("form", "what"),
    [
        ("json", "an object with a type"),
        ({}, "text, json_object or json_schema"),
        ({"type": "grammar"}, "'grammar'"),
        ({"type": "json_schema"}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {1: print}}}, "a JSON schema is an"),
    ],
)
def test_a_response_format_that_makes_no_sense_is_refused(form: object, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        json_of(form)
