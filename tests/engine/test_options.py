"""The options of a run: declared once, and the same for the command line, pytest and Python."""

import argparse
import inspect

import pytest

import holdfast
from holdfast.engine import options
from holdfast.engine.options import Option
from holdfast.engine.settings import settings_of
from holdfast.evaluation import evaluation_test
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.retry import RetryPolicy
from holdfast.records.run import MAX_SAMPLES

OPTIONS = {
    option.dest: option
    for listed in options.SUBJECTS.values()
    for option in listed
    if listed is not options.PRINTING
}


def values(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    for option in (*OPTIONS.values(), options.JOIN):
        option.add_to(parser)
    return vars(parser.parse_args(arguments))


def test_a_command_without_options_has_the_settings_of_a_call_without_arguments():
    assert settings_of(values()) == holdfast.Settings()


def test_an_option_is_a_setting():
    settings = settings_of(
        values("--lease", "5", "--max-retry", "0", "--scorer-tries", "7", "--join")
    )
    assert (settings.lease_seconds, settings.max_retry, settings.join) == (5.0, 0, True)
    assert settings.scoring.tries == 7


def test_defaults_are_those_of_the_values_that_options_fill():
    sampling, retry, group = holdfast.Sampling(), RetryPolicy(), holdfast.GroupPolicy()
    patience = inspect.signature(EnginePolicy).parameters["patience"].default
    own = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "reasoning_effort": sampling.reasoning_effort,
        "call_tries": retry.tries,
        "call_deadline": retry.deadline,
        "try_timeout": retry.try_timeout,
        "stall_timeout": retry.stall_timeout,
        "patience": patience,
        "group_refill": group.refill,
        "group_shortfall": group.shortfall,
        "group_at_least": group.at_least,
    }
    assert {name: OPTIONS[name].default for name in own} == own
    assert options.SAMPLES.kind.most == MAX_SAMPLES


def test_a_decorator_has_the_defaults_of_a_run():
    parameters = inspect.signature(evaluation_test).parameters
    assert parameters["max_concurrent_rollouts"].default == holdfast.Settings().concurrency
    assert parameters["scorer_timeout"].default == holdfast.ScoringPolicy().timeout


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize("option", [options.CONCURRENCY, options.ATTEMPT_DEADLINE])
def test_a_text_and_a_value_are_refused_for_the_same_reason(option: Option, value: str):
    with pytest.raises(argparse.ArgumentTypeError) as typed:
        option.kind(value)
    with pytest.raises(holdfast.UsageError) as called:
        option.check(int(value))
    assert str(called.value) == f"{option.dest} {typed.value}"
