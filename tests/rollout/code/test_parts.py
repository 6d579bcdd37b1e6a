"""A rollout is its source and that of what it names, with plain data by its value."""

import functools
import threading
from collections.abc import Callable

import pytest

from holdfast import AgentRolloutProcessor, Judge, tool
from holdfast.rollout.code.fingerprint import fingerprint_of, fingerprinted, identified_in
from holdfast.rollout.processors.processor import RolloutProcessor
from support.rollout.project import Project

AGENT = """
import §texts as texts
from §texts import ask
from §tools import TOOLS, Agent, agent, settings, client, pattern

LIMIT = 3
UNUSED = 4

async def solve(t):
    t.add(ask(texts.SYSTEM), Agent.rule, settings.hint)
    await t.generate(tools=TOOLS, n=LIMIT)
    await agent.act(client, pattern)

def score(t):
    return UNUSED
"""
TEXTS = """
SYSTEM = "be brief"
OTHER = "be long"

def ask(text):
    return again(text)

def again(text):
    return text

def unused(): ...
"""
TOOLS = """
import re, threading, types

class Base:
    def act(self, *given): ...

class Agent(Base):
    rule = "one"
    def __init__(self, key): ...

class Client:
    def __init__(self, key): self.key = key

def look(): return 1
KEY = "a"
TOOLS = [look]
agent = Agent(KEY)
settings = types.SimpleNamespace(hint=True, workers=3)
client = threading.Thread(name="a")
pattern = re.compile("a")
"""
FILES = {"agent": AGENT, "texts": TEXTS, "tools": TOOLS}


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("agent", "LIMIT = 3", "LIMIT = 4", ["LIMIT"]),
        ("agent", "n=LIMIT", "n=LIMIT + 1", ["solve"]),
        ("agent", "UNUSED = 4", "UNUSED = 5", []),
        ("agent", "return UNUSED", "return 1", []),
        ("texts", "be brief", "be very brief", ["texts.SYSTEM"]),
        ("texts", "be long", "be very long", []),
        ("texts", "return text", "return text + ''", ["texts.again"]),
        ("texts", "unused(): ...", "unused(): return 1", []),
        ("texts", "def ask(text):", "def ask(text):  # It asks.\n", []),
        ("tools", "look(): return 1", "look(): return 2", ["tools.look"]),
        ("tools", "act(self, *given): ...", "act(self, *given): return 1", ["tools.Base"]),
        ("tools", 'rule = "one"', 'rule = "o" + "ne"', ["tools.Agent"]),
        ("tools", 'KEY = "a"', 'KEY = "b"', ["tools.KEY"]),
        ("tools", "Agent(KEY)", "Agent(KEY + KEY)", ["agent (2)"]),
        ("tools", "hint=True", "hint=False", ["settings.hint"]),
        ("tools", "workers=3", "workers=4", []),
        ("tools", 'name="a"', 'name="b"', ["client (2)"]),
        ("tools", 'compile("a")', 'compile("b")', ["pattern"]),
    ],
)
def test_what_is_named_counts_and_what_is_not_does_not(
    project: Project, file: str, old: str, new: str, named: list[str]
) -> None:
    assert old in FILES[file]
    changed = project.changed(FILES, **{file: FILES[file].replace(old, new)})
    assert [name.removeprefix(f"{project.mark}_") for name in changed] == named


@pytest.mark.parametrize(
    "text",
    [
        "from §helper import PROMPT\nasync def solve(t): t.add(PROMPT)\n",
        "import §helper\nasync def solve(t): t.add(§helper.PROMPT)\n",
        "async def solve(t):\n    import §helper as h\n    t.add(h.PROMPT)\n",
        "async def solve(t):\n    from §helper import PROMPT as p\n    t.add(p)\n",
        "from §between import ask\nasync def solve(t): ask(t)\n",
        "from §package import deep\nasync def solve(t): deep.ask(t)\n",
        "import §package.deep\nasync def solve(t): §package.deep.ask(t)\n",
        "async def solve(t):\n    import §package.deep\n    §package.deep.ask(t)\n",
        "async def solve(t):\n    from §package.deep import ask\n    ask(t)\n",
        "from §package.deep import Asks\nasync def solve(t): Asks()\n",
        "from §package.deep import Asks\nclass Own(Asks): ...\nsolve = Own()\n",
        "from §package.deep import decorate\n@decorate\nasync def solve(t): ...\n",
        "from §package.deep import make\nsolve = make()\n",
        "from §package.deep import Asks\nsolve = Asks().ask\n",
        "from §package.deep import ask\nasync def solve(t): [ask for _ in t]\n",
        "from §package.deep import TABLE\nasync def solve(t): TABLE['a'](t)\n",
    ],
)
def test_every_way_to_name_something_is_followed(project: Project, text: str) -> None:
    files = {
        "helper": "PROMPT = 'be brief'\n",
        "package__in____init__": "",
        "package__in__deep": "from ._inner import PROMPT\nimport functools\n"
        "def ask(t): return PROMPT\n"
        "class Asks:\n    def ask(self, t): return PROMPT\n    __call__ = ask\n"
        "def decorate(f):\n    @functools.wraps(f)\n    async def inner(t): return PROMPT\n"
        "    return inner\n"
        "def make():\n    async def solve(t): return PROMPT\n    return solve\n"
        "TABLE = {'a': ask}\n",
        "package__in___inner": "from §helper import PROMPT\n",
        "between": "import json\ndef ask(t):\n    from §helper import PROMPT\n    return PROMPT\n",
        "agent": text,
    }
    changed = project.changed(files, helper="PROMPT = 'be verbose'\n")
    assert len(changed) == 1
    assert "PROMPT" in changed[0] or changed[0].endswith(".p")


def test_modules_that_name_each_other_are_read_once(project: Project) -> None:
    files = {
        "agent": "import §other\nasync def solve(t): §other.ask(t)\ndef back(t): return solve(t)\n",
        "other": "import §agent\nLIMIT = 1\ndef ask(t): return §agent.back(LIMIT)\n",
    }
    assert project.changed(files, other=files["other"].replace("= 1", "= 2")) == [
        f"{project.mark}_other.LIMIT"
    ]


def test_a_long_chain_of_functions_is_followed_to_its_end(project: Project) -> None:
    chain = "".join(f"def step{n}(t): return step{n + 1}(t)\n" for n in range(2_000))
    text = f"async def solve(t): step0(t)\n{chain}def step2000(t): return 1\n"
    files = {"agent": text}
    assert project.changed(files, agent=text.replace("return 1\n", "return 2\n")) == ["step2000"]


def test_the_name_of_its_module_is_no_part_of_it(project: Project) -> None:
    text = "import logging\nlog = logging.getLogger(__name__)\ndef solve(t): log.info(t)\n"
    here, there = (project.load(agent=text, other=text)[name] for name in ("agent", "other"))
    assert fingerprint_of(here.solve) == fingerprint_of(there.solve)


def test_a_local_variable_is_not_the_modules_of_its_name(project: Project) -> None:
    text = "hint = {0}\nasync def solve(hint, *rest):\n    return [hint for _ in rest]\n"
    assert not project.changed({"agent": text.format(1)}, agent=text.format(2))


def test_a_variable_that_the_code_only_sets_does_not_count(project: Project) -> None:
    text = (
        "import types\nstate = types.SimpleNamespace(calls={0})\ncount = {0}\n"
        "async def solve(t):\n    global count\n    count = 1\n    state.calls = 1\n"
    )
    assert not project.changed({"agent": text.format(1)}, agent=text.format(2))


# --- arguments


async def called_with(t, prompt: object = None, **more: object) -> None: ...


def closing(held: object) -> Callable[..., object]:
    async def solve(t):
        return held

    return solve


def defaulting(held: object) -> Callable[..., object]:
    async def solve(t, weight=held): ...

    return solve


def with_keyword(held: object) -> Callable[..., object]:
    async def solve(t, *, weight=held): ...

    return solve


def wrapping(held: object) -> Callable[..., object]:
    @functools.wraps(called_with)
    async def solve(t):
        return held

    return solve


def in_a_class(held: object) -> object:
    class Solve:
        async def __call__(self, t):
            return held

    return Solve()


class Called:
    def __init__(self, held: object):
        self.held = held

    def __call__(self, t): ...

    def score(self, t): ...


class Inherited(Called): ...


class Processor(RolloutProcessor):
    def __init__(self, held: object):
        self.held = held


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (closing, "closing.<locals>.solve.held"),
        (lambda held: closing(closing(held)), "closing.<locals>.solve.held (2)"),
        (defaulting, "defaulting.<locals>.solve.weight"),
        (with_keyword, "with_keyword.<locals>.solve.weight"),
        (wrapping, "called_with.held"),
        (in_a_class, "in_a_class.<locals>.Solve.held"),
        (lambda held: functools.lru_cache(closing(held)), "closing.<locals>.solve.held"),
        (lambda held: functools.partial(called_with, prompt=held), "called_with.prompt"),
        (lambda held: functools.partial(called_with, held), "called_with.argument 1"),
        (lambda held: functools.partial(closing(held)), "closing.<locals>.solve.held"),
        (Called, "held"),
        (Inherited, "held"),
        (lambda held: Called(held).score, "held"),
        (Processor, "held"),
    ],
)
def test_an_argument_counts_by_its_value_and_its_change_is_named(make, name: str) -> None:
    first, again, other = (fingerprinted(make(held)) for held in ("a", "a", "b"))
    assert first == again
    assert first[0] != other[0]
    assert [each for each, _ in first[1].parts.items() - other[1].parts.items()] == [name]


def test_anything_else_counts_by_its_type() -> None:
    assert fingerprint_of(closing(threading.Lock())) == fingerprint_of(closing(threading.Lock()))
    assert fingerprint_of(closing(threading.Lock())) != fingerprint_of(closing(threading.Event()))
    assert fingerprint_of(closing(Called(1))) == fingerprint_of(closing(Called(2)))
    assert fingerprint_of(closing(Called(1))) != fingerprint_of(closing(Inherited(1)))
    assert fingerprint_of(closing(len)) != fingerprint_of(closing(sum))


class Named:
    def __init__(self, identity: str, held: object = None):
        self.identity = identity
        self.held = held

    def __call__(self, t): ...


def test_an_identity_says_more_of_an_object_and_stands_for_what_it_holds() -> None:
    assert fingerprint_of(Named("a")) != fingerprint_of(Named("b"))
    assert fingerprint_of(Named("a", 1)) == fingerprint_of(Named("a", 2))
    assert fingerprint_of(closing(Named("a"))) != fingerprint_of(closing(Named("b")))
    assert fingerprint_of(closing(Called(Named("a")))) != fingerprint_of(
        closing(Called(Named("b")))
    )


def test_which_method_it_is_counts() -> None:
    assert fingerprint_of(Called(1).score) != fingerprint_of(Called(1).__call__)
    assert fingerprint_of(Called(1).score) != fingerprint_of(Inherited(1).score)


# --- judges


def judge(
    rubric: str, port: int = 1, *, kind: type[Judge] = Judge, key: str | None = None
) -> Judge:
    return kind(rubric, policy=f"http://127.0.0.1:{port}", api_key=key)


class Strict(Judge): ...


@pytest.mark.parametrize(
    "make",
    [
        lambda held: held,
        closing,
        lambda held: closing(Called(held)),
        lambda held: closing(Called([held])),
        lambda held: closing(Called({"strict": (held,)})),
        lambda held: closing(Called([Called(held)])),
        lambda held: closing(Called(closing(held))),
        lambda held: closing(Called(functools.partial(first_tool, held))),
    ],
)
def test_a_judge_is_its_identity(make) -> None:
    assert fingerprint_of(make(judge("Right?"))) == fingerprint_of(make(judge("Right?", 2)))
    assert fingerprint_of(make(judge("Right?"))) != fingerprint_of(make(judge("Wrong?")))
    strict = judge("Right?", kind=Strict, key="a")
    assert fingerprint_of(make(strict)) != fingerprint_of(make(judge("Right?")))
    assert fingerprint_of(make(strict)) == fingerprint_of(
        make(judge("Right?", kind=Strict, key="b"))
    )
    assert identified_in(make(strict)) == [strict]


# --- tools


def first_tool(a: int) -> int:
    """A tool."""
    return a


def other(a: int) -> int:
    """A tool."""
    return a


def asking_with(tools: object) -> object:
    async def solve(t):
        await t.generate(tools=tools)

    return solve


@pytest.mark.parametrize(
    "make", [asking_with, lambda tools: AgentRolloutProcessor(tools=tools)], ids=["asks", "agent"]
)
def test_a_tool_is_its_function_and_its_contract(make) -> None:
    first = fingerprint_of(make([tool(first_tool)]))
    assert first == fingerprint_of(make([tool(first_tool)]))
    others = [
        [tool(other)],
        [tool(contract="idempotent")(first_tool)],
        [tool(first_tool), tool(other)],
    ]
    assert first not in [fingerprint_of(make(tools)) for tools in others]
    assert fingerprint_of(make([first_tool])) != fingerprint_of(make([other]))


def test_what_ends_an_agent_is_part_of_it() -> None:
    first, second = (
        AgentRolloutProcessor(tools=[first_tool], finish=f) for f in (first_tool, other)
    )
    assert fingerprint_of(first) != fingerprint_of(second)


def test_a_librarys_decorator_hides_no_function_of_the_users() -> None:
    import contextlib

    def made(text: str) -> object:
        @contextlib.contextmanager
        def solve(t):
            yield text

        return solve

    assert fingerprint_of(made("a")) != fingerprint_of(made("b"))
