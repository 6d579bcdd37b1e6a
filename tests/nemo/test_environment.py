"""Our environments under NeMo-RL's rollouts: a turn for a turn, and the same after a restart."""

import pytest
import torch

import holdfast
from holdfast.records.errors import EnvironmentBroken, UsageError
from support.paths import TESTS

PACKAGE = TESTS / "support" / "nemo" / "package"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """NeMo's documented shapes in place of the package."""
    monkeypatch.syspath_prepend(str(PACKAGE))


class Countdown(holdfast.Environment):
    """From the seed down to 0; numbers above 3 are no moves."""

    opened = 0
    closed = 0

    def __init__(self, start: int = 0):
        self.left = start

    def reset(self, *, seed: int) -> holdfast.Observation:
        type(self).opened += 1
        self.left = seed
        return holdfast.Observation(f"{self.left} left")

    def step(self, action: str) -> holdfast.Observation:
        if int(action) > 3:
            raise holdfast.ToolSaysNo("at most 3")
        self.left -= int(action)
        over = self.left <= 0
        return holdfast.Observation(f"{self.left} left", reward=1.0 if over else 0.0, done=over)

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def made(monkeypatch):
    """Environments of NeMo's, closed at the end."""
    from holdfast.nemo import HoldfastEnvironment

    monkeypatch.setattr(Countdown, "opened", 0)
    monkeypatch.setattr(Countdown, "closed", 0)
    results = []

    def make(environment=lambda row: Countdown(), **more):
        results.append(HoldfastEnvironment(environment, **more))
        return results[-1]

    yield make
    for each in results:
        each.shutdown()


def logs_of(*arguments: str) -> list[list[dict[str, str]]]:
    """A log for each: NeMo gives roles and contents."""
    return [
        [{"role": "user", "content": "go"}, {"role": "assistant", "content": word}]
        for word in arguments
    ]


def shown(result) -> list[str]:
    return [message["content"] for message in result.observations]


def test_a_turn_of_a_batch(made):
    environment = made(stop_strings=["</move>"])
    observation = environment.step(logs_of("2", "5", "3"), [{"seed": 5}, {"seed": 5}, {"seed": 3}])
    assert shown(observation) == ["3 left", "at most 3", "0 left"]
    assert {message["role"] for message in observation.observations} == {"environment"}
    assert observation.rewards.tolist() == [0.0, 0.0, 1.0]
    assert observation.rewards.dtype == torch.float32
    assert observation.terminateds.tolist() == [False, False, True]
    assert observation.next_stop_strings == [["</move>"]] * 3
    assert observation.answers == [None] * 3
    assert observation.metadata[2] is None, "the episode is over"
    assert observation.metadata[0]["seed"] == 5, "what the row had stays"


def test_equal_rows_are_episodes_of_their_own(made):
    environment = made()
    row = {"seed": 9}
    first = environment.step(logs_of("1", "2"), [row, row])
    second = environment.step(logs_of("1", "1"), first.metadata)
    assert shown(second) == ["7 left", "6 left"]
    assert Countdown.opened == 2
    assert row == {"seed": 9}


def test_an_actor_that_died_is_answered_as_before(made):
    first = made().step(logs_of("2", "1"), [{"seed": 9}, {"seed": 9}])
    undisturbed = made()
    other = made()
    expected = undisturbed.step(logs_of("3", "3"), first.metadata)
    observation = other.step(logs_of("3", "3"), first.metadata)
    assert observation.observations == expected.observations
    assert shown(observation) == ["4 left", "5 left"]
    assert observation.metadata == expected.metadata


def test_a_step_that_is_asked_for_again_is_answered_again(made):
    environment = made()
    first = environment.step(logs_of("2"), [{"seed": 9}])
    once = environment.step(logs_of("1"), first.metadata)
    again = environment.step(logs_of("1"), first.metadata)
    assert (shown(once), once.metadata) == (shown(again), again.metadata)
    assert shown(environment.step(logs_of("1"), again.metadata)) == ["5 left"]


def test_an_environment_that_comes_back_different_is_never_guessed(made):
    first = made().step(logs_of("2"), [{"seed": 9}])
    changed = [{**first.metadata[0], "seed": 8}]
    with pytest.raises(EnvironmentBroken, match="otherwise than before"):
        made().step(logs_of("1"), changed)


def test_one_that_breaks_is_made_anew_and_never_rewarded(made):
    class Flaky(Countdown):
        left_to_break = 2

        def step(self, action: str) -> holdfast.Observation:
            if type(self).left_to_break:
                type(self).left_to_break -= 1
                raise OSError("gone")
            return super().step(action)

    observation = made(lambda row: Flaky()).step(logs_of("2"), [{"seed": 9}])
    assert shown(observation) == ["7 left"]
    Flaky.left_to_break = 3
    with pytest.raises(EnvironmentBroken, match="OSError: gone"):
        made(lambda row: Flaky()).step(logs_of("2"), [{"seed": 9}])


def test_what_cannot_come_back_says_so(made):
    class Once(Countdown):
        recovery = "restart"

    first = made(lambda row: Once()).step(logs_of("2"), [{"seed": 9}])
    with pytest.raises(EnvironmentBroken, match="cannot come back after 1 actions"):
        made(lambda row: Once()).step(logs_of("2"), first.metadata)


def test_episodes_that_nemo_gives_up_are_closed_and_may_come_back(made):
    environment = made(max_live=2)
    rows = [environment.step(logs_of("1"), [{"seed": 9}]).metadata[0] for _ in range(4)]
    assert (Countdown.opened, Countdown.closed) == (4, 2)
    observation = environment.step(logs_of("1"), [rows[0]])
    assert shown(observation) == ["7 left"]
    batch = {"total_reward": torch.tensor([1.0, 0.0])}
    same, metrics = environment.global_post_process_and_metrics(batch)
    assert same is batch
    assert metrics["holdfast/mean_reward"] == 0.5
    assert metrics["holdfast/environments_made_anew"] == 1.0


def test_everything_is_closed_at_the_end(made):
    environment = made()
    environment.step(logs_of("1", "1"), [{"seed": 9}, {"seed": 9}])
    environment.shutdown()
    assert Countdown.closed == Countdown.opened == 2


def test_the_first_prompt_shows_what_the_reset_shows(made):
    assert made().first_observation({"seed": 7}) == "7 left"
    assert Countdown.closed == Countdown.opened == 1


def test_bad_input(made):
    with pytest.raises(UsageError, match="extra_env_info"):
        made().step(logs_of("1"), [None])
    with pytest.raises(UsageError, match="ends with what the model said"):
        made().step([[{"role": "user", "content": "go"}]], [{}])
    with pytest.raises(UsageError, match="max_live"):
        made(max_live=0)
    with pytest.raises(UsageError, match="max_live must be a whole number, not '2'"):
        made(max_live="2")
    with pytest.raises(UsageError, match="make must be a function, not 3"):
        made(3)
    with pytest.raises(UsageError, match="stop_strings must be a list, not 'END'"):
        made(stop_strings="END")


class ClosesBadly(Countdown):
    def close(self) -> None:
        super().close()
        raise OSError("the server is gone")


def test_every_environment_is_closed_whatever_one_raises(made):
    environment = made(lambda row: ClosesBadly())
    environment.step(logs_of("1", "1", "1"), [{"seed": 5}] * 3)
    with pytest.raises(OSError, match="the server is gone"):
        environment.shutdown()
    assert ClosesBadly.closed == 3
    assert not environment._thread.is_running


@pytest.mark.parametrize("own", ["mine", 5, {"episode": "x"}, ["a"]])
def test_a_column_of_our_name_is_refused(made, own):
    with pytest.raises(UsageError, match="as 'holdfast', which is where the episode is kept"):
        made().step(logs_of("1"), [{"seed": 5, "holdfast": own}])
