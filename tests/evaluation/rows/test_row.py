"""Rows under eval-protocol's names: what they hold, what they say, and that nothing is lost."""

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.evaluation.rows.names import generate_id
from holdfast.evaluation.rows.result import EvaluateResult, MetricResult, StepOutput
from holdfast.evaluation.rows.row import (
    EvaluationRow,
    EvaluationThreshold,
    ExecutionMetadata,
    InputMetadata,
    Message,
)
from holdfast.evaluation.rows.status import Status, TerminationReason
from support.evaluation.rows import FULL, values


def test_json_in_and_out_loses_nothing():
    row = EvaluationRow.model_validate_json(json.dumps(FULL))
    assert json.loads(row.model_dump_json(exclude_unset=True)) == FULL
    again = EvaluationRow.model_validate_json(row.model_dump_json())
    assert again == row
    assert EvaluationRow.from_dict(row.to_dict()) == row


@given(truth=values, column=values, extra=st.dictionaries(st.text(max_size=4), values))
def test_any_json_survives_in_the_places_that_are_free(truth, column, extra):
    row = EvaluationRow(
        messages=[Message(role="user", content="q", mine=column)],
        ground_truth=truth,
        column=column,
        execution_metadata=ExecutionMetadata(extra=extra),
    )
    again = EvaluationRow.model_validate_json(row.model_dump_json())
    assert again.model_dump_json() == row.model_dump_json()


def test_a_row_has_no_id_until_a_data_set_gives_it_one():
    assert EvaluationRow(messages=[Message(role="user", content="q")]).input_metadata.row_id is None


def test_a_new_row_is_running_and_has_names_of_its_own():
    row, two = EvaluationRow(), EvaluationRow()
    assert row.rollout_status.is_running()
    assert row.execution_metadata.rollout_id != two.execution_metadata.rollout_id
    assert row.created_at.tzinfo is not None


def test_what_a_row_says_about_its_conversation():
    row = EvaluationRow.model_validate(FULL)
    assert row.get_system_message().content == "Be ürgent 🌊"
    assert row.get_first_user_message().content[0].text == "see"
    assert row.get_first_user_message().content[0]["text"] == "see"
    assert row.get_first_user_message().content[2]["type"] == "input_audio"
    assert row.last_assistant_message().tool_calls[0].function.name == "f"
    assert len(row.get_assistant_messages()) == len(row.get_user_messages()) == 1
    assert row.get_conversation_length() == 4
    assert row.get_input_metadata("mine") == [1, None]
    assert row.get_input_metadata("absent", 3) == 3
    assert EvaluationRow().last_assistant_message() is None
    assert EvaluationRow().get_system_message().content == ""


def test_what_a_row_says_about_its_environment():
    row = EvaluationRow.model_validate(FULL)
    assert (row.get_steps(), row.get_total_reward(), row.get_terminated()) == (1, 0.25, True)
    assert row.get_termination_reason() == "control_plane_signal"
    assert row.is_trajectory_evaluation()
    nothing = EvaluationRow()
    assert (nothing.get_steps(), nothing.get_total_reward(), nothing.get_terminated()) == (0, 0, 0)
    assert nothing.get_termination_reason() == "unknown"


def test_the_hash_is_of_what_the_row_says_not_of_when_it_was_made():
    row = EvaluationRow(messages=[Message(role="user", content="q")])
    two = EvaluationRow(messages=[Message(role="user", content="q")])
    assert hash(row) == hash(two)
    assert hash(row) != hash(EvaluationRow(messages=[Message(role="user", content="r")]))


def test_tool_calls_without_an_id_are_told_apart_by_their_place():
    call = {"function": {"name": "f", "arguments": "{}"}}
    message = Message.model_validate({"role": "assistant", "tool_calls": [call, call]})
    assert [tool_call.id for tool_call in message.tool_calls] == ["call_0", "call_1"]


def test_a_message_for_a_request_holds_what_chat_apis_take():
    message = Message(role="assistant", content="a", reasoning_content="r", weight=1, mine=2)
    request = message.dump_mdoel_for_chat_completion_request()
    assert request == {"role": "assistant", "content": "a"}


def test_results_are_read_like_dicts_too():
    metric = MetricResult(score=0.5, reason="so")
    result = EvaluateResult(score=1, metrics={"m": metric}, reason="well")
    assert result["score"] == result.get("score") == 1.0
    assert "reason" in result
    assert "absent" not in result
    with pytest.raises(KeyError):
        result["absent"]
    assert dict(metric.items()) == {"is_score_valid": True, "score": 0.5, "reason": "so"}
    assert [*metric] == ["is_score_valid", "score", "reason"]
    assert [*result.keys()][:3] == ["score", "is_score_valid", "reason"]
    assert StepOutput(step_index=0, base_reward=1).terminated is False


# --- status


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.rollout_error("m"), 13),
        (Status.error("m"), 13),
        (Status.rollout_cancelled_error("m"), 1),
        (Status.rollout_deadline_exceeded_error("m"), 4),
        (Status.not_found_error("m"), 5),
        (Status.rollout_unavailable_error("m"), 14),
        (Status.rollout_aborted_error("m"), 10),
        (Status.aborted("m"), 10),
        (Status.rollout_unauthenticated_error("m"), 16),
    ],
)
def test_every_error_is_an_error(status, code):
    assert (status.code, status.message, status.details) == (code, "m", [])
    assert status.is_error()


def test_what_is_no_error():
    for status in (
        Status.rollout_running(),
        Status.rollout_finished(),
        Status.eval_finished(),
        Status.score_invalid(),
        Status(code=0, message=""),
    ):
        assert not status.is_error()
    assert Status.score_invalid().is_score_invalid()
    assert Status.rollout_finished().is_finished()
    assert Status.cancelled_error("m").is_stopped()
    assert Status.response_quality_error().code == Status.Code.RESPONSE_QUALITY_ERROR


def test_details_are_found_again():
    status = Status.rollout_finished(TerminationReason.MAX_STEPS, {"turns": 3})
    assert status.get_termination_reason() is TerminationReason.MAX_STEPS
    assert status.get_extra_info() == {"turns": 3}
    assert status.details[0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert Status.rollout_finished("odd").get_termination_reason() is None
    assert Status.rollout_finished().get_extra_info() is None
    with pytest.raises(ValueError, match="odd"):
        TerminationReason.from_str("odd")


def test_a_code_that_nobody_knows_stays_what_it_is():
    assert Status.model_validate({"code": 77, "message": ""}).model_dump()["code"] == 77


def test_a_threshold_wants_a_standard_error_between_0_and_1():
    with pytest.raises(ValueError, match="standard_error"):
        EvaluationThreshold(success=0.5, standard_error=1.5)


# --- extra, made when asked for


def test_extra_is_made_when_somebody_asks_and_only_once():
    made: list[int] = []
    ran = ExecutionMetadata(run_id="r")
    ran.make_extra_later(lambda: made.append(1) or {"prompt_ids": [1]})
    row = EvaluationRow(execution_metadata=ran)
    assert made == []
    assert row.execution_metadata.extra == {"prompt_ids": [1]}
    assert row.execution_metadata.extra["prompt_ids"] == [1]
    assert made == [1]


def test_extra_is_there_in_what_is_written_compared_and_copied():
    def ran() -> ExecutionMetadata:
        made = ExecutionMetadata(invocation_id=None, experiment_id=None, rollout_id=None)
        made.make_extra_later(lambda: {"prompt_ids": [1]})
        return made

    row = EvaluationRow(execution_metadata=ran())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert json.loads(row.model_dump_json())["execution_metadata"]["extra"]["prompt_ids"] == [1]
        assert ran().model_dump(exclude_unset=True)["extra"] == {"prompt_ids": [1]}
    whole = ExecutionMetadata.model_validate(ran().model_dump())
    assert ran() == whole
    assert whole == ran()
    assert ran().model_copy(deep=True).extra == {"prompt_ids": [1]}
    changed = ran()
    changed.extra = {"mine": 1}
    assert changed.extra == {"mine": 1}
    with pytest.raises(AttributeError, match="absent"):
        changed.absent  # noqa: B018


def test_names_can_be_said_and_are_the_same_for_the_same_seed():
    assert generate_id(seed=0, index=3) == generate_id(seed=0, index=3) != generate_id(seed=0)
    assert len({generate_id() for _ in range(100)}) > 90
    assert len(generate_id().split("-")) == 3


def test_input_metadata_keeps_what_it_does_not_know():
    assert InputMetadata(mine=1).model_dump()["mine"] == 1
