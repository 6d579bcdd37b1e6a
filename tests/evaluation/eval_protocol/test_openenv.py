"""Episodes of an OpenEnv server under eval-protocol's names for them."""

import json
import re
from collections.abc import Iterator

import pytest

from holdfast.records.errors import UsageError
from holdfast.rollout.processors.processor import fingerprint_of
from support.engine.local_run import LocalRun
from support.environments.openenv_games import Host, Server
from support.rollout.stage import Oracle, text_of


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    host = Host()
    yield host.serve()
    host.close()


def processor(**arguments: object):
    from holdfast.evaluation.eval_protocol.openenv import OpenEnvRolloutProcessor

    return OpenEnvRolloutProcessor(**{"action_parser": json.loads, **arguments})


def shown(observation: dict, step: int, history: list[str]) -> str:
    return f"{step}: {observation['hint']} after {history[-1] if history else 'nothing'}"


def guessing(request) -> str:
    low, high = 0, 99
    for hint, number in re.findall(r'(higher|lower) after step \d+: {"number": (\d+)}',
                                   text_of(request.prompt)):  # fmt: skip
        low, high = (int(number) + 1, high) if hint == "higher" else (low, int(number) - 1)
    return json.dumps({"number": (low + high) // 2})


def test_an_episode_is_played_with_ones_own_prompts_and_actions(server):
    local = LocalRun(policy=Oracle(guessing))
    local.run(processor(env_base_url=server.url, prompt_builder=shown), max_retry=0)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert local.history().reward == 1.0
    assert "1: up to 99 after nothing" in text_of(local.policy.requests[0].prompt)


def test_a_client_may_be_made_by_a_function_and_steps_are_a_limit(server):
    from holdfast.environments.openenv import GenericEnvClient

    made = processor(env_factory=lambda: GenericEnvClient(base_url=server.url), steps=9)
    local = LocalRun(policy=Oracle(lambda request: '{"number": 100}'))
    local.run(made.configured(steps=2), max_retry=0)
    assert local.statuses() == {"a/0": ("TRUNCATED", True)}
    assert len(local.policy.requests) == 2
    assert fingerprint_of(made) != fingerprint_of(made.configured(steps=2))


def test_what_it_cannot_do_is_told():
    with pytest.raises(UsageError, match="action_parser"):
        processor(action_parser=None, env_base_url="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="env_factory=… or env_base_url=…"):
        processor()
    made = processor(env_base_url="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="docker_image"):
        made.configured(rollout_processor_kwargs={"docker_image": "x"})
    with pytest.raises(UsageError, match="neither"):
        made.configured(mcp_config_path="x")
