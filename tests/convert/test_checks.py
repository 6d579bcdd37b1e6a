"""What a trainer would train wrongly is refused, with the names of both sides."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast import convert
from holdfast.convert import tinker
from holdfast.convert.checks import (
    check_divisible,
    check_logprobs,
    check_temperature,
    check_vocabulary,
)
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.samples.sample import Sample
from support.convert.samples import sample


def test_another_temperature() -> None:
    check_temperature([sample(temperature=0.7)], 0.7)
    with pytest.raises(NotTrainable, match=r"temperature 0\.7.*logprobs at 1"):
        check_temperature([sample(temperature=0.7)], 1.0)


def test_logprobs_of_another_distribution() -> None:
    with pytest.raises(NotTrainable, match="raw"):
        check_logprobs([structs.replace(sample(), logprobs_mode=LogprobsMode.RAW)])
    check_logprobs([sample()])


def test_another_vocabulary() -> None:
    check_vocabulary([sample()], 1000)
    with pytest.raises(NotTrainable, match="the trainer's model knows 10"):
        check_vocabulary([sample()], 10)


def test_a_number_that_cannot_be_divided() -> None:
    check_divisible([1, 2], 2, trainer="verl", of="its batch size")
    with pytest.raises(UsageError, match="3 rows cannot be divided by 2, as verl wants"):
        check_divisible([1, 2, 3], 2, trainer="verl", of="its batch size")


async def unread() -> AsyncIterator[Sample]:
    yield sample()


ONE = sample()
WANTED = {
    convert.to_verl: "Samples",
    convert.to_slime: "Samples",
    convert.to_trl: "Samples",
    convert.to_trl_async: "Samples",
    convert.to_nemo: "Samples",
    convert.to_tinker: "Samples",
    convert.to_sft: "TrajectoryViews",
    convert.from_rows: "EvaluationRows",
}


@pytest.mark.parametrize("function", WANTED)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (unread(), "not an async generator"),
        ("rows.jsonl", "not 'rows.jsonl'"),
        (ONE, "not of type Sample"),
        ({"a": 1}, "not of type dict"),
        (None, "not of type NoneType"),
        ([None], "item 0 of the list is of type NoneType"),
    ],
)
def test_what_a_converter_does_not_take(
    function: Callable[..., object], value: object, message: str
) -> None:
    more = {"versions": []} if function is convert.to_trl_async else {}
    with pytest.raises(UsageError) as caught:
        function(value, **more)
    text = str(caught.value)
    assert text.startswith(f"{function.__name__} wants a list of {WANTED[function]}")
    assert text.endswith(message)


def test_a_sample_is_neither_its_dict_nor_a_trajectory() -> None:
    with pytest.raises(UsageError, match=r"holdfast\.samples\(…\).*item 1 .* of type dict"):
        convert.to_trl([ONE, msgspec.to_builtins(ONE)])
    with pytest.raises(UsageError, match=r"holdfast\.trajectories\(…\).* of type Sample"):
        convert.to_sft([ONE])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="wants one Sample, not of type list"):
        convert.to_agent_loop_output([ONE])  # type: ignore[arg-type]


def exported(form: str) -> list[dict[str, object]]:
    """As lines of `holdfast export` are read."""
    if form == "slime":
        return [row for group in convert.to_slime([ONE]) for row in group]  # type: ignore[misc]
    if form == "trl":
        columns = convert.to_trl([ONE]).columns
        return [{name: values[0] for name, values in columns.items()}]
    if form == "nemo":
        return convert.to_nemo([ONE])
    if form == "tinker":
        return [tinker.line(datum) for datum in convert.to_tinker([ONE, sample("a", 1)])]
    return [convert.to_agent_loop_output(ONE)]


READERS = {
    "slime": convert.from_slime,
    "trl": convert.from_trl,
    "nemo": convert.from_nemo,
    "tinker": convert.from_tinker,
    "verl": convert.from_verl,
}


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("value", [{}, [{}], [[{}]], "rows.jsonl", None, 5, [5], [["x"]]])
def test_what_is_no_data_of_a_format_is_one_line(form: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^from_{form} wants .*$"):
        READERS[form](value)  # type: ignore[operator]


@pytest.mark.parametrize("form", ["slime", "trl", "tinker", "verl"])
def test_lines_of_an_export_are_no_argument_of_their_own(form: str) -> None:
    with pytest.raises(UsageError, match=f"^from_{form} wants .* of type (dict|list)$"):
        READERS[form](exported(form))  # type: ignore[operator]


def test_lines_of_an_export_are_read_as_the_messages_say() -> None:
    rows = exported("trl")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert convert.from_trl(columns) == [ONE]
    assert convert.from_slime([exported("slime")]) == [ONE]
    assert convert.from_nemo(exported("nemo")) == [ONE]


@pytest.mark.parametrize("field", ["tokens", "loss_mask", "reward", "metadata"])
def test_a_missing_field_is_named(field: str) -> None:
    (row,) = exported("slime")
    del row[field]
    with pytest.raises(UsageError, match=f"a sample of group 0 has no '{field}'"):
        convert.from_slime([[row]])
    (row,) = exported("nemo")
    del row["total_reward"]
    with pytest.raises(UsageError, match="row 0 has no 'total_reward'"):
        convert.from_nemo([row])


def test_fields_that_do_not_fit_are_named_with_their_row() -> None:
    (row,) = exported("slime")
    with pytest.raises(UsageError, match="the fields of a sample of group 0 do not fit"):
        convert.from_slime([[row | {"loss_mask": None}]])
    batch = convert.to_verl([ONE])
    del batch.tensors["rm_scores"]
    with pytest.raises(UsageError, match="this one has no 'rm_scores'"):
        convert.from_verl(batch)


@pytest.mark.parametrize("convert_to", [convert.to_verl, convert.to_slime, convert.to_nemo])
def test_words_are_taken_as_the_command_line_spells_them(
    convert_to: Callable[..., object],
) -> None:
    unscored = [ONE, structs.replace(sample("a", 1), reward=None)]
    with pytest.raises(NotTrainable, match="leave_out"):
        convert_to(unscored)
    assert len(str(convert_to(unscored, missing_reward="leave-out"))) == len(
        str(convert_to(unscored, missing_reward="leave_out"))
    )
    with pytest.raises(UsageError, match="missing_reward is one of refuse, leave_out, not 'drop'"):
        convert_to([ONE], missing_reward="drop")


HUGE = [sample("a", 0, reward=1e300), sample("a", 1, reward=0.0)]


@pytest.mark.parametrize(
    ("convert_them", "what"),
    [
        (convert.to_verl, "reward 1e.300"),
        (lambda results: convert.to_agent_loop_output(results[0]), "reward 1e.300"),
        (convert.to_nemo, "reward 1e.300"),
        (convert.to_tinker, "advantage 5e.299"),
    ],
)
def test_what_does_not_fit_float32_is_refused_by_name(
    convert_them: Callable[[list[Sample]], object], what: str
) -> None:
    """numpy and torch would make infinities of it."""
    with pytest.raises(NotTrainable, match=rf"task 'a', sample 0: its {what} does not fit float32"):
        convert_them(HUGE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branches": "zzz"}, "branches is one of refuse, longest, not 'zzz'"),
        ({"missing_reward": "zzz"}, "missing_reward is one of refuse, leave_out, not 'zzz'"),
        ({"prompt_length": "x"}, "prompt_length must be a whole number, not 'x'"),
        ({"response_length": 0}, "response_length must be 1 or more"),
        ({"divisible_by": None}, "divisible_by must be a whole number"),
        ({"experts": 5}, "experts are what load_experts gives.* not of type int"),
    ],
)
def test_options_of_a_converter_are_checked_before_it_begins(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        convert.to_verl([ONE], **options)


def test_the_options_of_an_export_are_named_beside_those_of_python() -> None:
    with pytest.raises(NotTrainable, match=r"missing_reward='leave_out'.*--missing-reward leave-o"):
        convert.to_verl([sample(reward=None)])
    with pytest.raises(NotTrainable, match=r"branches='longest'.*--branches longest"):
        convert.to_trl([sample(), sample(branch=1)])


@pytest.mark.parametrize("name", ["first_group", "first_index"])
def test_groups_are_counted_from_a_whole_number(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a whole number, not 'x'"):
        convert.to_slime([ONE], **{name: "x"})  # type: ignore[arg-type]
