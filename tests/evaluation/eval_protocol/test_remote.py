"""Remote servers that speak eval-protocol's protocol, behind the run's own gateway."""

import pytest

from holdfast.evaluation import RemoteRolloutProcessor
from holdfast.records.errors import UsageError
from support.evaluation.eval_protocol_remote import Remote, serving
from support.evaluation.evaluation_project import EvaluationProject

CODE = """
from holdfast.evaluation import Message, RemoteRolloutProcessor, evaluation_test

@evaluation_test(
    input_messages=[[[Message(role="user", content="draw a square")]]],
    rollout_processor=RemoteRolloutProcessor(remote_base_url="URL", poll_interval=0.05),
)
def test_it(row):
    assert [one.role for one in row.messages] == ["user", "assistant"]
    assert row.execution_metadata.usage.completion_tokens > 0
    return 1.0
"""


def run(project: EvaluationProject, remote: Remote, *flags: str) -> pytest.RunResult:
    project.write(CODE.replace("URL", remote.url), head="")
    return project.run(*flags)


def test_a_rollout_is_over_when_its_server_logs_so(project: EvaluationProject) -> None:
    with serving(Remote()) as remote:
        run(project, remote).assert_outcomes(passed=1)
    (request,) = remote.started
    assert request["messages"] == [{"role": "user", "content": "draw a square"}]
    assert request["metadata"]["row_id"]
    assert request["completion_params"]["model"]


def test_a_server_that_has_a_status_is_asked_for_it(project: EvaluationProject) -> None:
    with serving(Remote(tells_status=True)) as remote:
        run(project, remote).assert_outcomes(passed=1)


def test_a_failure_that_may_pass_is_tried_again_and_nothing_is_sampled_twice(
    project: EvaluationProject,
) -> None:
    unavailable = 14
    with serving(Remote(unavailable)) as remote:
        run(project, remote).assert_outcomes(passed=1)
    first, second = (item["metadata"]["rollout_id"] for item in remote.started)
    assert first != second, "what the first logs late is nobody's"
    assert project.engine.stats().requests == 1


def test_a_mistake_is_not_tried_again(project: EvaluationProject) -> None:
    invalid_argument = 3
    with serving(Remote(invalid_argument)) as remote:
        result = run(project, remote)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*InvalidArgumentError: over*"])
    assert len(remote.started) == 1


def test_its_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EP_REMOTE_ROLLOUT_PROCESSOR_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="remote_base_url"):
        RemoteRolloutProcessor()
    with pytest.raises(UsageError, match="model_base_url"):
        RemoteRolloutProcessor(
            remote_base_url="http://127.0.0.1:1", model_base_url="https://example.org"
        )
    monkeypatch.setenv("EP_REMOTE_ROLLOUT_PROCESSOR_BASE_URL", "http://127.0.0.1:2")
    assert RemoteRolloutProcessor().identity == "http://127.0.0.1:2"
    assert RemoteRolloutProcessor("http://127.0.0.1:1").identity == "http://127.0.0.1:1"
