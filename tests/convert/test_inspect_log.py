"""Inspect's log: one sample for each trajectory, the same bytes each time."""

import json
import zipfile
from pathlib import Path

from msgspec import structs

from holdfast.convert.inspect_log import InspectLog, has_all_samples, inspect_sample, log_name
from holdfast.records.errors import Cause
from holdfast.records.failure import Failure
from holdfast.records.message import Message, Role, image
from holdfast.records.run import Run
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView
from support.convert.views import calling, failing, one_reply, view_of
from support.records import spec

RUN = Run(1, structs.replace(spec("my run"), scorer="count@1"), (), 0.0)


def written(path: Path, *views: TrajectoryView) -> Path:
    log = InspectLog(path, RUN)
    for view in views:
        log.write(inspect_sample(view))
    log.close()
    return path


def second_sample(view: TrajectoryView) -> TrajectoryView:
    return TrajectoryView(structs.replace(view.key, sample=1), view.task, view.history)


def in_log(path: Path, name: str) -> dict:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(name))


def test_a_trajectory_is_a_sample_with_its_messages_and_tokens() -> None:
    sample = inspect_sample(calling())
    assert (sample["id"], sample["epoch"], sample["target"]) == ("a", 1, "3")
    assert sample["input"] == [{"role": "user", "content": "do a"}]
    _, called, result, answer = sample["messages"]
    assert [call["function"] for call in called["tool_calls"]] == ["add", "add"]
    assert called["tool_calls"][1]["parse_error"]
    assert (result["role"], result["tool_call_id"]) == ("tool", "call-1")
    assert (answer["metadata"]["token_ids"], len(answer["metadata"]["logprobs"])) == ([3, 4, 5], 3)
    assert sample["scores"]["reward"]["value"] == 1.0


def test_a_score_has_its_reason_and_a_sample_its_times(tmp_path: Path) -> None:
    view = calling()
    view.history.scored = structs.replace(view.history.scored, reasons={"reason": "3 is right"})
    sample = inspect_sample(view)
    assert sample["scores"]["reward"]["explanation"] == "3 is right"
    began, ended = view.history.attempts[0].at, view.history.scored.at
    assert sample["total_time"] == ended - began
    header = in_log(written(tmp_path / "a.eval", view), "header.json")
    assert header["stats"]["completed_at"] == sample["completed_at"]
    assert header["eval"]["dataset"]["name"] == RUN.spec.name
    assert header["eval"]["scorers"] == [{"name": "count"}]


def test_a_failure_is_an_error_without_a_score() -> None:
    failure = Failure(Cause.INFRASTRUCTURE, True, "ConnectionError", "gone", "Traceback …")
    sample = inspect_sample(failing(failure))
    assert sample["scores"] == {}
    assert sample["error"]["message"] == "ConnectionError: gone"


def test_a_truncated_trajectory_names_its_limit() -> None:
    sample = inspect_sample(view_of(status=Status.TRUNCATED))
    assert sample["limit"] == {"type": "custom", "limit": 0, "reason": ""}


def test_reasoning_and_images_are_parts() -> None:
    parts = [image("data:image/png;base64,AAAA"), {"type": "text", "text": "look"}]
    sample = inspect_sample(one_reply(before=(Message(Role.USER, parts, reasoning="why"),)))
    assert sample["messages"][0]["content"] == [
        {"type": "reasoning", "reasoning": "why"},
        {"type": "image", "image": "data:image/png;base64,AAAA"},
        {"type": "text", "text": "look"},
    ]


def test_the_header_counts_and_averages(tmp_path: Path) -> None:
    failure = Failure(Cause.CODE, False, "ValueError", "bad", "")
    log = written(tmp_path / "a.eval", calling(), second_sample(failing(failure)))
    results = in_log(log, "header.json")["results"]
    assert (results["total_samples"], results["completed_samples"]) == (2, 1)
    assert results["scores"][0]["metrics"]["mean"]["value"] == 1.0


def test_the_same_data_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.eval", calling()), written(tmp_path / "b.eval", calling())
    assert first.read_bytes() == second.read_bytes()


def test_a_log_that_has_all_samples_of_another_may_replace_it(tmp_path: Path) -> None:
    small = written(tmp_path / "a.eval", calling())
    large = written(tmp_path / "b.eval", calling(), second_sample(calling()))
    (tmp_path / "text").write_text("no log")
    assert has_all_samples(large, small)
    assert not has_all_samples(small, large)
    assert not has_all_samples(large, tmp_path / "text")


def test_the_files_name_has_the_time_and_the_name_of_the_run() -> None:
    assert log_name(RUN).startswith("1970-01-01T00-00-00+00-00_my-run_")
