"""ATIF: every message is a step, every sampled token is in one step that is no copy."""

import pytest

from holdfast.convert import to_atif
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.errors import Cause, UsageError
from holdfast.records.failure import Failure
from holdfast.records.message import Message, Role, assistant, image
from support.convert.views import branching, calling, failing, one_reply, view_of


def test_a_tools_result_is_beside_the_call() -> None:
    (document,) = to_atif([calling()])
    question, called, answered = document["steps"]
    assert (question["source"], question["message"]) == ("user", "do a")
    assert called["tool_calls"][0]["arguments"] == {"a": 1}
    assert called["tool_calls"][1]["arguments"] == {}
    assert called["tool_calls"][1]["extra"] == {"raw_arguments": "{broken"}
    assert called["observation"]["results"] == [{"content": "3", "source_call_id": "call-1"}]
    assert answered["message"] == "it is 3"


def test_a_reply_has_the_tokens_that_were_sampled_and_those_before() -> None:
    view = calling()
    (document,) = to_atif([view])
    for step, path in zip(document["steps"][1:], ("0", "2"), strict=True):
        recorded = view.history.steps[path]
        assert step["metrics"]["completion_token_ids"] == unpack_ids(recorded.ids).tolist()
        assert len(step["metrics"]["logprobs"]) == len(step["metrics"]["completion_token_ids"])
        assert step["metrics"]["extra"]["versions"] == [["v1", 0, 3, 0]]
    assert document["steps"][2]["metrics"]["prompt_token_ids"] == [1, 2, 3, 4, 5, 6]


def test_each_sampled_token_is_in_one_step_that_is_no_copy() -> None:
    view = branching()
    (document,) = to_atif([view])
    steps = [
        step
        for part in (document, *document["subagent_trajectories"])
        for step in part["steps"]
        if "metrics" in step and not step.get("is_copied_context")
    ]
    places = [step["metrics"]["extra"]["step"] for step in steps]
    assert sorted(places) == sorted(step.path for step in view.history.generations)
    assert [part["trajectory_id"] for part in document["subagent_trajectories"]] == ["run/a/0#1"]


def test_a_message_that_nobody_sampled_has_no_metrics() -> None:
    (document,) = to_atif([one_reply(before=(assistant("an example"),))])
    example, reply = document["steps"][0], document["steps"][-1]
    assert (example["llm_call_count"], "metrics" in example) == (0, False)
    assert reply["llm_call_count"] == 1


def test_images_keep_their_kind_and_others_are_named() -> None:
    parts = [image("data:image/png;base64,AAAA"), image("https://host/picture.tiff")]
    (document,) = to_atif([one_reply(before=(Message(Role.USER, parts),))])
    first, second = document["steps"][0]["message"]
    assert first["source"] == {"media_type": "image/png", "path": "data:image/png;base64,AAAA"}
    assert second == {"type": "text", "text": "[image from host]"}


def test_a_failure_is_no_reward() -> None:
    failure = Failure(Cause.INFRASTRUCTURE, True, "ConnectionError", "gone", "")
    (document,) = to_atif([failing(failure)])
    extra = document["extra"]
    assert (extra["status"], extra["reward"]) == ("FAILED", None)
    assert extra["failure"] == "ConnectionError: gone"


def test_a_trajectory_without_messages_is_a_valid_document() -> None:
    (document,) = to_atif([view_of(messages=())])
    assert [step["step_id"] for step in document["steps"]] == [1]


def test_other_things_than_trajectories_are_refused() -> None:
    with pytest.raises(UsageError, match="to_atif wants a list of TrajectoryViews"):
        to_atif(["a"])  # type: ignore[list-item]
