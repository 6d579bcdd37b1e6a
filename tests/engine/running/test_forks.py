"""Forks share everything before their turn, token by token, and sample only what comes after it."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.export.export import What, rows
from holdfast.engine.running.result import RunResult
from holdfast.journal import opened_journal
from holdfast.journal.damage.check import check
from holdfast.journal.sql.journal import Journal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import EngineUnavailable, UsageError
from holdfast.records.history import History, stream_of
from holdfast.records.step import Generated, ToolIntent
from holdfast.records.view import TrajectoryView
from support.exhaustive import points
from support.rollout import worlds
from support.rollout.renderers import BeginsEmpty
from support.rollout.stage import Oracle, text_of
from support.rollout.worlds import Counter, Fickle

CALL = '<tool_call>{{"name": "look_up", "arguments": {{"word": "w{}"}}}}</tool_call>'
TASKS = [{"id": "t", "prompt": "begin", "ground_truth": 1}]


@holdfast.tool(contract="idempotent")
def look_up(word: str) -> str:
    """Finds a word."""
    worlds.CALLS.append(word)
    return f"{word} is known"


async def solve(t: holdfast.Rollout) -> None:
    """Turns with tools that the model calls, and what else a rollout does."""
    t.add(*t.task.messages)
    for turn in range(3):
        reply = await t.generate(tools=[look_up])
        await t.tools(reply.tool_calls, look_up)
        await t.value(lambda: random.random(), name="chance")
        if turn == 1:
            await t.branch(_aside("left"), _aside("right"))
    t.messages = [*t.messages[:2], *t.messages[-1:]]  # Rewritten: the prompt begins anew.
    t.add("end")
    await t.generate(tools=[look_up])


def _aside(name: str) -> Any:
    async def aside(t: holdfast.Rollout) -> None:
        t.add(f"aside {name}")
        reply = await t.generate(tools=[look_up])
        await t.tools(reply.tool_calls, look_up)

    return aside


def score(trajectory: TrajectoryView) -> float:
    return float(len(trajectory.reply))


class Numbered(Oracle):
    """Every reply is another one, and calls a tool now and then."""

    def __init__(self, seed: int = 0):
        numbers, chance = itertools.count(), random.Random(seed)

        def answer(request: object) -> str:
            number = next(numbers)
            return f"reply {number} " + "".join(
                CALL.format(f"{number}{each}") for each in range(chance.randrange(3))
            )

        super().__init__(answer)


class User:
    """A user with one journal, who runs once and forks as often as a test likes."""

    def __init__(self, folder: Path, rollout: object = solve, policy: Oracle | None = None):
        self.journal = folder / "runs.db"
        self.policy = policy or Numbered()
        self.rollout = rollout
        self.renderer: Any = ByteRenderer()

    def run(self, **options: Any) -> RunResult:
        worlds.CALLS.clear()  # A part of the code that a run compares.
        return holdfast.run_sync(
            self.rollout, tasks=TASKS, policy=self.policy, renderer=self.renderer,
            journal=self.journal, name="first", seed=3, scorer=score, **options,
        )  # fmt: skip

    def fork(self, at: str, *, run: str = "first", **options: Any) -> RunResult:
        options = {"settings": {"backoff": 0.0}, "trajectory": "t/0", "scorer": score} | options
        worlds.CALLS.clear()
        return asyncio.run(
            holdfast.fork(
                self.rollout, run=run, at=at, policy=self.policy, renderer=self.renderer,
                journal=self.journal, **options,
            )
        )  # fmt: skip

    def histories(self, run: str = "first") -> list[History]:
        return self._read(lambda journal: _views(journal, run))

    def history(self, run: str = "first") -> History:
        return self.histories(run)[0]

    def samples(self, run: str, **options: Any) -> list[Any]:
        return self._read(lambda journal: _rows(journal, run, **options))

    def turns(self) -> list[Generated]:
        return self.history().generations

    def records(self, run: str = "first") -> list[tuple[object, ...]]:
        return self._read(lambda journal: _records(journal, run))

    def _read(self, read: Any) -> Any:
        async def reading() -> Any:
            async with opened_journal(self.journal, read_only=True) as journal:
                return await read(journal)

        return asyncio.run(reading())


async def _views(journal: Journal, run: str) -> list[History]:
    return [view.history async for view in holdfast.trajectories(journal, run)]


async def _rows(journal: Journal, run: str, **options: Any) -> list[Any]:
    stored = await journal.find_run(run)
    assert stored is not None
    return [row async for row in rows(journal, stored, What.SAMPLES, **options)]


async def _records(journal: Journal, run: str) -> list[tuple[object, ...]]:
    stored = await journal.find_run(run)
    assert stored is not None
    listed = await journal.trajectories(stored)
    return [(row, *await journal.history(row.id)) for row in listed]


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.parametrize("seed", range(points(3, 30)))
def test_the_prompt_of_every_fork_begins_with_the_recorded_tokens(user: User, seed: int) -> None:
    """At every turn of a random trajectory, without an edit and with each."""
    user.policy = Numbered(seed)
    user.run()
    original, before = user.history(), user.records()
    edits: list[dict[str, str]] = [{}, {"say": "Check."}, {"edit": "Other."}]
    for number, (step, edit) in enumerate(itertools.product(original.generations, edits)):
        if "edit" in edit and not step.added:
            continue
        user.policy.requests.clear()
        fork = f"fork{number}"
        result = user.fork(step.path, name=fork, **edit)
        assert result.report.permanent_failures == 0, result.report
        (history,) = user.histories(fork)
        for path in history.shared:
            assert history.steps[path] == original.steps[path]
            assert history.results.get(path) == original.results.get(path) or edit
        shared = [original.steps[path] for path in history.shared]
        assert step.path not in history.shared
        assert {step.base} - {""} <= history.shared
        new = history.steps[step.path]
        assert isinstance(new, Generated)
        stream = stream_of(original, step.base) if step.base else []
        first = next(r for r in user.policy.requests if r.id == f"{fork}/t/0/{step.path}")
        assert list(first.prompt[: step.keep]) == list(stream[: step.keep])
        assert step.keep == len(stream) or step.prefix_break
        whole = [*stream[: step.keep], *memoryview(step.delta).cast("i")]
        assert (list(first.prompt) == whole) == (not edit)
        if edit:
            assert (edit.get("say") or edit["edit"]) in text_of(first.prompt)
        sampled = {request.id for request in user.policy.requests}
        assert not {f"{fork}/t/0/{each.path}" for each in shared} & sampled
        shared_calls = sum(isinstance(each, ToolIntent) for each in shared)
        made = sum(isinstance(each, ToolIntent) for each in history.steps.values())
        assert len(worlds.CALLS) == made - shared_calls
    assert user.records() == before, "the original is only read"
    assert not check(user.journal).findings


def test_forks_of_one_turn_are_a_group_and_differ_from_the_original(user: User) -> None:
    user.run()
    result = user.fork(user.turns()[-1].path, samples=4)
    report = result.report
    assert (report.run, report.trajectories, report.groups_kept) == ("first-fork", 4, 1)
    replies = [history.generations[-1].message.text for history in user.histories("first-fork")]
    assert len({*replies, user.history().generations[-1].message.text}) == 5
    assert user.samples("first-fork")[0]["group"] == "t"


def test_a_shared_token_is_masked_or_trained_once_as_the_export_is_told(user: User) -> None:
    user.run()
    last = user.turns()[-1]
    user.fork(last.path, samples=3)
    shared = user.history("first-fork").shared
    steps = [user.history().steps[path] for path in shared]
    sampled = sum(len(step.ids) // 4 for step in steps if isinstance(step, Generated))
    own = sum(len(history.generations[-1].ids) // 4 for history in user.histories("first-fork"))

    def trained(samples: list[Any]) -> int:
        return sum(sum(sample["loss_mask"]) for sample in samples)

    assert sampled > 0
    assert trained(user.samples("first-fork")) == own
    assert trained(user.samples("first-fork", trains_shared=True)) == own + sampled
    again = user.samples("first-fork", trains_shared=True)
    assert all(sum(each["loss_mask"]) < sampled for each in again if each["sample"])


def test_the_answer_of_a_tool_is_edited_for_the_rollout_and_the_model(user: User) -> None:
    seen: list[str] = []

    async def asking(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        await t.generate()
        answer = await t.tool(look_up.call(word="kelp"), look_up)
        seen.append(answer.content)
        t.add(f"so: {answer.content}")
        await t.generate()

    user.rollout = asking
    user.run()
    user.fork("1", edit="kelp is unknown", name="edited")
    assert seen == ["kelp is known", "kelp is unknown"]
    assert worlds.CALLS == []
    assert "so: kelp is unknown" in text_of(user.policy.requests[-1].prompt)


def test_each_of_several_answers_can_be_edited(user: User) -> None:
    async def asking(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        reply = await t.generate(tools=[look_up])
        await t.tools(reply.tool_calls, look_up)
        await t.generate(tools=[look_up])

    replies = iter(["".join(map(CALL.format, "abc")), *("end" for _ in range(9))])
    user.rollout, user.policy = asking, Oracle(lambda request: next(replies))
    user.run()
    user.fork("2", edit="nothing")
    results = user.history("first-fork").results
    answers = [results[path].content for path in sorted(results)]
    assert answers == ["wa is known", "nothing", "wc is known"]
    assert text_of(user.policy.requests[-1].prompt).count("is known") == 2
    assert worlds.CALLS == []


def test_a_fork_of_a_fork_keeps_the_edits_of_both(user: User) -> None:
    user.run()
    first = user.turns()[0].path

    def prompt(run: str) -> str:
        requests = user.policy.requests
        return text_of(next(each.prompt for each in requests if each.id == f"{run}/t/0/{first}"))

    user.fork(first, say="One.", name="one")
    user.fork(first, run="one", say="Two.", name="two")
    texts = [prompt("two").index(text) for text in ("begin", "One.", "Two.")]
    assert texts == sorted(texts)
    user.fork(first, run="two", edit="Three.", name="three")
    assert "One." in prompt("three")
    assert "Three." in prompt("three")
    assert "Two." not in prompt("three")
    later = user.history("two").generations[1].path
    user.fork(later, run="two", name="four")
    [after] = [each for each in user.policy.requests if each.id == f"four/t/0/{later}"]
    assert "Two." in text_of(after.prompt)
    assert user.history("four").status.name == "COMPLETED"


@pytest.mark.parametrize("recovery", ["replay", "snapshot", "stateless"])
def test_an_environment_comes_back_to_the_turn(user: User, recovery: str) -> None:
    user.rollout, user.policy = _playing(lambda: Counter(recovery)), Oracle(lambda request: "3")
    user.run()
    at = [step.observation for step in user.history().environment_steps]
    turn = user.turns()[2]
    user.policy.answer = lambda request: "5"
    result = user.fork(turn.path)
    assert result.report.permanent_failures == 0
    history = user.history("first-fork")
    seen = [step.observation for step in history.environment_steps]
    assert seen[:2] == at[:2]
    if recovery != "stateless":
        assert int(seen[2].split()[1]) == int(at[1].split()[1]) + 5
    assert [step.action for step in history.environment_steps] == ["3", "3", "5", "5"]
    ways_back = {
        "replay": ["reset", "step 3", "step 3"],
        "snapshot": [f"restore {at[1].split()[1]}"],
        "stateless": ["reset"],
    }
    back = ways_back[recovery]
    assert worlds.CALLS[: len(back)] == back
    assert worlds.CALLS.count("step 5") == 2


def test_an_environment_that_cannot_come_back_refuses_the_fork(user: User) -> None:
    user.rollout, user.policy = _playing(lambda: Counter("restart")), Oracle(lambda request: "3")
    user.run()
    user.policy.requests.clear()
    result = user.fork(user.turns()[1].path)
    assert result.report.permanent_failures == 1
    assert "Counter cannot come back (restart)" in result.report.causes[0].message
    assert user.policy.requests == []
    again = user.fork(user.turns()[1].path, run="first", name="again")
    assert again.report.permanent_failures == 1


def test_an_environment_that_comes_back_different_refuses_the_fork(user: User) -> None:
    user.rollout, user.policy = _playing(Fickle), Oracle(lambda request: "3")
    user.run()
    user.policy.requests.clear()
    result = user.fork(user.turns()[1].path)
    assert result.report.permanent_failures == 1
    assert "came back different" in result.report.causes[0].message
    assert user.policy.requests == []


def _playing(make: Any) -> Any:
    async def play(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        episode = await t.env(make())
        t.add(episode.observation)
        for _ in range(4):
            reply = await t.generate()
            t.add(await episode.step(reply.text))

    return play


def test_a_failed_attempt_and_a_refill_go_on_from_the_fork(user: User) -> None:
    user.run()
    turn = user.turns()[1]
    fails = itertools.count()
    plain = user.policy.answer
    user.policy.requests.clear()
    user.policy.answer = lambda request: (
        EngineUnavailable("gone") if next(fails) < 3 else plain(request)
    )
    result = user.fork(turn.path, settings={"backoff": 0.0, "max_retry": 1})
    assert result.report.permanent_failures == 0
    history = user.history("first-fork")
    assert history.life == 1
    assert history.shared <= set(history.steps)
    assert not {f"first-fork/t/0/{path}" for path in history.shared} & {*user.policy.request_ids}


def test_changed_code_before_the_turn_fails_and_samples_nothing(user: User) -> None:
    user.run()
    last = user.turns()[-1]

    async def other(t: holdfast.Rollout) -> None:
        t.add("another system prompt", *t.task.messages)
        await t.generate(tools=[look_up])

    user.rollout = other
    user.policy.requests.clear()
    result = user.fork(last.path)
    assert result.report.permanent_failures == 1
    assert "a fork keeps everything before the step" in result.report.causes[0].message
    assert user.policy.requests == []


def test_a_rollout_that_ends_before_the_edited_turn_fails(user: User) -> None:
    async def long(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        for _ in range(1 if t.key.run == "short" else 2):
            await t.generate()

    user.rollout = long
    user.run()
    result = user.fork("1", say="more", name="short")
    assert result.report.permanent_failures == 1
    assert "ends before the turn that its fork edits" in result.report.causes[0].message


def test_a_fork_resumes_without_the_original_and_not_with_another(user: User) -> None:
    user.run()
    turn = user.turns()[1]
    done = user.fork(turn.path, name="kept", samples=2)
    requests = len(user.policy.requests)
    assert user.fork(turn.path, name="kept", samples=2).report.turns == done.report.turns
    assert len(user.policy.requests) == requests
    with pytest.raises(holdfast.RunChanged, match="fork"):
        user.fork(turn.path, name="kept", samples=2, say="other")
    with pytest.raises(holdfast.RunChanged, match="fork"):
        user.fork(turn.path, name="first")


class Strict(BeginsEmpty):
    """Rewrites earlier tokens when a second user message comes."""

    name = "strict"

    def bridge(self, prompt: Any, completion: Any, messages: Any, tools: Any) -> Any:
        if any(message.text == "Check." for message in messages):
            return None
        return super().bridge(prompt, completion, messages, tools)

    def render(self, messages: Any, tools: Any) -> Any:
        late = [1] if any(message.text == "Check." for message in messages) else []
        return [*late, *super().render(messages, tools)]


@pytest.mark.parametrize(
    ("at", "options", "line"),
    [
        ("99", {}, "first/t/0 has no step '99'; its turns are at 0"),
        ("0", {"say": "a", "edit": "b"}, "give one of them"),
        ("0", {"say": ""}, "is empty"),
        ("0", {"samples": 0}, "samples"),
        ("0", {"trajectory": "t/7"}, "has no trajectory 't/7'"),
        ("0", {"run": "none"}, "there is no run 'none'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    user: User, at: str, options: dict[str, Any], line: str
) -> None:
    user.run()
    before = user.journal.read_bytes()
    with pytest.raises(UsageError) as refused:
        user.fork(at, name="bad", **options)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert user.journal.read_bytes() == before


def test_a_step_inside_a_tool_call_a_value_and_an_edit_that_cannot_be_rendered(
    user: User,
) -> None:
    async def nested(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)

        @holdfast.tool(contract="idempotent")
        async def consult(word: str) -> str:
            """Asks in a conversation of its own."""

            async def aside(t: holdfast.Rollout) -> None:
                t.add(word)
                await t.generate()

            await t.sub(aside)
            return "asked"

        await t.generate()
        await t.tool(consult.call(word="kelp"), consult)
        await t.value(lambda: 1, name="one")
        await t.generate()

    user.rollout, user.renderer = nested, Strict()
    user.run()
    inside = next(path for path in user.history().steps if path.startswith("1."))
    for at, options, line in (
        (inside, {}, "is inside step 1 (tool consult"),
        ("2", {}, "is value 'one': edit what it gave"),
        ("2", {"edit": "x"}, "no turn of first/t/0 was given what step 2"),
        ("3", {"edit": "x"}, "step 3 of first/t/0 was given no new message to edit"),
        ("3", {"say": "Check."}, "the renderer 'strict' cannot express the edit of step 3"),
    ):
        with pytest.raises(UsageError) as refused:
            user.fork(at, name="bad", **options)
        assert line in str(refused.value)
    user.renderer = ByteRenderer()
    user.renderer.render = lambda messages, tools: [1, 2, 3]
    with pytest.raises(UsageError, match="makes other tokens of step 0"):
        user.fork("0", name="bad")
