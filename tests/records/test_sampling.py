"""What a Sampling says, and that what it does not say is not written."""

import msgspec
import pytest

from holdfast.records.errors import UsageError
from holdfast.records.sampling import (
    Sampling,
    json_of,
    packed,
    response_format_of,
    schema_text,
    wrong_type,
)

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}


def test_what_is_not_asked_for_is_not_written() -> None:
    """Fingerprints and run specs of before are those of now."""
    assert packed(Sampling()) == b"\x80"
    old = Sampling(64, 0.5, 0.9, ("x",))
    assert msgspec.json.encode(old) == (
        b'{"max_tokens":64,"temperature":0.5,"top_p":0.9,"stop":["x"]}'
    )


def test_it_is_read_back_as_it_was_written() -> None:
    for item in (Sampling(json=True), Sampling(json=schema_text(SCHEMA), reasoning_effort="low")):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=Sampling) == item
        assert hash(item) == hash(msgspec.structs.replace(item))


def test_a_schema_keeps_the_order_of_its_members() -> None:
    schema = Sampling(json=schema_text(SCHEMA)).schema
    assert schema == SCHEMA
    assert isinstance(schema["properties"], dict)
    assert list(schema["properties"]) == ["z", "a"]


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
    for shape in ({"type": "json_object"}, form):
        sampling = Sampling(json=json_of(shape))
        response_format = response_format_of(sampling)
        assert response_format is not None
        assert json_of(response_format) == sampling.json
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


MORE = Sampling(
    min_p=0.1,
    presence_penalty=-0.5,
    frequency_penalty=2,
    repetition_penalty=1.5,
    logit_bias={9: 1, "5": -100},  # type: ignore[dict-item, arg-type]
    stop_token_ids=[2, 3],  # type: ignore[arg-type]
    ignore_eos=True,
    extra_body={"b": 1, "a": {"z": [1]}},  # type: ignore[arg-type]
    chat_template_kwargs={"enable_thinking": False},  # type: ignore[arg-type]
)


def test_what_is_given_as_its_default_is_not_written_either() -> None:
    """A command line gives all of them, and a program none: both are the same run."""
    sampling = Sampling(
        min_p=float("0"),
        presence_penalty=0,
        frequency_penalty=float("0.0"),
        repetition_penalty=float("1"),
        logit_bias={},  # type: ignore[arg-type]
        stop_token_ids=[],  # type: ignore[arg-type]
        extra_body={},  # type: ignore[arg-type]
        chat_template_kwargs="{}",
    )
    assert packed(sampling) == packed(Sampling()) == b"\x80"
    assert sampling == Sampling()


def test_only_what_is_no_default_is_written() -> None:
    assert packed(Sampling(64, stop=("x",))) == b"\x82\xaamax_tokens\x40\xa4stop\x91\xa1x"


def test_objects_are_kept_in_one_order_and_read_back() -> None:
    assert MORE.logit_bias == ((5, -100.0), (9, 1.0))
    assert MORE.extra_body == '{"a":{"z":[1]},"b":1}'
    assert MORE.template_kwargs == {"enable_thinking": False}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(MORE), type=Sampling) == MORE
    assert hash(MORE) == hash(msgspec.structs.replace(MORE))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"min_p": 2}, "min_p must be 0 to 1, not 2"),
        ({"min_p": float("nan")}, "min_p must be 0 to 1, not nan"),
        ({"min_p": "x"}, "min_p must be a number, not 'x'"),
        ({"presence_penalty": -3}, "presence_penalty must be -2 to 2, not -3"),
        ({"frequency_penalty": True}, "frequency_penalty must be a number, not True"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be above 0"),
        ({"logit_bias": {"a": 1}}, "logit_bias is an object of token ids and numbers"),
        ({"logit_bias": {5: 200}}, "logit_bias of token 5 must be -100 to 100, not 200"),
        ({"logit_bias": {-1: 1}}, "a token id is a whole number from 0 on, not -1"),
        ({"logit_bias": [(5, 1), ("5", 2)]}, "names a token twice"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "names 1,025 tokens, and can name 1,024"),
        ({"stop_token_ids": 5}, "stop_token_ids are a tuple of token ids"),
        ({"stop_token_ids": ("5",)}, "a token id is a whole number from 0 on, not '5'"),
        ({"ignore_eos": 1}, "ignore_eos is True or False, not 1"),
        ({"extra_body": "{"}, "extra_body is not JSON"),
        ({"extra_body": [1]}, "extra_body is a JSON object"),
        ({"extra_body": {"a": print}}, "extra_body cannot be written as JSON"),
        ({"extra_body": {"temperature": 1}}, "extra_body.temperature: give temperature itself"),
        ({"extra_body": {"seed": 1}}, "extra_body.seed: the request says that itself"),
        (
            {"extra_body": {"sampling_params": {"n": 2}}},
            "extra_body.n: the request says that itself",
        ),
        ({"extra_body": {"echo": True}}, "extra_body.echo: the request says that itself"),
        ({"extra_body": {"truncate_prompt_tokens": 5}}, "extra_body.truncate_prompt_tokens: "),
        ({"extra_body": {"max_completion_tokens": 5}}, "extra_body.max_completion_tokens: "),
        ({"extra_body": {"a": "x" * 70_000}}, "and can have 65,536"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs is a JSON object"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_its_name(fields: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("(", "\\(")):
        Sampling(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "altered", "is_cut", "is_bent"),
    [
        (Sampling(temperature=0.5, max_tokens=3, stop=("x",)), (), False, False),
        (Sampling(stop_token_ids=(1,), ignore_eos=True), (), False, False),
        (Sampling(chat_template_kwargs='{"a":1}', reasoning_effort="low"), (), False, False),
        (Sampling(top_p=0.5, top_k=3, min_p=0.1), ("top_p", "top_k", "min_p"), True, False),
        (Sampling(presence_penalty=1), ("presence_penalty",), False, True),
        (Sampling(frequency_penalty=-1), ("frequency_penalty",), False, True),
        (Sampling(repetition_penalty=0.5), ("repetition_penalty",), False, True),
        (Sampling(logit_bias=((1, 0.0),)), ("logit_bias",), False, True),
        (Sampling(extra_body='{"a":1}'), ("extra_body",), False, True),
        (Sampling(json=True, tool_choice="required"), ("json", "tool_choice"), False, False),
        (Sampling(parallel_tool_calls=False), ("parallel_tool_calls",), False, False),
        (Sampling(thinking_token_budget=9), ("thinking_token_budget",), False, False),
    ],
    ids=str,
)
def test_a_sampling_says_what_alters_the_distribution(
    sampling: Sampling, altered: tuple[str, ...], is_cut: bool, is_bent: bool
) -> None:
    assert sampling.altered_by == altered
    assert (sampling.is_cut, sampling.is_bent) == (is_cut, is_bent)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"temperature": "hot"}, "temperature is a number, not 'hot'"),
        ({"temperature": 1, "max_tokens": 1.5}, "max_tokens is a whole number, not 1.5"),
        ({"thinking_token_budget": "x"}, "thinking_token_budget is a whole number, not 'x'"),
        ({"ignore_eos": "yes"}, "ignore_eos is True or False, not 'yes'"),
        ({"stop": 5}, "stop is a list of texts, not 5"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids is a list of token ids, not ['a']"),
        ({"json": 5}, "json is True, False or a JSON schema, not 5"),
        ({"reasoning_effort": 5}, "reasoning_effort is a text, not 5"),
        ({"temperature": 1, "top_k": 5, "other": "x"}, ""),
    ],
    ids=str,
)
def test_a_parameter_of_another_type_is_named_in_words(
    fields: dict[str, object], text: str
) -> None:
    assert wrong_type(fields) == text
