"""Which function of a file is its rollout, and that nothing else is taken for it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.cli.setup.user_code import load_module, rollout_in, scorer_in
from holdfast.records.errors import UsageError

SOLVE = "async def solve(t):\n    pass\n"
GRADE = "async def grade(trajectory):\n    return 1.0\n"
LOOKUP = "async def lookup(word):\n    pass\n"
LOOKUP_IMPORTED = "from other_tools import lookup\n"
HINTED = "import holdfast\nasync def solve(it: 'holdfast.Rollout'):\n    pass\n"
AGENT = "class Agent:\n    async def __call__(self, t):\n        pass\n"
PATH = Path("mine.py")


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the user's, to be imported from."""
    monkeypatch.setitem(sys.modules, "other_agent", made("other_agent", SOLVE))
    monkeypatch.setitem(sys.modules, "other_tools", made("other_tools", LOOKUP + GRADE))


def made(name: str, source: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(source, f"/home/user/{name}.py", "exec"), vars(module))
    return module


def rollout_name(source: str, scorer: str = "") -> str:
    """Its name in the file."""
    module = made("mine", source)
    rollout = rollout_in(module, PATH, None, scorer=getattr(module, scorer) if scorer else None)
    return next(name for name, value in vars(module).items() if value is rollout)


def refused(source: str, scorer: str = "") -> str:
    with pytest.raises(UsageError) as refusal:
        rollout_name(source, scorer)
    (line,) = str(refusal.value).splitlines()
    return line


@pytest.mark.parametrize(
    "source",
    [
        "from other_agent import solve as rollout\n" + LOOKUP,
        "from other_agent import solve as rollout\n" + SOLVE,
        SOLVE + "rollout = solve\n",
        AGENT + "rollout = Agent()\n" + LOOKUP,
        "import holdfast\nclass rollout(holdfast.SingleTurnRolloutProcessor):\n    pass\n" + LOOKUP,
    ],
)
def test_what_is_called_rollout_is_it_imported_or_not(source: str) -> None:
    module = made("mine", source)
    assert rollout_in(module, PATH, None) is module.rollout


def test_an_object_that_is_called_is_a_rollout_and_a_judge_is_none() -> None:
    judge = "import holdfast\nquality = holdfast.Judge('Right?', policy='http://127.0.0.1:1')\n"
    assert rollout_name(AGENT + judge + "agent = Agent()\n") == "agent"
    assert "has 2 rollouts (agent, solve)" in refused(AGENT + "agent = Agent()\n" + SOLVE)
    assert "has no rollout" in refused(AGENT)
    client = AGENT.replace("(self, t)", "(self, prompt)") + "client = Agent()\n"
    assert client.count("prompt") == 1
    assert rollout_name(client + SOLVE) == "solve"
    assert rollout_name(client) == "client"


def test_the_scorer_is_no_rollout() -> None:
    assert rollout_name(SOLVE + GRADE, scorer="grade") == "solve"
    assert rollout_name(SOLVE + GRADE.replace("grade", "score")) == "solve"
    assert "2 rollouts (solve, grade); name one" in refused(SOLVE + GRADE)
    assert "name it as mine.py:solve" in refused(
        "from other_agent import solve\n" + GRADE, scorer="grade"
    )


def test_a_scorer_whose_file_was_imported_twice_is_no_rollout() -> None:
    module = made("mine", "from other_tools import grade\nasync def solve(rollout):\n    pass\n")
    scorer = made("again", LOOKUP + GRADE).grade
    assert rollout_in(module, PATH, None, scorer=scorer) is module.solve


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "from other_agent import solve\n" + GRADE,
            "mine.py: grade or solve (imported) may be the rollout; name one: mine.py:solve",
        ),
        (
            "from other_agent import solve\nasync def again(t):\n    pass\n",
            "mine.py: again or solve (imported) may be the rollout; name one: mine.py:solve",
        ),
        (
            "from other_tools import lookup\nasync def act(it):\n    pass\n",
            "mine.py: act or lookup (imported) may be the rollout; name one: mine.py:NAME",
        ),
        (
            "def solve(t):\n    pass\n" + LOOKUP,
            "mine.py: lookup or solve (no `async def`) may be the rollout; name one: mine.py:solve",
        ),
        (
            "def rollout(it):\n    pass\n" + LOOKUP.replace("lookup", "go"),
            "mine.py: go or rollout (no `async def`) may be the rollout; name one: mine.py:NAME",
        ),
    ],
)
def test_where_another_may_be_meant_nothing_is_guessed(source: str, line: str) -> None:
    assert refused(source) == line


@pytest.mark.parametrize(
    "source",
    [
        "from asyncio import sleep\nasync def solve(it):\n    pass\n",
        LOOKUP_IMPORTED + SOLVE,
        HINTED.replace("'", "") + LOOKUP_IMPORTED,
        HINTED + LOOKUP_IMPORTED,
        "def prepare(t):\n    pass\n" + SOLVE,
        "from holdfast import RolloutProcessor as Base\nclass solve(Base):\n    pass\n",
    ],
)
def test_helpers_beside_a_rollout_are_left_alone(source: str) -> None:
    assert rollout_name(source) == "solve"


def test_only_what_is_imported_is_said_to_be() -> None:
    own = GRADE.replace("grade", "score")
    assert refused("from other_agent import solve\n" + own).endswith(
        "no rollout: solve is imported from elsewhere: name it as mine.py:solve"
    )


def test_a_forgotten_async_is_named_before_what_is_imported() -> None:
    assert "solve is not an async function" in refused(
        "from other_tools import lookup\ndef solve(t):\n    pass\n"
    )


def test_a_rollout_that_is_named_as_the_scorer_is_said_to_be() -> None:
    assert refused(SOLVE, scorer="solve").endswith("its solve is named as the scorer (--scorer)")
    module = made("mine", SOLVE)
    with pytest.raises(UsageError, match="as the rollout and as the scorer"):
        rollout_in(module, PATH, "solve", scorer=module.solve)


def test_async_scorers_are_listed_where_one_is_not_found(tmp_path: Path) -> None:
    file = tmp_path / "listed_here.py"
    file.write_text(SOLVE + GRADE + "def check(trajectory):\n    return 1\n")
    with pytest.raises(UsageError, match="judges and ready scorers: check, grade"):
        scorer_in(load_module(file), file, "nosuch")
