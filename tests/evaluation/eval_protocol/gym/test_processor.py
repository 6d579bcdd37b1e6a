"""Episodes of MCP gyms: a server that is started, tools by MCP, rewards over HTTP beside them."""

import os

import pytest

from holdfast.engine.export.export import What
from holdfast.evaluation.eval_protocol.gym.processor import MCPGymRolloutProcessor
from holdfast.records.errors import UsageError
from holdfast.rollout.processors.processor import fingerprint_of
from support.evaluation.gym_runs import SCRIPT, counting, rows_of, say, yard_of
from support.rollout.stage import text_of


def test_an_episode_is_played_to_its_end_and_earns_what_the_control_plane_says():
    local = yard_of(user_prompt_template="Do this: {observation} ({seed})")
    local.run(MCPGymRolloutProcessor(SCRIPT))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    (row,) = rows_of(local)
    assert [message.role for message in row.messages[:3]] == ["system", "user", "assistant"]
    assert row.messages[1].content == "Do this: count to three (7)"
    assert (row.get_steps(), row.get_total_reward(), row.get_terminated()) == (3, 0.75, True)
    assert row.get_termination_reason() == "control_plane_signal"
    last = row.messages[-1]
    assert last.role == "tool"
    assert last.control_plane_step["tool_calls"] == ['say({"number": 3})']
    assert local.history().reward == 0.75
    assert row.execution_metadata.extra["step_rewards"] == [0.25] * 3


def test_the_export_says_the_same_about_the_steps():
    local = yard_of()
    local.run(MCPGymRolloutProcessor(SCRIPT))
    (row,) = local.rows(What.ROWS)
    steps = [
        message["control_plane_step"]
        for message in row["messages"]
        if "control_plane_step" in message
    ]
    assert [step["reward"] for step in steps] == [0.25] * 3
    assert steps[-1]["terminated"] is True


def test_without_a_template_the_first_state_follows_the_rows_messages():
    local = yard_of()
    local.run(MCPGymRolloutProcessor(SCRIPT))
    (row,) = rows_of(local)
    assert row.messages[1].content == '{"observation":"count to three","seed":7}'


def test_without_a_seed_of_the_data_set_the_trajectorys_own_begins_the_episode():
    local = yard_of(environment_context={})
    local.run(MCPGymRolloutProcessor(SCRIPT))
    (row,) = rows_of(local)
    assert '"seed":null' not in row.messages[1].content


def test_an_episode_ends_where_no_tool_is_called():
    local = yard_of(lambda request: "I would rather not.")
    local.run(MCPGymRolloutProcessor(SCRIPT))
    (row,) = rows_of(local)
    assert (row.get_steps(), local.history().reward) == (0, 0.0)


def test_steps_are_a_limit_and_what_was_earned_until_then_counts():
    local = yard_of()
    local.run(MCPGymRolloutProcessor(SCRIPT, steps=2))
    assert local.statuses() == {"a/0": ("TRUNCATED", True)}
    (row,) = rows_of(local)
    assert local.history().reward == 0.5
    assert row.get_termination_reason() == "max_steps"
    assert row.rollout_status.get_termination_reason() == "max_steps"


def test_each_tool_call_of_a_reply_is_a_step():
    local = yard_of(lambda request: say(1) + say(2) + say(3))
    local.run(MCPGymRolloutProcessor(SCRIPT, steps=2))
    assert local.statuses() == {"a/0": ("TRUNCATED", True)}
    (row,) = rows_of(local)
    assert (row.get_steps(), local.history().reward) == (2, 0.5)


@pytest.fixture
def fault(monkeypatch):
    def set_to(name: str) -> None:
        monkeypatch.setenv("HOLDFAST_GYM_FAULT", name)

    return set_to


def test_a_control_plane_that_is_silent_breaks_the_environment_and_earns_no_zero(fault):
    fault("slow")
    local = yard_of()
    local.run(MCPGymRolloutProcessor(SCRIPT, timeout=3.0))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    history = local.history()
    assert [failure.cause.value for failure in history.failures] == ["environment"]
    assert "did not answer /control/reward within 3 s" in history.failures[0].message
    assert history.reward == 0.75
    assert len(local.policy.requests) == 3, "what was said before was replayed, not sampled again"


def test_a_control_plane_that_answers_nonsense_fails_the_row_for_good_without_a_reward(fault):
    fault("status")
    local = yard_of()
    local.run(MCPGymRolloutProcessor(SCRIPT), max_retry=1)
    assert local.statuses() == {"a/0": ("FAILED", True)}
    assert local.history().reward is None
    assert "no status today" in local.history().failures[-1].message


def test_a_server_that_dies_is_started_again_and_the_episode_replayed(tmp_path):
    died = tmp_path / "died"

    class Dying(MCPGymRolloutProcessor):
        pass

    processor = Dying(SCRIPT)

    async def answer(request) -> str:
        if text_of(request.prompt).count("heard") == 2 and not died.exists():
            died.touch()
            await processor._gym.server._process.end()
        return counting(request)

    local = yard_of(answer)
    local.run(processor)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert local.history().reward == 0.75
    assert died.exists()


def test_no_server_is_left_behind(tmp_path):
    script = tmp_path / "server.py"
    pid = tmp_path / "pid"
    script.write_text(
        f"import os, runpy, pathlib\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    yard_of().run(MCPGymRolloutProcessor(script))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_server_that_cannot_start_is_told_with_its_last_words(tmp_path):
    script = tmp_path / "server.py"
    script.write_text("raise SystemExit('no lake today')\n")
    local = yard_of()
    local.run(MCPGymRolloutProcessor(script), max_retry=0)
    assert local.statuses() == {"a/0": ("FAILED", True)}
    assert "no lake today" in local.history().failures[-1].message


def test_what_the_decorator_says_configures_a_new_one():
    plain = MCPGymRolloutProcessor()
    made = plain.configured(
        server_script_path=SCRIPT, steps=3, rollout_processor_kwargs={"server_mode": "shared"}
    )
    assert (made.steps, made.server_script_path) == (3, SCRIPT)
    assert plain.server_script_path is None
    assert fingerprint_of(made) != fingerprint_of(made.configured(steps=4))
    with pytest.raises(UsageError, match="mcp_config_path"):
        plain.configured(mcp_config_path="x.json")
    with pytest.raises(UsageError, match="'color'"):
        plain.configured(rollout_processor_kwargs={"color": 1})
    with pytest.raises(UsageError, match="does not exist"):
        yard_of().run(MCPGymRolloutProcessor("nowhere.py"))
    with pytest.raises(UsageError, match="server_script_path"):
        yard_of().run(MCPGymRolloutProcessor())
