"""GymEnvironment by itself: what it shows, what it understands, what it lets go of."""

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from holdfast.environments.gym.environment import GymEnvironment
from holdfast.records.errors import ToolSaysNo, UsageError
from support.environments.gym_games import MOVES, Trouble, cell, keep, lake, put_back


def episode(environment: GymEnvironment, seed: int, *actions: str) -> list[tuple[object, ...]]:
    seen = [environment.reset(seed=seed), *map(environment.step, actions)]
    environment.close()
    return [(item.text, item.reward, item.done, item.truncated) for item in seen]


def test_the_lake_shows_where_the_agent_is_and_says_how_to_move():
    first, second = episode(lake(), 1, "right")
    assert first[0] == (
        "[S]FFF\nFHFH\nFFFH\nHFFG\n\nReply with one of these actions: left, down, right, up."
    )
    assert second == ("  (Right)\nS[F]FF\nFHFH\nFFFH\nHFFG", 0.0, False, False)


def test_the_goal_is_worth_a_point_and_ends_the_episode():
    *_, last = episode(lake(), 1, "down", "down", "right", "right", "down", "right")
    assert last[1:] == (1.0, True, False)
    assert type(last[1]) is float


def test_a_limit_of_gymnasium_truncates():
    *_, last = episode(lake(max_episode_steps=2), 1, "left", "left")
    assert last[2:] == (False, True)


SLIPPERY = ["down", "right", "down", "right", "left", "up"]


@pytest.mark.parametrize(
    ("make", "actions"),
    [
        (lambda: lake(is_slippery=True, map_name="8x8"), SLIPPERY),
        (lambda: GymEnvironment("Blackjack-v1", actions={"stick": 0, "hit": 1}), ["stick"]),
        (lambda: GymEnvironment("Taxi-v4"), ["0", "1", "2", "3"]),
        (lambda: GymEnvironment("CartPole-v1"), ["0", "1", "1"]),
        (lambda: GymEnvironment("CliffWalking-v1"), ["0", "1"]),
        (lambda: GymEnvironment("Pendulum-v1"), ["0.5", "[-1]"]),
    ],
)
def test_the_same_seed_is_the_same_episode(make, actions):
    first, two = episode(make(), 7, *actions), episode(make(), 7, *actions)
    assert first == two
    again = make()
    assert episode(again, 7, *actions) == episode(again, 7, *actions) == first


def test_other_seeds_are_other_episodes():
    hands = {tuple(episode(GymEnvironment("Blackjack-v1"), seed, "0")) for seed in range(10)}
    assert len(hands) > 5


def test_cards_are_shown_by_name():
    names = ["your sum", "dealer shows", "usable ace"]
    environment = GymEnvironment("Blackjack-v1", actions={"stick": 0, "hit": 1}, names=names)
    (first,) = episode(environment, 3)
    assert first[0] == (
        "your sum: 7, dealer shows: 10, usable ace: 0\n\n"
        "Reply with one of these actions: stick, hit."
    )


def test_what_is_shown_and_said_can_be_chosen():
    environment = lake(render=lambda env, where, info: f"on {where} of 16", instructions="")
    first, second = episode(environment, 1, "down")
    assert (first[0], second[0]) == ("on 0 of 16", "on 4 of 16")
    (first,) = episode(lake(instructions="Find the goal."), 1)
    assert first[0].endswith("\n\nFind the goal.")


def test_a_function_may_read_the_action():
    environment = GymEnvironment("FrozenLake-v1", actions=lambda reply: "ldru".index(reply))
    environment.reset(seed=1)
    environment.step("d")
    with pytest.raises(ToolSaysNo, match="not understood"):
        environment.step("x")
    environment.close()


def test_an_action_that_was_not_understood_changes_nothing():
    environment = lake()
    environment.reset(seed=1)
    for nonsense in ("fly", "left or right", ""):
        with pytest.raises(ToolSaysNo, match="Nothing happened"):
            environment.step(nonsense)
    assert cell(environment.step("right").text) == 1
    environment.close()


def test_after_the_end_nothing_happens():
    environment = lake()
    environment.reset(seed=1)
    environment.step("right")
    assert environment.step("down").done
    with pytest.raises(ToolSaysNo, match="the episode is over"):
        environment.step("down")
    assert not environment.reset(seed=1).done
    environment.step("right")
    environment.close()


def test_making_one_opens_nothing_and_everything_opened_is_closed():
    trouble = Trouble()
    environment = trouble.environment()
    assert environment.name == "Counting"
    environment.close()
    assert trouble.calls == {"reset": 0, "step": 0, "close": 0}
    environment.reset(seed=1)
    environment.reset(seed=1)
    environment.close()
    environment.close()
    assert trouble.calls == {"reset": 2, "step": 0, "close": 2}


def test_the_tool_offers_the_words_and_moves():
    environment = lake(as_tool="move")
    (tool,) = environment.tools
    parameters = tool.schema["function"]["parameters"]
    assert tool.name == "move"
    assert set(parameters["properties"]["action"]["enum"]) == set(MOVES)
    assert environment.reset(seed=1).text.endswith("Act by calling move.")
    seen = tool.function(**tool.bind('{"action": "right"}'))
    assert cell(seen.text) == 1
    with pytest.raises(ToolSaysNo):
        tool.bind('{"action": "fly"}')
    environment.close()


def test_a_tool_without_words_takes_the_number_of_the_action():
    environment = GymEnvironment("FrozenLake-v1", as_tool="move", is_slippery=False)
    (tool,) = environment.tools
    environment.reset(seed=1)
    assert cell(tool.function(action=2).text) == 1
    with pytest.raises(ToolSaysNo, match="4 is not an action"):
        tool.function(action=4)
    environment.close()
    with pytest.raises(UsageError, match="give `actions="):
        GymEnvironment("Pendulum-v1", as_tool="push").reset(seed=1)


def test_its_identity_names_what_makes_it_another_and_no_address():
    assert lake().identity == lake().identity
    others = [
        lake(is_slippery=True),
        lake(as_tool="move"),
        lake(instructions="x"),
        lake(render=str),
        GymEnvironment("FrozenLake-v1", actions={"west": 0}, is_slippery=False),
    ]
    assert len({lake().identity, *(other.identity for other in others)}) == 6
    assert "0x" not in GymEnvironment("x", thing=object(), actions=lambda reply: 0).identity


def test_a_snapshot_holds_the_chance_and_the_limit_too():
    def make() -> GymEnvironment:
        return lake(is_slippery=True, max_episode_steps=5, snapshot=keep, restore=put_back)

    gym_environment = make()
    assert gym_environment.recovery == "snapshot"
    gym_environment.reset(seed=5)
    for _ in range(2):
        gym_environment.step("left")
    state = gym_environment.snapshot()
    expected = [gym_environment.step("left") for _ in range(3)]
    assert expected[-1].truncated
    other = make()
    other.restore(state)
    assert [other.step("left") for _ in range(3)] == expected
    gym_environment.close()
    other.close()


def test_snapshots_need_both_functions():
    with pytest.raises(UsageError, match="belong together"):
        lake(snapshot=keep)
    with pytest.raises(UsageError, match="no snapshots of its own"):
        lake(recovery="snapshot")


@pytest.mark.parametrize("name", ["FrozenLak-v1", "FrozenLake-v99", "nowhere/FrozenLake-v1"])
def test_an_id_that_gymnasium_does_not_know_is_a_mistake_and_no_accident(name):
    with pytest.raises(UsageError, match=f"gymnasium knows no '{name}'"):
        GymEnvironment(name).reset(seed=1)


def test_what_was_never_reset_says_so():
    with pytest.raises(UsageError, match="was not reset"):
        lake().step("left")


def test_an_environment_that_was_made_already_is_refused():
    made = gymnasium.make("Taxi-v4")
    with pytest.raises(UsageError, match=r"an id or a function, e\.g\. lambda: gymnasium\.make"):
        GymEnvironment(made)
    made.close()
    with pytest.raises(UsageError, match="an id or a function, not 5"):
        GymEnvironment(5)


def test_actions_that_are_neither_words_nor_a_function_are_refused():
    with pytest.raises(UsageError, match=r"not \['south', 'north'\]"):
        GymEnvironment("Taxi-v4", actions=["south", "north"])


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("Blackjack-v1", {"hit": 1, "stick": 7}),
        ("Blackjack-v1", {"hit": 1, "stick": "0"}),
        ("Pendulum-v1", {"push": [1.0], "stick": [7.0]}),
        ("Pendulum-v1", {"push": [1.0], "stick": "left"}),
        ("Pendulum-v1", {"push": [1.0], "stick": 1.0}),
    ],
)
def test_a_word_for_what_is_no_action_is_named(name, actions):
    environment = GymEnvironment(name, actions=actions)
    with pytest.raises(UsageError, match=r"'stick' is .*, which is not an action of .*"):
        environment.reset(seed=1)
    environment.close()


def test_numbers_for_a_word_may_be_a_list_or_of_another_precision():
    arguments = {"left": [-1], "right": np.array([1.0])}
    assert len(episode(GymEnvironment("Pendulum-v1", actions=arguments), 1, "left", "right")) == 3


@pytest.mark.parametrize("make", ["FrozenLake-v1", FrozenLakeEnv])
def test_a_keyword_that_is_unknown_is_a_mistake_and_no_accident(make):
    with pytest.raises(UsageError, match="unexpected keyword argument 'is_slipery'"):
        GymEnvironment(make, is_slipery=False).reset(seed=1)
