"""verl's agent loop over stand-ins of verl's interfaces: a prompt that is issued again is answered
from the journal, and a row has the fields and the weight versions that verl trains by."""

import asyncio
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.embedded.model.files import TINY
from holdfast.engine.open_run import RunChanged
from holdfast.records.errors import NotTrainable, UsageError
from support.paths import TESTS

PACKAGE = TESTS / "support" / "verl" / "package"
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
REPLY = 5
"""Tokens of each reply."""


class RayError(Exception):
    """What verl's servers raise when one of them died."""


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """verl's documented shapes in place of the package, and Ray's error in place of Ray."""
    exceptions = ModuleType("ray.exceptions")
    exceptions.RayError = RayError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield
    for name in [name for name in sys.modules if name.startswith(("holdfast.verl", "verl"))]:
        del sys.modules[name]


class Servers:
    """verl's `LLMServerClient`. `step`: that of the weights which its servers have."""

    def __init__(self, step: int = 3, error: Exception | None = None):
        self.step = step
        self.errors = [error] if error else []
        self.requests: list[dict[str, Any]] = []
        self.ids: list[str] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any):
        self.requests.append(sampling_params)
        self.ids.append(request_id)
        if self.errors:
            raise self.errors.pop()
        ids = [10 + (sum(prompt_ids) + n) % 90 for n in range(REPLY)]
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason="completed",
            extra_fields={"min_global_steps": self.step, "max_global_steps": self.step},
        )


class Config(dict[str, Any]):
    """verl's configuration, of which an agent loop has a part as attributes."""

    def __init__(self, folder: str = "", response_length: int = 64, **sections: Any):
        super().__init__(trainer={"default_local_dir": folder} if folder else None, **sections)
        self.rollout = SimpleNamespace(
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            prompt_length=512,
            response_length=response_length,
            val_kwargs=SimpleNamespace(temperature=0.7),
        )


async def solve(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    t.add(holdfast.user("and now?"))
    await t.generate()


def score(trajectory: holdfast.TrajectoryView) -> float:
    assert trajectory.task.ground_truth == "4"
    return 0.5


def no_score(trajectory: holdfast.TrajectoryView) -> None:
    return None


def loop_of(servers: Servers, journal: Any, *, config: Any = None, scorer: Any = score, **options):
    """As verl makes an agent loop: the class is found by the name that is registered."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    import holdfast.verl

    holdfast.verl.agent_loop("my loop", solve, scorer, journal=journal, **options)
    module, _, name = _agent_loop_registry["my loop"]["_target_"].rpartition(".")
    tokenizer = SimpleNamespace(name_or_path=str(TINY))
    return getattr(import_module(module), name)(config or Config(), servers, tokenizer)


def prompt(step: int | None = 7, session: int | None = 0, uid: str = "random") -> dict[str, Any]:
    fields = {
        "raw_prompt": [{"role": "user", "content": "2 + 2?"}],
        "reward_model": {"ground_truth": "4"},
        "uid": uid,
        "session_id": session,
        "global_steps": step,
    }
    return {name: value for name, value in fields.items() if value is not None}


async def issued(loop: Any, *prompts: dict[str, Any], params: Any = PARAMS) -> list[Any]:
    return await asyncio.gather(*(loop.run(dict(params), **each) for each in prompts))


def issue(loop: Any, *prompts: dict[str, Any]) -> list[Any]:
    """In an event loop that ends with them, as a worker of verl's does."""
    return asyncio.run(issued(loop, *prompts))


def test_a_row_has_the_fields_that_verl_trains_on(tmp_path):
    servers = Servers()
    (output,) = issue(loop_of(servers, tmp_path / "holdfast.db"), prompt())
    length = len(output.response_ids)
    assert len(output.response_mask) == len(output.response_logprobs) == length
    assert output.response_mask[:REPLY] == output.response_mask[-REPLY:] == [1] * REPLY
    assert sum(output.response_mask) == 2 * REPLY, "the second prompt is not trained"
    assert (output.reward_score, output.num_turns) == (0.5, 2)
    assert output.extra_fields["min_global_steps"] == 3
    assert output.extra_fields["max_global_steps"] == 3
    assert all(params["logprobs"] and params["top_k"] == -1 for params in servers.requests)


def test_all_requests_of_a_trajectory_have_the_id_by_which_verl_finds_its_server(tmp_path):
    servers = Servers()
    issue(loop_of(servers, tmp_path / "holdfast.db"), prompt(), prompt(session=1))
    assert len(servers.ids) == 4
    assert sorted(servers.ids.count(name) for name in set(servers.ids)) == [2, 2]


def test_where_verl_passes_ids_on_to_its_engines_each_request_has_its_own(tmp_path):
    config, servers = Config(), Servers()
    config.rollout.full_determinism = True
    issue(loop_of(servers, tmp_path / "holdfast.db", config=config), prompt())
    assert len(set(servers.ids)) == 2


def test_a_prompt_that_is_issued_again_is_replayed(tmp_path):
    journal, servers = tmp_path / "holdfast.db", Servers()
    first = issue(loop_of(servers, journal), prompt(), prompt(session=1))
    assert len(servers.requests) == 4
    resumed = Servers(step=9)
    loop = loop_of(resumed, journal)
    again = issue(loop, prompt(uid="other"), prompt(session=1, uid="other"))
    assert not resumed.requests, "after a resume, verl gives a prompt another uid"
    assert [output.response_ids for output in again] == [output.response_ids for output in first]


def test_a_later_step_is_sampled_anew_with_its_own_weights(tmp_path):
    servers = Servers(step=9)
    first, later = issue(loop_of(servers, tmp_path / "holdfast.db"), prompt(7), prompt(8))
    assert len(servers.requests) == 4
    assert first.extra_fields["max_global_steps"] == later.extra_fields["max_global_steps"] == 9


async def test_equal_prompts_of_a_step_are_told_apart(tmp_path):
    servers = Servers()
    loop = loop_of(servers, tmp_path / "holdfast.db")
    await issued(loop, prompt(uid="a"), prompt(uid="b"), prompt(session=None, uid="c"))
    assert len(servers.requests) == 6
    await issued(loop, prompt(session=None, uid="c"))
    assert len(servers.requests) == 8, "verl does not number its sessions: it is the next one"


def test_a_response_is_cut_to_the_length_that_verl_pads_to(tmp_path):
    config = Config(response_length=REPLY + 1)
    (output,) = issue(loop_of(Servers(), tmp_path / "holdfast.db", config=config), prompt())
    assert len(output.response_ids) == len(output.response_mask) == REPLY + 1
    assert len(output.response_logprobs) == REPLY + 1


def test_a_validation_is_a_run_of_its_own(tmp_path):
    journal, servers = tmp_path / "holdfast.db", Servers()

    async def main() -> list[str]:
        loop = loop_of(servers, journal)
        await issued(loop, prompt())
        await issued(loop, prompt(), params=PARAMS | {"temperature": 0.7})
        opened = holdfast.open_journal(journal, read_only=True)
        try:
            runs = [await opened.find_run(name) for name in ("verl", "verl-val")]
            return [run.spec.name for run in runs if run is not None]
        finally:
            await opened.close()

    assert asyncio.run(main()) == ["verl", "verl-val"]
    assert [params["temperature"] for params in servers.requests] == [1.0, 1.0, 0.7, 0.7]


async def test_a_validation_may_sample_greedily_or_from_a_part_of_the_tokens(tmp_path):
    servers, config = Servers(), Config()
    loop = loop_of(servers, tmp_path / "holdfast.db", config=config)
    config.rollout.val_kwargs.temperature = 0.0
    await issued(loop, prompt(), params=PARAMS | {"temperature": 0.0, "top_p": 0.5})
    assert [params["top_p"] for params in servers.requests] == [0.5, 0.5]


def test_what_verl_samples_greedily_beside_training_is_a_run_of_its_own(tmp_path):
    async def main() -> bool:
        loop = loop_of(Servers(), tmp_path / "holdfast.db")
        await issued(loop, prompt(), params=PARAMS | {"temperature": 0.0})
        await issued(loop, prompt(), params=PARAMS | {"temperature": 0.7})
        opened = holdfast.open_journal(tmp_path / "holdfast.db", read_only=True)
        try:
            return await opened.find_run("verl-greedy") is not None
        finally:
            await opened.close()

    assert asyncio.run(main())


@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("temperature", 0.0)])
def test_a_training_that_is_sampled_from_a_part_of_the_tokens_is_refused_at_once(
    tmp_path, name, value
):
    servers, config = Servers(), Config()
    setattr(config.rollout, name, value)
    loop = loop_of(servers, tmp_path / "holdfast.db", config=config)
    with pytest.raises(UsageError, match=f"sampled with {name} {value:g}, from a distribution"):
        asyncio.run(issued(loop, prompt(), params=PARAMS | {name: value}))
    assert not servers.requests


ROLLOUT = {"agent": {"default_agent_loop": "my loop"}}


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"data": {"mm_processor_kwargs": {"fps": 2}}}, "data.mm_processor_kwargs .*text alone"),
        ({"reward": {"custom_reward_function": {"path": "a.py"}}}, r"path \(a.py\): the scorer"),
        (
            {"actor_rollout_ref": {"rollout": ROLLOUT | {"multi_turn": {"max_user_turns": 3}}}},
            r"multi_turn.max_user_turns \(3\): it is for verl's own agent loops",
        ),
        (
            {"actor_rollout_ref": {"rollout": {"enable_rollout_routing_replay": True}}},
            "no routes of experts",
        ),
    ],
)
def test_settings_of_verl_that_cannot_be_followed_are_refused(tmp_path, sections, why):
    servers = Servers()
    loop = loop_of(servers, tmp_path / "holdfast.db", config=Config(**sections))
    with pytest.raises(UsageError, match=why):
        issue(loop, prompt())
    assert not servers.requests


def test_settings_of_verls_own_loops_and_rewards_are_left_to_them(tmp_path):
    rollout = {"agent": {"default_agent_loop": "tool_agent"}, "multi_turn": {"max_user_turns": 3}}
    config = Config(
        actor_rollout_ref={"rollout": rollout},
        reward={"custom_reward_function": {"path": "a.py"}},
    )
    (output,) = issue(
        loop_of(Servers(), tmp_path / "holdfast.db", config=config, scorer=None), prompt()
    )
    assert output.reward_score is None


def test_a_setting_that_no_table_has_is_named(tmp_path):
    config = Config(data={"of_a_later_verl": 3, "_target_": "x"})
    with pytest.warns(UserWarning, match="verl, and leaves them to it: data.of_a_later_verl;"):
        issue(loop_of(Servers(), tmp_path / "holdfast.db", config=config), prompt())


def test_arguments_of_the_chat_template_are_followed_or_refused_before_sampling(tmp_path):
    servers = Servers()
    loop = loop_of(servers, tmp_path / "holdfast.db")
    loop.apply_chat_template_kwargs = {"enable_thinking": False}
    with pytest.raises(UsageError, match="chat_template_kwargs cannot be followed"):
        issue(loop, prompt())
    assert not servers.requests


def test_a_prompt_that_verl_has_no_room_for_is_refused(tmp_path):
    config = Config()
    config.rollout.prompt_length = 3
    with pytest.raises(NotTrainable, match="verl has room for 3"):
        issue(loop_of(Servers(), tmp_path / "holdfast.db", config=config), prompt())


def test_a_training_with_other_checkpoints_does_not_get_the_samples(tmp_path):
    def row(folder: str) -> Any:
        loop = loop_of(Servers(), tmp_path / "holdfast.db", config=Config(folder))
        return issue(loop, prompt())[0]

    first = row("checkpoints/one")
    with pytest.raises(RunChanged, match="recorded 'checkpoints/one', now 'checkpoints/two'"):
        row("checkpoints/two")
    assert row("checkpoints/one").response_ids == first.response_ids


def test_a_trainer_that_does_not_say_the_step_is_refused(tmp_path):
    with pytest.raises(UsageError, match="global_steps"):
        issue(loop_of(Servers(), tmp_path / "holdfast.db"), prompt(step=None))
    loop = loop_of(Servers(), tmp_path / "holdfast.db", step=lambda fields: 1)
    assert issue(loop, prompt(step=None))[0].num_turns == 2


def test_a_scorer_without_a_reward_is_refused_and_verl_scores_where_there_is_none(tmp_path):
    with pytest.raises(NotTrainable):
        issue(loop_of(Servers(), tmp_path / "one.db", scorer=no_score), prompt())
    (output,) = issue(loop_of(Servers(), tmp_path / "two.db", scorer=None), prompt())
    assert output.reward_score is None


@pytest.mark.parametrize("error", [RayError("the actor died"), ConnectionError("refused")])
def test_a_server_that_died_is_asked_again(tmp_path, error):
    servers = Servers(error=error)
    settings = holdfast.Settings(backoff=0.0)
    (output,) = issue(loop_of(servers, tmp_path / "holdfast.db", settings=settings), prompt())
    assert len(servers.requests) == 3
    assert output.reward_score == 0.5
