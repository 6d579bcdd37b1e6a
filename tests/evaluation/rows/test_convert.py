"""Rows as tasks and back, and finished trajectories as the rows that scorers see."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.export.export import What
from holdfast.engine.export.row_messages import HELD
from holdfast.engine.scoring.scorer import Score
from holdfast.evaluation.rows.convert import row_from, row_of, task_of
from holdfast.evaluation.rows.result import EvaluateResult, MetricResult
from holdfast.evaluation.rows.row import EvaluationRow, InputMetadata, Message
from holdfast.evaluation.running.scorer import score_of
from holdfast.records.errors import EngineUnavailable, Truncated, UsageError
from holdfast.records.message import user
from holdfast.records.task import Task, content_digest, own
from holdfast.records.trajectory import TrajectoryKey
from holdfast.records.view import TrajectoryView
from holdfast.rollout.episodes.environment import Environment, Observation
from holdfast.tasks.read import read_tasks
from support.engine.local_run import LocalRun
from support.evaluation.gym_runs import rows_of
from support.evaluation.performed import adding, identified, performed
from support.evaluation.rows import FULL, values
from support.rollout.stage import Oracle


def dumped(row: EvaluationRow) -> dict:
    return json.loads(row.model_dump_json(exclude_unset=True))


# --- rows and tasks


def test_a_row_survives_being_a_task_with_all_that_it_holds():
    (row,) = identified(FULL)
    task = own(task_of(row))
    assert task.id == "r"
    assert task.messages[2].tool_calls[0].name == "f"
    assert task.messages[2].reasoning == "hm"
    assert dumped(row_from(task)) == FULL


@given(
    truth=values,
    columns=st.dictionaries(
        st.sampled_from(["level", "metadata", "extra", "dataset_info", "completion_params", HELD]),
        values,
    ),
)
def test_any_column_survives(truth, columns):
    row = EvaluationRow(messages=[Message(role="user", content="q")], ground_truth=truth, **columns)
    again = row_from(own(task_of(row)))
    assert json.dumps(again.model_extra, sort_keys=True) == json.dumps(columns, sort_keys=True)
    assert json.dumps(again.ground_truth) == json.dumps(truth)


def test_what_was_made_just_now_is_no_part_of_the_task():
    first, two = (task_of(EvaluationRow(messages=[{"role": "user", "content": "q"}])) for _ in "ab")
    assert content_digest(first) == content_digest(two)
    assert first.metadata == {}


def test_what_was_set_later_is_part_of_the_task():
    row = EvaluationRow()
    row.messages.append(Message(role="user", content="q"))
    row.input_metadata.completion_params["temperature"] = 0
    row.input_metadata.dataset_info = {"seed": 1}
    row.execution_metadata.extra = {"mine": 1}
    row.column = 3
    task = task_of(row)
    assert task.messages == (user("q"),)
    assert task.metadata == {
        "input_metadata": {"dataset_info": {"seed": 1}, "completion_params": {"temperature": 0}},
        "execution_metadata": {"extra": {"mine": 1}},
        "column": 3,
    }


def test_a_rollout_finds_metadata_where_a_task_file_would_have_put_it(tmp_path):
    fields = {"prompt": "q", "id": "a", "metadata": {"level": 3}, "column": 1, "ground_truth": 4}
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(fields))
    (theirs,) = read_tasks(path)
    (row,) = identified(fields)
    mine = task_of(row)
    assert (mine.id, mine.messages, mine.ground_truth) == ("a", theirs.messages, 4)
    assert mine.metadata["level"] == theirs.metadata["level"] == 3
    assert mine.metadata["column"] == theirs.metadata["column"] == 1
    assert row_from(mine).metadata == {"level": 3}
    assert "level" not in (row_from(mine).model_extra or {})


def test_what_is_no_message_is_told_with_its_place():
    row = EvaluationRow(messages=[Message(role="narrator", content="q")])
    with pytest.raises(UsageError, match=r"row 3: messages\[0\]: Invalid enum value 'narrator'"):
        task_of(row, where="row 3: ")
    with pytest.raises(UsageError, match="not JSON"):
        task_of(EvaluationRow(ground_truth=object()))
    for odd in (2**70, "\ud800"):
        with pytest.raises(UsageError, match="row 1: a value cannot be recorded"):
            identified(EvaluationRow(ground_truth=odd))


# --- finished trajectories


def row_in(local: LocalRun, name: str = "a/0") -> EvaluationRow:
    task, _, sample = name.partition("/")
    tasks = {task.id: task for task in local.tasks}
    view = TrajectoryView(TrajectoryKey("run", task, int(sample)), tasks[task], local.history(name))
    return row_of(view, local.spec)


def test_a_finished_row_has_the_whole_conversation_and_how_it_went():
    row = row_in(performed(adding))
    assert [message.role for message in row.messages] == ["user", "assistant", "tool", "assistant"]
    assert row.messages[1].tool_calls[0].function.arguments == '{"a": 2, "b": 2}'
    assert row.messages[2].content == "4"
    assert row.last_assistant_message().content == "It is 4."
    assert row.rollout_status.is_finished()
    assert row.level == 3
    assert row.evaluation_result.score == 0.5
    ran = row.execution_metadata
    assert (ran.rollout_id, ran.run_id, ran.finish_reason) == ("run/a/0", "run", "stop")
    assert ran.tool_call_count == 1
    assert ran.rollout_duration_seconds >= 0
    assert ran.usage.total_tokens == ran.usage.prompt_tokens + ran.usage.completion_tokens
    assert row.input_metadata.row_id == "a"
    assert row.input_metadata.completion_params["model"] == "oracle"


def test_a_finished_row_says_what_the_export_says():
    local = performed(adding)
    (exported,) = local.rows(What.ROWS)
    theirs = EvaluationRow.model_validate(exported)
    mine = row_in(local)
    assert mine.messages == theirs.messages
    assert mine.execution_metadata.extra == theirs.execution_metadata.extra
    assert mine.execution_metadata.usage == theirs.execution_metadata.usage
    assert mine.rollout_status == theirs.rollout_status
    assert mine.input_metadata == theirs.input_metadata
    assert mine.evaluation_result == theirs.evaluation_result
    assert mine.model_extra == theirs.model_extra == {"level": 3, "id": "a", "prompt": "2+2?"}


def test_a_finished_row_is_read_and_written_as_any_other():
    row = row_in(performed(adding))
    again = EvaluationRow.model_validate_json(row.model_dump_json())
    assert again.model_dump(exclude={"created_at"}) == row.model_dump(exclude={"created_at"})


def test_what_the_data_set_said_about_messages_is_there_again():
    record = {
        "messages": [{"role": "user", "content": "2+2?", "weight": 1, "note": "easy"}],
        "input_metadata": {"row_id": "a", "dataset_info": {"k": 1}, "mine": 2},
        "execution_metadata": {"extra": {"kept": 1}, "cost_metrics": {"input_cost": 0.5}},
        "created_at": "2026-11-15T06:09:32Z",
    }
    local = performed(adding, record)
    row = row_in(local)
    assert (row.messages[0].weight, row.messages[0].note) == (1, "easy")
    assert (row.input_metadata.mine, row.input_metadata.dataset_info) == (2, {"k": 1})
    assert row.execution_metadata.extra["kept"] == 1
    assert row.execution_metadata.cost_metrics.input_cost == 0.5
    assert row.created_at.year == 2026
    (exported,) = local.rows(What.ROWS)
    assert exported["messages"][0]["note"] == "easy"


def test_what_a_scorer_changes_is_nobody_elses():
    record = {"prompt": "q", "id": "a", "input_metadata": {"dataset_info": {"k": [1]}}}
    local = performed(adding, record)
    row = row_in(local)
    row.input_metadata.dataset_info["k"].append(2)
    row.messages.clear()
    assert row_in(local).input_metadata.dataset_info == {"k": [1]}
    assert len(row_in(local).messages) == 4


def test_a_row_that_was_cut_short_says_why():
    async def endless(t):
        t.add(*t.task.messages)
        await t.generate()
        raise Truncated("max_turns")

    row = row_in(performed(endless))
    assert row.rollout_status.is_finished()
    assert row.rollout_status.get_termination_reason() == "max_steps"
    assert row.evaluation_result is None


def test_a_row_that_failed_has_an_error_and_no_score():
    policy = Oracle(lambda request: EngineUnavailable("gone"))
    row = row_in(performed(adding, policy=policy, max_retry=0))
    assert row.rollout_status.is_error()
    assert "EngineUnavailable" in row.rollout_status.message
    assert row.evaluation_result is None
    assert [message.content for message in row.messages] == ["2+2?"]


# --- scores


def test_a_result_is_kept_whole_and_comes_back():
    result = EvaluateResult(
        score=0.25,
        reason="partly",
        metrics={
            "style": MetricResult(score=0.5, reason="so so", data={"k": 1}, mine=2),
            "void": MetricResult(score=0.0, reason="", is_score_valid=False),
        },
        trajectory_info={"n": 1},
        mine=[1],
    )
    score = score_of(result, "judge")
    assert (score.reward, dict(score.metrics)) == (0.25, {"style": 0.5})
    assert score.reasons == {"style": "so so", "reason": "partly"}
    local = performed(adding, scorer=lambda view: score)
    assert row_in(local).evaluation_result == result
    (exported,) = local.rows(What.ROWS)
    assert EvaluateResult.model_validate(exported["evaluation_result"]) == result


def test_a_score_that_is_not_valid_is_no_reward_and_is_there_all_the_same():
    result = EvaluateResult(score=0.0, is_score_valid=False, reason="the judge was out")
    local = performed(adding, scorer=lambda view: score_of(result, "judge"))
    assert local.history().reward is None
    assert row_in(local).evaluation_result == result


def test_a_plain_score_reads_as_a_result():
    local = performed(adding, scorer=lambda view: Score(0.5, {"m": 1.0}, {"m": "why", "all": "x"}))
    result = row_in(local).evaluation_result
    assert (result.score, result.metrics["m"].score, result.metrics["m"].reason) == (0.5, 1, "why")
    assert result.reason == "all: x"


def test_an_input_row_with_an_id_of_its_own_is_found_by_it():
    row = EvaluationRow(input_metadata=InputMetadata(row_id="mine"))
    assert task_of(row).id == "mine"
    assert isinstance(task_of(row), Task)


@pytest.mark.parametrize("name", ["text", "contnt"])
def test_a_message_whose_text_has_another_name_is_refused_and_not_sent_empty(name):
    row = EvaluationRow(messages=[{"role": "user", name: "What is 2 + 2?"}])
    with pytest.raises(UsageError, match=rf"^row 1: messages\[0\] has no 'content'.*'{name}'"):
        task_of(row, where="row 1: ")


class Countdown(Environment):
    """Three steps, of which the last one earns."""

    def reset(self, *, seed):
        self.left = 3
        return "3 left"

    def step(self, action):
        self.left -= 1
        return Observation(f"{self.left} left", reward=0.5 * (self.left == 0), done=not self.left)


async def observation_as_it_is(t):
    episode = await t.env(Countdown())
    t.add(*t.task.messages, episode.observation)
    while not episode.over:
        t.add(await episode.step((await t.generate()).text))


async def observation_in_own_words(t):
    episode = await t.env(Countdown())
    t.add(*t.task.messages, user(f"Begin: {episode.observation.text}"))
    while not episode.over:
        seen = await episode.step((await t.generate()).text)
        t.add(user(f"You see {seen.text}."))


async def nothing_at_the_end(t):
    episode = await t.env(Countdown())
    t.add(*t.task.messages, episode.observation)
    while True:
        seen = await episode.step((await t.generate()).text)
        if episode.over:
            return
        t.add(seen)


@pytest.mark.parametrize(
    "rollout", [observation_as_it_is, observation_in_own_words, nothing_at_the_end]
)
def test_what_the_last_step_earned_is_in_the_row_however_the_model_was_told(rollout):
    local = LocalRun(policy=Oracle(lambda request: "down"))
    local.run(rollout)
    (row,) = rows_of(local)
    assert (row.get_steps(), row.get_total_reward(), row.get_terminated()) == (3, 0.5, True)
    assert row.get_termination_reason() == "control_plane_signal"
    arguments = "You see 0 left." if rollout is observation_in_own_words else "0 left"
    assert [message.content for message in row.messages].count(arguments) == 1
    assert row.messages[-1].content == arguments
    assert row.execution_metadata.extra["step_rewards"] == [0.0, 0.0, 0.5]
