"""What users are told of the public types: docstrings of their own, tables whose fields exist."""

import asyncio
import inspect
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.records.message import assistant, system, user
from holdfast.testing import FakeEngine

DOCS = Path(__file__).parent.parent / "docs"
CALL = '@0 <tool_call>{"name": "add", "arguments": {"a": 1, "b": 4}}</tool_call>'
TASK = {"id": "sum", "prompt": "What is 1 + 4?", "ground_truth": 5, "level": "easy"}
FIELD = re.compile(r"^(?:await )?([a-z_]\w*(?:\.\w+)*)")

Found = dict[str, object]
"""Objects of one rollout and of its scorer, under the words that the pages have for them."""


@holdfast.tool(contract="idempotent")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Seen:
    """A rollout and a scorer that keep what they are given."""

    def __init__(self) -> None:
        self.objects: Found = {}

    async def solve(self, t: holdfast.Rollout) -> None:
        t.add(system("You add."), *t.task.messages)
        reply = await t.generate(tools=[add])
        (call,) = reply.tool_calls
        result = await t.tool(call, add)
        await t.generate(tools=[add])
        self.objects |= {
            "a `Rollout`": t,
            "a `Task`": t.task,
            "a `Message`": t.messages[-1],
            "a `Reply`": reply,
            "a `ToolCall`": call,
            "a `ToolReply`, which `t.tool` returns,": result,
        }

    def score(self, trajectory: holdfast.TrajectoryView) -> float:
        self.objects |= {
            "a `TrajectoryView`": trajectory,
            "each of `turns`": trajectory.turns[0],
            "each of `tool_uses`": trajectory.tool_uses[0],
        }
        return 1.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def documented_objects(place: Path) -> Found:
    """After a real run, called `first`, in the journal `holdfast.db` of `place`."""
    seen = Seen()
    with FakeEngine(replies=[CALL, "@1 It is 5."]) as engine:
        asyncio.run(_run(seen, engine, place))
    return seen.objects


async def _run(seen: Seen, engine: FakeEngine, place: Path) -> None:
    policy = holdfast.EnginePolicy(engine.url, engine.model)
    journal = holdfast.open_journal(place / "holdfast.db")
    try:
        _, report = await holdfast.run(
            seen.solve,
            tasks=[TASK],
            policy=policy,
            journal=journal,
            name="first",
            scorer=seen.score,
        )
        assert report.by_status == {"COMPLETED": 1}, report.causes
    finally:
        await policy.aclose()
        await journal.close()


def documented() -> list[tuple[str, str]]:
    """Each member of each list that a line such as "A `Task` has:" begins: `(what, member)`."""
    rows: list[tuple[str, str]] = []
    for page in ("rollouts.md", "scorers.md"):
        owner = ""
        for line in (DOCS / page).read_text().splitlines():
            if head := re.match(r"(?:## What does )?(.+) (?:has:|have\?)$", line):
                owner = head[1][0].lower() + head[1][1:]
            elif line and not line.startswith("- "):
                owner = ""
            elif owner:
                members = re.findall(r"`([^`]+)`", line.split(": ")[0])
                rows += [(owner, match[1]) for each in members if (match := FIELD.match(each))]
    return rows


def exported_classes() -> list[str]:
    return [name for name in holdfast.__all__ if inspect.isclass(getattr(holdfast, name))]


@pytest.mark.parametrize("name", exported_classes())
def test_every_exported_class_says_itself_what_it_is(name: str) -> None:
    # What it inherits is about something else: msgspec's own Structs have pages of it.
    assert (vars(getattr(holdfast, name)).get("__doc__") or "").strip()


def test_each_list_is_about_something_that_the_rollout_met(documented_objects: Found) -> None:
    assert {owner for owner, _ in documented()} == set(documented_objects)


@pytest.mark.parametrize(("owner", "field"), documented())
def test_each_documented_field_exists(documented_objects: Found, owner: str, field: str) -> None:
    operator.attrgetter(field)(documented_objects[owner])


def test_each_parameter_of_generate_is_documented() -> None:
    page = (DOCS / "rollouts.md").read_text()
    lines = page.partition("These keywords of `t.generate`")[2].split("\n\n")[1].splitlines()
    named = [name for line in lines for name in re.findall(r"`(\w+)`", line.split(": ")[0])]
    assert set(named) == set(inspect.signature(holdfast.Rollout.generate).parameters) - {"self"}


def test_a_row_s_own_columns_are_in_the_task_s_metadata(documented_objects: Found) -> None:
    task = documented_objects["a `Task`"]
    assert isinstance(task, holdfast.Task)
    assert (task.metadata, task.ground_truth) == ({"level": "easy"}, 5)


def test_a_tool_call_has_its_arguments_as_the_model_wrote_them(documented_objects: Found) -> None:
    call = documented_objects["a `ToolCall`"]
    assert isinstance(call, holdfast.ToolCall)
    assert (call.name, call.arguments) == ("add", '{"a": 1, "b": 4}')


def test_the_helpers_make_messages_of_their_names() -> None:
    made = [make("words") for make in (system, user, assistant)]
    assert [item.role for item in made] == ["system", "user", "assistant"]
    assert {item.text for item in made} == {"words"}


def test_a_scorer_reads_token_ids_through_a_reply(documented_objects: Found) -> None:
    view, reply = documented_objects["a `TrajectoryView`"], documented_objects["a `Reply`"]
    assert isinstance(view, holdfast.TrajectoryView)
    assert isinstance(reply, holdfast.Reply)
    read = [holdfast.Reply(turn.step) for turn in view.turns]
    assert (read[0].ids, read[0].logprobs) == (reply.ids, reply.logprobs)
    assert len(reply.ids) > 0
    assert [token.text for token in view.turns[1].prompt] == ["5"], "only what came in since"


def test_the_documented_way_to_read_a_run_reads_it(documented_objects: Found, place: Path) -> None:
    page = (DOCS / "training-data.md").read_text()
    code = re.search(r"```python\n(# read.py\n.*?)```", page, re.DOTALL)
    assert code is not None
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code[1]],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    sample, view = done.stdout.splitlines()
    assert sample.startswith("sum 0 1.0 ")
    assert view == "first/sum/0 COMPLETED 1.0 2 It is 5."
