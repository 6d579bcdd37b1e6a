"""What a decorator says is checked where it stands, by the name of the argument."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.evaluation import (
    AgentRolloutProcessor,
    BackoffConfig,
    EvaluationThreshold,
    ExceptionHandlerConfig,
    evaluation_test,
)
from holdfast.evaluation.definition.definition import Definition, scorer_fingerprint, variants_of
from holdfast.evaluation.rows.completion_params import ids_of, setting_of
from holdfast.evaluation.running.logged_rows import default_logger
from holdfast.evaluation.running.resume import MAX_NAME, run_name
from holdfast.evaluation.stats.verdict import Threshold
from holdfast.policy.policy import NoPolicy
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling

ROWS = [{"prompt": "hi"}]


def defined(**arguments: Any) -> Definition:
    @evaluation_test(**{"dataset": ROWS, **arguments})
    def judge(row: object, bonus: int = 0) -> float:
        return 1.0

    definition: Definition = judge.__holdfast__  # type: ignore[attr-defined]
    return definition


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tempreature": 1}, "has no argument 'tempreature'"),
        ({"mode": "listwise"}, "mode='listwise' is none of pointwise, groupwise, all"),
        ({"mode": "all"}, "in all mode judge wants a parameter named 'rows'"),
        ({"num_runs": 0}, "num_runs must be 1 or more"),
        ({"samples": 0}, "samples must be"),
        ({"seed": -1}, "seed must be"),
        ({"max_dataset_rows": -1}, "max_dataset_rows must be"),
        ({"max_concurrent_rollouts": 0}, "max_concurrent_rollouts must be"),
        ({"scorer_timeout": 0}, "scorer_timeout must be longer than 0 seconds"),
        ({"aggregation_method": "median"}, "aggregation_method='median' is none of"),
        ({"passed_threshold": "high"}, "passed_threshold wants a number"),
        ({"passed_threshold": {"sucess": 1}}, "passed_threshold wants a number"),
        ({"completion_params": []}, "completion_params is an empty list"),
        ({"completion_params": "gpt"}, "completion_params wants a list"),
        ({"completion_params": [{"tempreature": 1}]}, "unknown completion parameter"),
        ({"completion_params": [{"max_tokens": 0}]}, "max_tokens must be 1 or more"),
        ({"completion_params": [{"extra_body": 3}]}, "extra_body is an object"),
        ({"rollout_processor": 3}, "rollout_processor: 3 is not a rollout"),
        ({"mcp_config_path": "x.json"}, "mcp_config_path means nothing to SingleTurn"),
        ({"rollout_processor_kwargs": {"a": 1}}, "unknown completion parameter 'a'"),
        ({"logger": object()}, "logger wants a DatasetLogger"),
        ({"input_rows": [[]]}, "rows come from one place; given are dataset and input_rows"),
        ({"evaluation_test_kwargs": [{"malus": 1}]}, "judge takes no 'malus'"),
        ({"evaluation_test_kwargs": [{"row": 1}]}, "judge takes no 'row'"),
        ({"exception_handler_config": 3}, "exception_handler_config wants"),
        ({"samples": 2, "completion_params": {"n": 3}}, "samples=2 contradicts n=3"),
        ({"filtered_row_ids": "r1"}, "filtered_row_ids wants a list of strings"),
        ({"policy": 8000}, "policy wants a list of strings"),
        ({"policy": NoPolicy()}, "where the evaluation is begun: test.evaluate(policy=…)"),
        (
            {
                "exception_handler_config": ExceptionHandlerConfig(
                    backoff_config=BackoffConfig(strategy="fibonacci")
                )
            },
            "strategy='fibonacci' is none of expo, constant",
        ),
        (
            {"exception_handler_config": ExceptionHandlerConfig(retryable_exceptions={"OSError"})},
            "retryable_exceptions wants exception classes, not 'OSError'",
        ),
    ],
)
def test_a_mistake_is_told_with_the_arguments_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        defined(**arguments)
    assert message in str(caught.value)


def test_thresholds_come_in_eval_protocols_shapes() -> None:
    for arguments in (
        {"success": 0.5, "standard_error": 0.1},
        EvaluationThreshold(success=0.5, standard_error=0.1),
    ):
        assert defined(passed_threshold=arguments).threshold == Threshold(0.5, 0.1)
    assert defined(passed_threshold=1).threshold == Threshold(1.0)
    assert defined().threshold is None


def test_what_changes_nothing_is_accepted() -> None:
    definition = defined(logger=default_logger, disable_browser_open=True)
    assert definition.max_concurrent_rollouts == 64
    setting = setting_of({"model": "m", "stream": True, "user": "me", "logprobs": True})
    assert setting.model == "m"


def test_params_are_read_and_a_key_is_never_kept() -> None:
    setting = setting_of(
        {
            "model": "openai/gpt-4o",
            "max_completion_tokens": 9,
            "stop": "END",
            "extra_body": {"reasoning_effort": "low"},
            "response_format": {"type": "json_object"},
            "api_key": "sk-secret",
            "n": 3,
            "top_p": None,
        },
        {"temperature": 0},
    )
    assert setting.sampling.max_tokens == 9
    assert setting.sampling.temperature == 0
    assert setting.sampling.stop == ("END",)
    assert setting.sampling.reasoning_effort == "low"
    assert setting.sampling.json is True
    assert setting.samples == 3
    assert setting.api_key == "sk-secret"
    assert "secret" not in repr(setting)
    assert "secret" not in json.dumps(dict(setting.params))


def test_what_engines_know_is_read_and_the_rest_of_extra_body_is_passed_on() -> None:
    setting = setting_of(
        {
            "top_k": 5,
            "logit_bias": {"7": -100},
            "chat_template_kwargs": {"enable_thinking": False},
            "extra_body": {"min_p": 0.1, "max_completion_tokens": 9, "cache_salt": "x"},
        },
        {"presence_penalty": 0.5},
    )
    assert setting.sampling == Sampling(
        9,
        top_k=5,
        min_p=0.1,
        presence_penalty=0.5,
        logit_bias=((7, -100.0),),
        chat_template_kwargs='{"enable_thinking":false}',
        extra_body='{"cache_salt":"x"}',
    )
    with pytest.raises(UsageError, match="min_p must be 0 to 1, not 2"):
        setting_of({"min_p": 2})


def test_variants_have_readable_ids() -> None:
    settings = [
        setting_of({"model": "openai/gpt-4o", "temperature": 0.5}),
        setting_of({"model": "fireworks_ai/accounts/fireworks/models/k2", "temperature": 0.5}),
        setting_of({"model": "openai/gpt-4o", "temperature": 1}),
    ]
    assert ids_of(settings) == [
        "gpt-4o,temperature=0.5",
        "k2,temperature=0.5",
        "gpt-4o,temperature=1",
    ]
    assert ids_of([setting_of({"model": "m"})] * 2) == ["m#0", "m#1"]
    definition = defined(
        completion_params=[{"model": "a"}, {"model": "b"}],
        evaluation_test_kwargs=[{"bonus": 1}, None],
    )
    assert [variant.id for variant in variants_of(definition)] == [
        "a-kwargs0",
        "a-kwargs1",
        "b-kwargs0",
        "b-kwargs1",
    ]


def test_an_evaluation_without_rows_is_told_when_it_is_to_run() -> None:
    with pytest.raises(UsageError, match="has no rows: give @evaluation_test dataset="):
        variants_of(defined(dataset=None))


def test_names_of_runs_are_names_of_runs() -> None:
    assert run_name("tests.test_a", "test_b") == "tests.test_a.test_b"
    first, second = run_name("m", "f", "org/model", "x"), run_name("m", "f", "org_model", "x")
    assert first.startswith("m.f[org_model-x]~")
    assert second == "m.f[org_model-x]"
    first, second = (run_name("m", "f", "x" * 500 + end) for end in "ab")
    assert first != second
    assert len(first) == MAX_NAME


def test_rows_that_are_given_once_are_there_for_every_setting() -> None:
    import asyncio

    definition = defined(
        dataset=({"prompt": str(n)} for n in range(3)),
        completion_params=[{"model": "a"}, {"model": "b"}],
    )
    counts = [len(asyncio.run(variant.dataset.rows())) for variant in variants_of(definition)]
    assert counts == [3, 3]


def test_what_a_scorer_is_called_with_is_part_of_it() -> None:
    definition = defined(evaluation_test_kwargs=[{"bonus": 1}, {"bonus": 2}])
    first, second = variants_of(definition)
    assert scorer_fingerprint(definition, first)[0] != scorer_fingerprint(definition, second)[0]
    assert scorer_fingerprint(definition, first) == scorer_fingerprint(definition, first)


def test_an_agent_takes_its_tools_from_a_config_file(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(
        '{"mcpServers": {"a": {"command": "x", "args": ["y"]}, "b": {"url": "http://h/mcp"}}}'
    )
    agent = AgentRolloutProcessor(system_prompt="be good")
    definition = defined(rollout_processor=agent, mcp_config_path=str(config), steps=7)
    made = definition.processor
    assert isinstance(made, AgentRolloutProcessor)
    assert len(made.environments) == 2
    assert made.limits.turns == 7
    assert (agent.environments, made.system_prompt) == ((), "be good")
    assert made.identity != agent.identity
    for text, message in (
        ("{}", "mcpServers"),
        ('{"mcpServers": {"a": {}}}', "command"),
    ):
        config.write_text(text)
        with pytest.raises(UsageError, match=message):
            defined(rollout_processor=agent, mcp_config_path=str(config))
    with pytest.raises(UsageError, match="starts no server script"):
        defined(rollout_processor=agent, server_script_path="s.py")
