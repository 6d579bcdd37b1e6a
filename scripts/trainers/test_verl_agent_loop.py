"""verl's agent loop over a client of its interface: made by verl's own factory, answered from the
journal when a prompt is issued again, with verl's weight versions."""

import asyncio
from array import array

import hydra
import numpy as np
import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from transformers import AutoTokenizer
from verl.experimental.agent_loop import agent_loop as verl_loop
from verl.workers.rollout.replica import TokenOutput

import holdfast.verl
from holdfast.convert.selection import Branches
from holdfast.embedded.model.files import TINY
from holdfast.engine.open_run import RunChanged
from holdfast.policy.policy import Request
from holdfast.records.errors import EngineUnavailable, UsageError
from holdfast.records.samples.logprobs import LogprobsMode
from holdfast.records.sampling import Sampling
from holdfast.verl import loops
from holdfast.verl.policy import ServerPolicy

CONFIG = OmegaConf.create(
    {
        "actor_rollout_ref": {
            "rollout": {
                "temperature": 1.0,
                "top_p": 1.0,
                "top_k": -1,
                "prompt_length": 64,
                "response_length": 32,
                "logprobs_mode": "processed_logprobs",
            }
        },
        "data": {},
    }
)


class Client:
    """verl's `LLMServerClient.generate`."""

    def __init__(self, step=3):
        self.requests = 0
        self.step = step

    async def generate(self, request_id, *, prompt_ids, sampling_params, **more):
        self.requests += 1
        assert sampling_params["logprobs"]
        ids = [10 + (sum(prompt_ids) + n) % 90 for n in range(5)]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            extra_fields={"min_global_steps": self.step, "max_global_steps": self.step},
        )


async def solve(t):
    t.add(*t.task.messages)
    await t.generate()
    t.add(holdfast.user("and now?"))
    await t.generate()


def score(trajectory):
    assert trajectory.task.ground_truth == "4"
    return 0.5


def made(name, client, journal, *, config=CONFIG, **options):
    """As verl makes an agent loop: by the name that is registered."""
    holdfast.verl.agent_loop(name, solve, score, journal=journal, **options)
    return hydra.utils.instantiate(
        config=verl_loop._agent_loop_registry[name],
        trainer_config=verl_loop.DictConfigWrap(config=config),
        server_manager=client,
        tokenizer=AutoTokenizer.from_pretrained(TINY),
        processor=None,
        dataset_cls=None,
        data_config=verl_loop.DictConfigWrap(config.data),
    )


def prompt(step=7, session=0, uid="random"):
    return {
        "raw_prompt": [{"role": "user", "content": "2 + 2?"}],
        "reward_model": {"ground_truth": "4"},
        "uid": uid,
        "session_id": session,
        "global_steps": step,
    }


PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


def test_a_prompt_that_is_issued_again_is_replayed(tmp_path):
    journal = tmp_path / "holdfast.db"
    client = Client()

    async def issue(name, client, *prompts):
        loop = made(name, client, journal)
        return await asyncio.gather(*(loop.run(dict(PARAMS), **each) for each in prompts))

    first = asyncio.run(issue("one", client, prompt(), prompt(session=1)))
    assert client.requests == 4
    for output in first:
        assert isinstance(output, verl_loop.AgentLoopOutput)
        fields = output.as_dict()
        assert len(fields["responses"]) == len(fields["response_mask"])
        assert fields["rm_scores"].sum() == 0.5
        assert 0 in output.response_mask
        assert output.extra_fields["min_global_steps"] == 3
    again = Client(step=9)
    after = asyncio.run(issue("two", again, prompt(uid="other"), prompt(session=1, uid="other")))
    assert again.requests == 0, "after a resume, verl gives a prompt another uid"
    assert [output.response_ids for output in after] == [output.response_ids for output in first]
    later = asyncio.run(issue("three", again, prompt(step=8)))
    assert again.requests == 2, "a later epoch is sampled anew"
    assert later[0].extra_fields["max_global_steps"] == 9


def test_a_training_with_other_checkpoints_does_not_get_the_samples(tmp_path):
    async def issue(name, folder):
        found = OmegaConf.merge(CONFIG, {"trainer": {"default_local_dir": folder}})
        loop = made(name, Client(), tmp_path / "holdfast.db", config=found)
        return await loop.run(dict(PARAMS), **prompt())

    first = asyncio.run(issue("here", "checkpoints/one"))
    with pytest.raises(RunChanged, match="recorded 'checkpoints/one', now 'checkpoints/two'"):
        asyncio.run(issue("there", "checkpoints/two"))
    assert asyncio.run(issue("again", "checkpoints/one")).response_ids == first.response_ids


def test_a_trainer_that_does_not_say_the_step_is_refused(tmp_path):
    bare = {name: value for name, value in prompt().items() if name != "global_steps"}

    async def issue(**options):
        loop = made("bare", Client(), tmp_path / "holdfast.db", **options)
        return await loop.run(dict(PARAMS), **bare)

    with pytest.raises(UsageError, match="global_steps"):
        asyncio.run(issue())
    assert asyncio.run(issue(step=lambda kwargs: 1)).num_turns == 2


def rollouts(tmp_path):
    return loops._Rollouts(
        "calculator",
        solve,
        score,
        journal=tmp_path / "holdfast.db",
        run="verl",
        branches=Branches.REFUSE,
        settings=None,
        step=None,
    )


def as_numpy(prompt):
    """As verl gives them, which keeps its columns in arrays of objects."""
    return {
        **prompt,
        "raw_prompt": np.array(
            [{"role": np.str_("user"), "content": np.str_("2 + 2?")}], dtype=object
        ),
        "reward_model": {"ground_truth": np.array(["4"], dtype=object)},
        "extra_info": {"index": np.int64(3), "parts": np.array([{"n": np.float32(1)}], object)},
    }


def test_what_verl_keeps_in_numpy_is_recorded(tmp_path):
    found = rollouts(tmp_path)
    task = found._task(as_numpy(prompt()))
    assert task.ground_truth == ["4"]
    assert task.messages[0].content == "2 + 2?"
    plain = prompt() | {
        "reward_model": {"ground_truth": ["4"]},
        "extra_info": {"index": 3, "parts": [{"n": 1.0}]},
    }
    assert rollouts(tmp_path)._task(plain).id == task.id


@pytest.mark.parametrize("column", ["ground_truth", "extra_info", "raw_prompt"])
def test_what_cannot_be_recorded_is_named(tmp_path, column):
    changed = {
        "ground_truth": {"reward_model": {"ground_truth": object()}},
        "extra_info": {"extra_info": {"image": object()}},
        "raw_prompt": {"raw_prompt": [{"role": "user", "content": object()}]},
    }
    with pytest.raises(UsageError, match=f"^{column} of a prompt cannot be recorded"):
        rollouts(tmp_path)._task(prompt() | changed[column])


def test_prompts_of_steps_that_are_over_are_forgotten(tmp_path):
    found = rollouts(tmp_path)
    names = [found._task(prompt(step, uid=str(step))).id for step in range(1, 100)]
    assert len(set(names)) == 99
    assert len(found._issued) <= loops.KEPT_STEPS + 1
    assert found._task(prompt(99, uid="99")).id == names[-1]
    assert found._task(prompt(99, uid="other")).id != names[-1]


def test_a_server_that_died_is_no_error_of_the_rollout():
    class Dead:
        async def generate(self, *words, **named):
            raise ActorDiedError

    policy = ServerPolicy(Dead(), model="verl", logprobs_mode=LogprobsMode.PROCESSED)
    request = Request(array("i", [1, 2]), Sampling(), seed=None, id="request")
    with pytest.raises(EngineUnavailable, match="verl's servers: ActorDiedError"):
        asyncio.run(policy.sample(request))
