"""Rows of groups: n single replies to one prompt, side by side, as eval-protocol reads them."""

import asyncio
import json

import pytest

from holdfast.engine.export.export import What
from holdfast.engine.running.run import run
from holdfast.engine.scoring.scorer import Score
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import EngineUnavailable
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.message import assistant, user
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, tasks_digest
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from support.engine.local_run import LocalRun
from support.paths import TESTS
from support.rollout.stage import Oracle

DEFAULT_ROW = json.loads((TESTS / "engine" / "evaluation_row.json").read_text())
"""What eval-protocol 0.3.33 writes for a row with one message, and nothing left out."""


def rows(local: LocalRun, **options: object) -> list[dict]:
    """As they are in a JSONL file."""
    return json.loads(json.dumps(local.rows(What.ROWS, **options)))


def of(local: LocalRun, **task: object) -> LocalRun:
    """The same run, of one other task."""
    local.tasks = [Task(**{"id": "a", "messages": (user("do a"),), **task})]
    local.spec = type(local.spec)(
        **{name: getattr(local.spec, name) for name in local.spec.__struct_fields__}
        | {"tasks": tasks_digest(local.tasks)}
    )
    return local


def extra(row: dict) -> dict:
    return row["execution_metadata"]["extra"]


def failing(*samples: int):
    """Answers all samples but some, whose calls fail for good."""

    def answer(request):
        sample = int(request.id.split("/")[2])
        return EngineUnavailable("503 at port 4711") if sample in samples else f"answer {sample}"

    return Oracle(answer)


# --- the samples themselves


def test_n_samples_are_n_calls_from_one_prompt_each_with_its_own_seed():
    local = LocalRun(samples=4)
    local.run(TrainingRolloutProcessor({"model": "oracle", "n": 4}))
    requests = local.policy.requests
    assert len(requests) == 4
    assert len({request.prompt.tobytes() for request in requests}) == 1
    assert len({request.seed for request in requests}) == 4


@pytest.mark.parametrize(("samples", "drawn"), [(None, 3), (2, 2)])
def test_a_run_from_python_draws_the_processors_n_unless_told_otherwise(samples, drawn):
    policy = Oracle()
    asyncio.run(
        run(
            TrainingRolloutProcessor({"model": "oracle", "n": 3}),
            tasks=[{"prompt": "q"}],
            policy=policy,
            renderer=ByteRenderer(),
            journal=MemoryJournal(),
            name="run",
            samples=samples,
        )
    )
    assert len(policy.requests) == drawn


def test_one_failure_costs_one_sample_and_no_other_is_drawn_again():
    local = LocalRun(samples=4, policy=failing(2), group=GroupPolicy(refill=1))
    local.run(TrainingRolloutProcessor(), max_retry=2)
    request = [int(name.split("/")[2]) for name in local.policy.request_ids]
    assert [request.count(sample) for sample in range(4)] == [1, 1, 2 * 3, 1]
    (row,) = rows(local)
    assert extra(row)["samples"] == [0, 1, 3]
    assert extra(row)["completions_text"] == ["answer 0", "answer 1", "answer 3"]
    assert extra(row)["failed_samples"] == [
        {
            "sample": 2,
            "cause": "infrastructure",
            "message": "EngineUnavailable: # at port #",
        }
    ]
    assert row["rollout_status"]["code"] == 100


# --- the shape


def test_every_field_is_one_that_eval_protocol_has_in_the_place_where_it_has_it():
    local = of(LocalRun(samples=2), ground_truth=7, tools=({"type": "function"},))
    local.run(TrainingRolloutProcessor(), lambda view: Score(0.5, {"length": 3.0}))
    (row,) = rows(local)
    assert row.keys() <= DEFAULT_ROW.keys()
    assert {"created_at", "pid", "eval_metadata"} & row.keys() == set(), "nothing that may differ"
    for name in ("input_metadata", "execution_metadata", "rollout_status"):
        assert row[name].keys() <= DEFAULT_ROW[name].keys()
    for message in row["messages"]:
        assert message.keys() <= DEFAULT_ROW["messages"][0].keys()
    assert None not in row.values()


def test_a_group_is_one_row_with_a_list_entry_for_each_sample():
    local = LocalRun(samples=3, policy=failing())
    local.run(TrainingRolloutProcessor(), lambda view: float(view.key.sample))
    (row,) = rows(local)
    assert row["messages"] == [
        {"role": "user", "content": "do a"},
        {"role": "assistant", "content": "answer 0"},
    ]
    assert row["rollout_status"] == {"code": 100, "message": "Rollout finished", "details": []}
    assert row["evaluation_result"] == {"score": 0.0, "is_score_valid": True, "metrics": {}}
    fields = extra(row)
    prompt = list(ByteRenderer().render([user("do a")], []))
    texts = ["answer 0", "answer 1", "answer 2"]
    assert fields["prompt_ids"] == prompt
    assert fields["completion_ids"] == [[*text.encode(), ByteRenderer.END] for text in texts]
    lengths = [len(ids) for ids in fields["completion_ids"]]
    assert [
        len(inference_logprobs) for inference_logprobs in fields["inference_logprobs"]
    ] == lengths
    assert fields["inference_logprobs"][0][:2] == [-1 / 256, -2 / 256]
    assert fields["completions_text"] == texts
    assert fields["truncated"] == [False] * 3
    assert fields["finish_reasons"] == ["stop"] * 3
    assert fields["rewards"] == [0.0, 1.0, 2.0]
    assert fields["samples"] == [0, 1, 2]
    assert fields["version_spans"] == [[["v1", 0, length, 0]] for length in lengths]
    assert "failed_samples" not in fields
    metadata = row["execution_metadata"]
    assert (metadata["run_id"], metadata["rollout_id"]) == ("run", "run/a/0")
    assert metadata["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": sum(lengths),
        "total_tokens": len(prompt) + sum(lengths),
    }
    assert (metadata["finish_reason"], metadata["tool_call_count"]) == ("stop", 0)


def test_lists_have_one_entry_for_one_sample():
    local = LocalRun()
    local.run(TrainingRolloutProcessor())
    fields = extra(rows(local)[0])
    assert isinstance(fields["prompt_ids"][0], int)
    for name in ("completion_ids", "inference_logprobs", "completions_text", "truncated"):
        assert len(fields[name]) == 1
    assert fields["rewards"] == [None]
    assert "evaluation_result" not in rows(local)[0], "a missing score is no zero"


def test_completion_params_are_those_that_were_sampled_with():
    local = of(LocalRun(samples=2, sampling=Sampling(temperature=0.5)), metadata={
        "completion_params": {"max_tokens": 9, "user": "me"},
    })  # fmt: skip
    local.run(TrainingRolloutProcessor({"model": "oracle", "top_p": 0.75}))
    (row,) = rows(local)
    assert row["input_metadata"] == {
        "row_id": "a",
        "completion_params": {
            "model": "oracle",
            "temperature": 0.5,
            "max_tokens": 9,
            "top_p": 0.75,
            "user": "me",
            "n": 2,
        },
    }


def test_a_task_that_was_a_row_keeps_what_it_brought_along():
    local = of(
        LocalRun(),
        messages=(user("q"), assistant("an old answer")),
        ground_truth={"answer": 5},
        metadata={
            "input_metadata": {
                "row_id": "theirs",
                "dataset_info": {"split": "test"},
                "mine": 1,
                "completion_params": {"max_tokens": 6},
            },
            "session_data": {"mode": "pointwise"},
            "execution_metadata": {"extra": {"level": 3, "prompt_ids": [9], "branch": 4}},
            "extra": {"level": 4, "note": "kept"},
        },
    )
    local.run(TrainingRolloutProcessor())
    (row,) = rows(local)
    assert [message["content"] for message in row["messages"]] == ["q", "re run"]
    metadata = row["input_metadata"]
    assert (metadata["row_id"], metadata["mine"], metadata["dataset_info"]) == (
        "a",
        1,
        {"split": "test"},
    )
    assert metadata["session_data"] == {"mode": "pointwise"}
    assert metadata["completion_params"]["max_tokens"] == 6
    assert row["ground_truth"] == {"answer": 5}
    fields = extra(row)
    assert (fields["level"], fields["note"]) == (4, "kept")
    assert fields["prompt_ids"] == list(ByteRenderer().render([user("q")], []))
    assert "branch" not in fields, "our names are ours, also where a row does not need them"


def test_a_key_that_a_task_carries_is_refused_and_not_exported():
    local = of(LocalRun(), metadata={"completion_params": {"api_key": "sk-secret"}})
    local.run(TrainingRolloutProcessor())
    (row,) = rows(local)
    assert row["rollout_status"]["code"] == 13
    assert "sk-secret" not in json.dumps(row)


def test_metrics_and_reasons_are_told():
    local = LocalRun()
    local.run(
        TrainingRolloutProcessor(),
        lambda view: Score(0.25, {"length": 3.0, "tone": 1}, {"tone": "warm", "judge": "liked it"}),
    )
    assert rows(local)[0]["evaluation_result"] == {
        "score": 0.25,
        "is_score_valid": True,
        "reason": "judge: liked it",
        "metrics": {
            "length": {"is_score_valid": True, "score": 3.0, "reason": "", "data": {}},
            "tone": {"is_score_valid": True, "score": 1.0, "reason": "warm", "data": {}},
        },
    }


# --- how it ended


def test_a_reply_that_was_cut_is_finished_with_its_termination_reason():
    local = LocalRun(samples=2, sampling=Sampling(max_tokens=3))
    local.run(TrainingRolloutProcessor())
    (row,) = rows(local)
    assert row["rollout_status"]["code"] == 100
    termination, message = row["rollout_status"]["details"]
    assert termination["reason"] == "TERMINATION_REASON"
    assert termination["metadata"] == {"termination_reason": "length"}
    assert message["metadata"] == {"status": "TRUNCATED", "reason": "max_tokens"}
    assert extra(row)["truncated"] == [True, True]
    assert extra(row)["finish_reasons"] == ["length", "length"]
    assert row["execution_metadata"]["finish_reason"] == "length"


def test_a_group_of_failures_is_an_error_and_never_a_score():
    local = LocalRun(samples=2, policy=failing(0, 1), group=GroupPolicy(refill=0))
    local.run(TrainingRolloutProcessor(), lambda view: 1.0, max_retry=0)
    (row,) = rows(local)
    assert row["rollout_status"]["code"] == 13
    assert row["rollout_status"]["message"] == "EngineUnavailable: # at port #"
    (detail,) = row["rollout_status"]["details"]
    assert detail["metadata"]["cause"] == "infrastructure"
    assert "evaluation_result" not in row
    assert extra(row).keys() == {"failed_samples"}
    assert [failed_sample["sample"] for failed_sample in extra(row)["failed_samples"]] == [0, 1]
    assert row["messages"] == [{"role": "user", "content": "do a"}]


def test_a_scorer_that_failed_is_told_as_such():
    local = LocalRun()

    def broken(view):
        raise KeyError("no rubric")

    local.run(TrainingRolloutProcessor(), broken)
    (row,) = rows(local)
    assert row["rollout_status"]["message"] == "KeyError: 'no rubric'"
    assert row["rollout_status"]["details"][0]["metadata"]["phase"] == "scoring"


def test_a_group_that_the_run_does_not_keep_has_nothing_to_train_on():
    local = LocalRun(
        samples=3,
        policy=failing(1),
        group=GroupPolicy(refill=0, shortfall=Shortfall.DROP),
    )
    local.run(TrainingRolloutProcessor(), lambda view: 1.0, max_retry=0)
    (row,) = rows(local)
    assert row["rollout_status"]["code"] == 13
    assert row["rollout_status"]["message"] == ("the group was dropped: 2 of 3 samples are valid")
    assert "evaluation_result" not in row
    assert extra(row).keys() == {"failed_samples"}


def test_a_group_that_is_not_settled_has_no_rows_yet():
    local = LocalRun("a", "b", samples=2)

    async def stops(t):
        if t.task.id == "b":
            local.stop.request("enough")
        t.add(*t.task.messages)
        await t.generate()

    local.run(stops, concurrency=1)
    assert [row["input_metadata"]["row_id"] for row in rows(local)] == ["a"]


# --- disturbed and undisturbed


@pytest.mark.parametrize("trouble", [(), (0,), (1, 2)])
def test_rows_of_a_disturbed_run_equal_those_of_an_undisturbed_one(trouble):
    failed: set[str] = set()

    def answer(request):
        if int(request.id.split("/")[2]) in trouble and request.id not in failed:
            failed.add(request.id)
            return EngineUnavailable("503")
        return f"answer {request.seed}"

    def exported(policy):
        local = LocalRun("a", "b", samples=3, policy=policy)
        local.run(TrainingRolloutProcessor(), lambda view: 1.0)
        return rows(local)

    calm = exported(Oracle(lambda request: f"answer {request.seed}"))
    assert exported(Oracle(answer)) == calm
    assert len(failed) == 2 * len(trouble)
