"""`holdfast.run`: plain values are enough, and a mistake is named before anything is done."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.embedded.model.files import TINY
from holdfast.engine.arguments import series_from
from holdfast.engine.open_run import RunChanged
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import EndpointDown
from holdfast.testing import FakeEngine
from support.journal import postgres_server
from support.rollout.stage import Oracle

TASKS = [{"id": "a", "prompt": "do a"}]


class Unasked(Oracle):
    """An endpoint that nobody may speak to before all is well."""

    async def check(self) -> None:
        raise AssertionError("it was asked")


async def solve(t: holdfast.Rollout) -> None: ...


def refused(**changes: object) -> str:
    journal = MemoryJournal()
    usual = {"tasks": TASKS, "policy": Unasked(), "journal": journal, "name": "r"}
    arguments = {**usual, "renderer": ByteRenderer(), **changes}

    async def begin() -> None:
        try:
            await holdfast.run(solve, **arguments)  # type: ignore[arg-type]
        finally:
            assert await journal.runs() == []

    with pytest.raises(holdfast.UsageError) as caught:
        asyncio.run(begin())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": "1"}, "seed must be a whole number, not '1'"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"seed": True}, "seed must be a whole number, not True"),
        ({"seed": 10**30}, "seed must fit in 64 bits"),
        ({"samples": "4"}, "samples must be a whole number, not '4'"),
        ({"samples": 10**9}, "a task has at most 1,000,000 samples, not 1,000,000,000; lower"),
        (
            {"samples": 10**6, "tasks": [{"prompt": str(n)} for n in range(11)]},
            "are 11,000,000 trajectories, and a run has at most 10,000,000",
        ),
        ({"samples": 2, "group": holdfast.GroupPolicy(at_least=3)}, "at least 3 valid members"),
        ({"name": "a\nb"}, "a run's name has no control characters or line breaks"),
        ({"name": ""}, "a run's name has 1 to 200 characters"),
        ({"journal": 3}, "journal is of type int, and no journal; give the path of a file, or"),
        ({"journal": None}, "journal is of type NoneType, and no journal"),
        ({"journal": ""}, "a journal is the path of a file, or memory:, not ''"),
        ({"journal": Path("/")}, "journal / is a folder; name a file"),
        ({"policy": 3}, "policy is of type int, and no policy; give the engine's address"),
        ({"policy": []}, "policy is of type list, and no policy"),
        ({"policy": {"url": "x"}}, "policy is of type dict, and no policy"),
        ({"policy": [3]}, "policy: an address is a text, not 3"),
        ({"policy": "/"}, "policy / is a folder; for the embedded engine, give model='/'"),
        (
            {"policy": "127.0.0.1:8000"},
            "policy=) looks like http",
        ),
        ({"model": "tiny"}, "model and api_key go with an address: this policy has its own"),
        ({"model": 3, "policy": None}, "model is a name, or the path of a folder, not 3"),
        ({"new": True, "accept_changes": True}, "new starts another run, accept_changes goes on"),
        ({"tasks": "good.jsonl"}, "task file good.jsonl does not exist"),
        ({"tasks": []}, "tasks is empty; give one task or more"),
        ({"tasks": {"prompt": "a"}}, "tasks is one task, not a list of tasks; write tasks=[…]"),
        ({"tasks": [{"question": "a"}]}, "task 1: needs 'messages'"),
        ({"columns": {"prompt": "question"}}, "task 1 has no column 'question'; it has id, prompt"),
        ({"tasks": [{"prompt": "a", "ground_truth": 2**64}]}, "task 1: ground_truth is an integer"),
        ({"sampling": 3}, "sampling is a Sampling(…)"),
        ({"sampling": {"temprature": 1}}, "sampling has no 'temprature'; is 'temperature' meant?"),
        ({"sampling": {"max_tokens": "5"}}, "max_tokens is a whole number, not '5'"),
        ({"group": "drop"}, "group must be a GroupPolicy(…) or a dict of its fields"),
        ({"group": {"at_last": 1}}, "group has no 'at_last'; is 'at_least' meant?"),
        ({"settings": 3}, "settings must be a Settings(…) or a dict of its fields"),
        ({"settings": {"concurrency": 0}}, "concurrency must be 1 or more, not 0"),
        ({"settings": {"zzz": 2}}, "settings has no 'zzz'; it has concurrency, max_retry"),
        ({"settings": {"scoring": {"trys": 1}}}, "scoring has no 'trys'; is 'tries' meant?"),
        ({"renderer": "qwen3"}, "renderer must be a Renderer, not 'qwen3'"),
        ({"api_key": 3, "policy": None}, "api_key must be a text, not of type int"),
        ({"system": ["Be brief."]}, "system must be a text, not ['Be brief.']"),
        ({"retry_failed": "no"}, "retry_failed must be True or False, not 'no'"),
        ({"settngs": {}}, "run has no argument 'settngs'; is 'settings' meant?"),
        ({"scorer": "score"}, "scorer is a function of one argument, not 'score'"),
        ({"scorer": lambda a, b: 1.0}, "scorer <lambda>(a, b): missing a required argument: 'b'"),
    ],
)
def test_a_mistake_is_named_before_anything_is_asked_or_recorded(changes, why):
    assert why in refused(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"concurrency": "4"}, "concurrency must be a whole number, not '4'"),
        ({"concurrency": 0}, "concurrency must be 1 or more, not 0"),
        ({"max_retry": 1.5}, "max_retry must be a whole number, not 1.5"),
        ({"max_retry": -1}, "max_retry must be 0 or more, not -1"),
        ({"partial_tokens": None}, "partial_tokens must be a whole number, not None"),
        ({"lease_seconds": "30"}, "lease_seconds must be a number, not '30'"),
        ({"lease_seconds": float("nan")}, "lease_seconds must be longer than 0 seconds, not nan"),
        ({"attempt_deadline": 0}, "attempt_deadline must be longer than 0 seconds, not 0"),
        ({"run_deadline": -5}, "run_deadline must be longer than 0 seconds, not -5"),
        ({"grace": -1}, "grace must be 0 seconds or more, not -1"),
        ({"backoff": "1"}, "backoff must be a number, not '1'"),
        ({"scoring": 3}, r"scoring must be a ScoringPolicy\(…\) or a dict of its fields, not 3"),
    ],
)
def test_settings_of_other_types_are_refused(changes, why):
    with pytest.raises(holdfast.UsageError, match=f"^{why}"):
        holdfast.Settings(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tries": "2"}, "a scorer's tries must be a whole number, not '2'"),
        ({"concurrency": 0}, "a scorer's concurrency must be 1 or more, not 0"),
        ({"timeout": None}, "a scorer's timeout must be a number, not None"),
    ],
)
def test_a_scoring_policy_of_other_types_is_refused(changes, why):
    with pytest.raises(holdfast.UsageError, match=f"^{why}"):
        holdfast.ScoringPolicy(**changes)


# --- from Python in one line


async def one_turn(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()


def score(trajectory: holdfast.TrajectoryView) -> dict[str, object]:
    right = trajectory.task.ground_truth == 2
    return {"score": right, "metrics": {"letters": len(trajectory.reply)}}


@pytest.fixture
def plain(served, tmp_path: Path) -> dict[str, object]:
    """The arguments, all of them plain values."""
    (tmp_path / "sums.jsonl").write_text(
        '{"id": "a", "prompt": "1 + 1?", "ground_truth": 2, "level": 1}\n'
        '{"id": "b", "prompt": "1 + 2?", "ground_truth": 3}\n'
    )
    return {
        "tasks": tmp_path / "sums.jsonl",
        "journal": str(tmp_path / "runs.db"),
        "policy": served.url,
        "scorer": score,
        "samples": 2,
        "sampling": {"max_tokens": 5, "stop": "x"},
        "settings": {"concurrency": 2, "scoring": {"tries": 1}},
        "group": {"at_least": 2},
        "seed": 1,
    }


def check_result(result: holdfast.RunResult, *, name: str = "one_turn-sums-1") -> None:
    ending, report = result
    assert (ending, report) == (result.ending, result.report)
    assert (result.name, result.stopped, report.trajectories) == (name, "", 4)
    assert result.rewards == [1.0, 1.0, 0.0, 0.0]
    assert [str(view.key) for view in result.trajectories] == [
        f"{name}/{key}" for key in ("a/0", "a/1", "b/0", "b/1")
    ]
    assert [sample.reward for sample in result.samples] == result.rewards
    assert result.table[0]["metadata"] == {"level": 1}
    assert result.table[0]["metrics.letters"] == len(result.trajectories[0].reply)
    assert f"run {name}: 4 trajectories" in repr(result)


def test_plain_values_are_enough_and_the_same_call_goes_on(plain, served):
    first = asyncio.run(holdfast.run(one_turn, **plain))
    check_result(first)
    check_result(asyncio.run(holdfast.run(one_turn, **plain)))
    names = [name for name, _ in served.requests() if "one_turn-sums-1/" in name]
    assert len(names) == 4, "what is finished is not sampled again"


def test_a_finished_run_is_no_result_of_another_model(plain):
    check_result(holdfast.run_sync(one_turn, **plain))
    named = {**plain, "name": "one_turn-sums-1"}
    with FakeEngine(model="other") as other:
        for changes in ({}, {"accept_changes": True}):
            with pytest.raises(RunChanged, match="model: recorded"):
                holdfast.run_sync(one_turn, **{**named, "policy": other.url, **changes})
        assert other.stats().requests == 0
        assert holdfast.run_sync(one_turn, **{**plain, "policy": other.url}).name != named["name"]


def test_a_finished_run_needs_no_engine(plain, served):
    check_result(holdfast.run_sync(one_turn, **plain))
    gone = {**plain, "policy": "http://127.0.0.1:9"}
    check_result(holdfast.run_sync(one_turn, **gone))
    for changes in ({"model": "other"}, {"retry_failed": True}, {"new": True}):
        with pytest.raises(holdfast.HoldfastError, match="does not answer"):
            holdfast.run_sync(one_turn, **{**gone, **changes})


GONE = """
import asyncio
import holdfast

async def solve(t): ...

async def use_policy():
    async with holdfast.open_policy("http://127.0.0.1:9"):
        ...

call = dict(tasks=["Hi"], policy="http://127.0.0.1:9", journal="memory:")
{how}
"""


@pytest.mark.parametrize(
    "how",
    [
        "holdfast.run_sync(solve, **call)",
        "asyncio.run(holdfast.run(solve, **call))",
        "asyncio.run(use_policy())",
    ],
)
def test_an_engine_that_is_not_there_is_one_error_without_our_frames(how):
    done = subprocess.run(
        [sys.executable, "-c", GONE.format(how=how)], capture_output=True, text=True, check=False
    )
    *frames, error = done.stderr.splitlines()
    assert error.startswith(
        "holdfast.records.errors.EndpointDown: the policy at http://127.0.0.1:9"
    )
    assert "direct cause" not in done.stderr
    ours = [frame for frame in frames if "/src/holdfast/" in frame]
    assert len(ours) <= 2, done.stderr


def test_an_error_that_the_user_s_own_code_caused_keeps_its_traceback():
    class Broken(holdfast.SingleTurnRolloutProcessor):
        async def setup(self) -> None:
            raise EndpointDown("the other engine is down") from KeyError("its address")

    call = {"tasks": ["Hi"], "journal": "memory:"}
    with FakeEngine() as engine, pytest.raises(EndpointDown) as caught:
        holdfast.run_sync(Broken(), policy=engine.url, **call)
    assert isinstance(caught.value.__cause__, KeyError)
    assert any(entry.name == "setup" for entry in caught.traceback)


def half(trajectory: holdfast.TrajectoryView) -> float:
    return 0.5


def test_a_run_that_is_only_to_be_scored_needs_no_engine(plain, served):
    holdfast.run_sync(one_turn, **plain)
    gone = {**plain, "policy": "http://127.0.0.1:9", "scorer": half}
    result = holdfast.run_sync(one_turn, **gone, accept_changes=True)
    assert result.rewards == [0.5] * 4
    changes = ({"samples": 3}, {"retry_failed": True}, {"model": "other"}, {"seed": 2})
    for more in changes:
        call = {**gone, "scorer": score, **more}
        with pytest.raises(holdfast.HoldfastError, match="does not answer"):
            holdfast.run_sync(one_turn, **call, accept_changes=True)


def test_what_is_rolled_out_is_scored_later_without_an_engine(plain):
    def stops(trajectory: holdfast.TrajectoryView) -> float:
        raise EndpointDown("the judge is down")

    call = {**plain, "samples": 1, "group": None, "settings": {"concurrency": 1}}
    call["tasks"] = [{"id": "a", "prompt": "1 + 1?", "ground_truth": 2}]
    with pytest.raises(EndpointDown, match="the judge is down"):
        holdfast.run_sync(one_turn, **{**call, "scorer": stops}, name="r")
    gone = {**call, "policy": "http://127.0.0.1:9", "scorer": half}
    assert holdfast.run_sync(one_turn, **gone, name="r", accept_changes=True).rewards == [0.5]


@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        (one_turn(None), "one_turn is not a rollout: .* called already: give one_turn itself"),
        (lambda t: None, "<lambda> is not a rollout: .*write `async def`"),
        ("agent.py:solve", "import it, and give the function"),
    ],
)
def test_what_is_no_rollout_says_what_is_meant(rollout, why):
    with pytest.raises(holdfast.UsageError, match=why):
        holdfast.run_sync(rollout, tasks=["a"])


def test_scores_that_are_not_valid_are_counted(plain):
    result = holdfast.run_sync(one_turn, **{**plain, "scorer": lambda trajectory: None})
    assert result.rewards == [None] * 4
    assert "4 trajectories without a valid score: in no mean" in repr(result)


def test_what_failed_for_good_is_tried_again(plain):
    fixed = threading.Event()

    def flaky(trajectory: holdfast.TrajectoryView) -> float:
        if not fixed.is_set():
            raise ValueError("no key")
        return 1.0

    call = {**plain, "scorer": flaky}
    assert holdfast.run_sync(one_turn, **call).report.permanent_failures == 4
    fixed.set()
    assert holdfast.run_sync(one_turn, **call).report.permanent_failures == 4
    assert holdfast.run_sync(one_turn, **call, retry_failed=True).rewards == [1.0] * 4


@contextmanager
def held(policy: holdfast.EnginePolicy) -> Iterator[None]:
    """Calls of this loop wait for it."""
    hold = policy.holds.hold()
    try:
        yield
    finally:
        hold.end()


async def test_without_async_also_inside_a_running_loop(plain, served):
    check_result(holdfast.run_sync(one_turn, **plain))
    check_result(holdfast.run_sync(one_turn, **plain))
    other = holdfast.run_sync(one_turn, **plain, new=True)
    check_result(other, name="one_turn-sums-2")
    third = await holdfast.run(one_turn, **plain, name="third")
    check_result(await third.load(), name="third")
    async with holdfast.EnginePolicy(served.url, "fake") as policy:
        own = {**plain, "policy": policy}
        check_result(await holdfast.run(one_turn, **own, name="fourth"), name="fourth")
        with pytest.raises(holdfast.UsageError, match="one for each loop"), held(policy):
            holdfast.run_sync(one_turn, **own, name="fifth")
        check_result(holdfast.run_sync(one_turn, **own, name="fifth"), name="fifth")


async def test_an_error_in_a_loop_of_its_own_comes_out_as_it_is(plain):
    with pytest.raises(holdfast.UsageError, match="does not exist"):
        holdfast.run_sync(one_turn, **{**plain, "tasks": "nowhere.jsonl"})
    with pytest.raises(holdfast.UsageError, match="no argument 'task'; is 'tasks' meant"):
        holdfast.run_sync(one_turn, **plain, task=[])
    with pytest.raises(holdfast.UsageError, match="missing a required argument: 'tasks'"):
        holdfast.run_sync(one_turn)


async def test_what_is_open_stays_open_and_blocks_close_what_they_opened(plain):
    async with (
        holdfast.open_journal(plain.pop("journal")) as journal,
        holdfast.open_policy(plain.pop("policy")) as policy,
    ):
        for name in ("first", "second"):
            result = await holdfast.run(
                one_turn, **plain, journal=journal, policy=policy, name=name
            )
            check_result(result, name=name)
        assert [row.name for row in await journal.runs()] == ["first", "second"]
    check_result(result, name="second")
    with pytest.raises(holdfast.HoldfastError, match="closed"):
        await journal.put_blob(b"x")


def test_a_journal_that_keeps_nothing_is_kept_by_its_result(plain):
    check_result(holdfast.run_sync(one_turn, **{**plain, "journal": "memory:"}))


@pytest.mark.skipif(not postgres_server.is_available(), reason="PostgreSQL is not there")
def test_a_journal_on_a_server_by_its_url_or_open(plain):
    url = postgres_server.new_database()
    try:
        check_result(holdfast.run_sync(one_turn, **{**plain, "journal": url}))

        async def main() -> None:
            async with holdfast.open_journal(url) as journal:
                call = {**plain, "journal": journal, "name": "open"}
                check_result(await holdfast.run(one_turn, **call), name="open")

        asyncio.run(main())
    finally:
        postgres_server.drop_database(url)


def test_what_a_processor_sees_is_said_before_the_engine_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = holdfast.BlackBoxRolloutProcessor(["python3", "agnt.py"])
    call = {"tasks": TASKS, "policy": Unasked(), "journal": MemoryJournal(), "name": "r"}
    with pytest.raises(holdfast.UsageError, match=r"script 'agnt\.py' is not found"):
        holdfast.run_sync(agent, **call, renderer=ByteRenderer())


def test_no_engine_is_started_for_a_run_that_is_recorded_differently(monkeypatch):
    def started(*arguments: object, **options: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("holdfast.engine.open_policy.EmbeddedEngines", started)
    tiny = Oracle()
    tiny.model = TINY.name
    call = {"tasks": TASKS, "journal": MemoryJournal(), "name": "r"}
    holdfast.run_sync(one_turn, **call, policy=tiny, renderer=ByteRenderer())
    with pytest.raises(RunChanged, match="seed: recorded none, now 2"):
        holdfast.run_sync(one_turn, **call, seed=2)
    with pytest.raises(AssertionError, match="an engine was started"):
        holdfast.run_sync(one_turn, **call, seed=2, accept_changes=True)


def test_a_changed_call_with_a_name_is_refused_and_says_how_to_go_on(plain):
    plain["name"] = "sums"
    holdfast.run_sync(one_turn, **plain)
    changed = {**plain, "seed": 2}
    with pytest.raises(holdfast.UsageError, match=r"(?s)recorded differently.*new=True"):
        holdfast.run_sync(one_turn, **changed)
    check_result(holdfast.run_sync(one_turn, **changed, new=True), name="sums-2")


def test_a_changed_call_without_a_name_begins_the_next_run_and_says_what_changed(plain, caplog):
    holdfast.run_sync(one_turn, **plain)
    check_result(holdfast.run_sync(one_turn, **{**plain, "seed": 2}), name="one_turn-sums-2")
    assert "seed changed (1 → 2): this is one_turn-sums-2" in caplog.text
    check_result(holdfast.run_sync(one_turn, **plain), name="one_turn-sums-1")
    accepted = holdfast.run_sync(one_turn, **{**plain, "seed": 3}, accept_changes=True)
    check_result(accepted, name="one_turn-sums-2")


def asking(hint: bool):
    async def ask(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages, "Think first." if hint else "Answer.")
        await t.generate()

    return ask


def giving(reward: float):
    return lambda trajectory: reward


def test_a_rollout_or_a_scorer_that_is_made_with_another_value_is_another_one(plain):
    made = plain | {"scorer": giving(0.25), "name": "made"}
    first = holdfast.run_sync(asking(False), **made)
    assert first.rewards == [0.25] * 4
    assert holdfast.run_sync(asking(False), **made | {"scorer": giving(0.25)}).rewards == [0.25] * 4
    with pytest.raises(RunChanged, match=r"rollout: .*changed: asking.<locals>.ask.hint"):
        holdfast.run_sync(asking(True), **made)
    made["scorer"] = giving(0.75)
    with pytest.raises(RunChanged, match=r"scorer: .*changed: giving.<locals>.<lambda>.reward"):
        holdfast.run_sync(asking(False), **made)
    assert holdfast.run_sync(asking(False), **made, accept_changes=True).rewards == [0.75] * 4
    hinted = holdfast.run_sync(asking(True), **made, new=True)
    assert {view.messages[1].text for view in hinted.trajectories} == {"Think first."}


def test_a_result_is_a_table(plain):
    result = holdfast.run_sync(one_turn, **{**plain, "journal": "memory:"})
    frame = result.to_pandas()
    assert list(frame["reward"]) == result.rewards
    assert list(frame["task"]) == ["a", "a", "b", "b"]
    assert frame["messages"][0][0] == {"role": "user", "content": "1 + 1?"}
    datasets = result.to_dataset()
    assert datasets["reward"][:] == result.rewards
    assert datasets["ground_truth"][:] == [2, 2, 3, 3]
    assert datasets[0]["messages"][0]["content"] == "1 + 1?"
    assert datasets[0]["metadata"] == '{"level":1}'


@pytest.mark.parametrize("package", ["pandas", "datasets"])
def test_a_package_that_is_missing_is_named(plain, monkeypatch, package):
    result = holdfast.run_sync(one_turn, **{**plain, "journal": "memory:"})
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(holdfast.UsageError, match=rf"needs {package}: pip install '.\[{package}"):
        result.to_pandas() if package == "pandas" else result.to_dataset()


@pytest.mark.parametrize(
    ("rollout", "tasks", "name"),
    [
        (one_turn, [], "one_turn"),
        (one_turn, "data/sums.csv", "one_turn-sums"),
        (one_turn, "data/tasks.jsonl", "one_turn"),
        (one_turn, Path("data/sums.csv"), "one_turn-sums"),
        (one_turn, "hf:openai/gsm8k/main:test", "one_turn-hf-openai-gsm8k-main-test"),
        (one_turn, "make.py:easy", "one_turn-make-easy"),
        (one_turn, check_result, "one_turn-check_result"),
        (lambda t: t, [], "lambda"),
        (holdfast.SingleTurnRolloutProcessor(), [], "SingleTurnRolloutProcessor"),
    ],
)
def test_a_name_comes_from_the_rollout_and_the_tasks(rollout, tasks, name):
    assert series_from(rollout, tasks) == name


def test_an_interrupt_stops_the_run_and_the_same_call_goes_on(tmp_path):
    """A notebook's interrupt: SIGINT while the loop's thread waits."""
    code = f"""
import asyncio, os, signal, threading
import holdfast
from holdfast.records.errors import EndpointDown
from holdfast.testing import FakeEngine

async def solve(t):
    t.add(*t.task.messages)
    if not os.path.exists("again"):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
    await t.generate()

async def notebook():
    with FakeEngine() as engine:
        call = dict(tasks=["a"], journal={str(tmp_path / "x.db")!r}, policy=engine.url)
        try:
            holdfast.run_sync(solve, **call)
        except KeyboardInterrupt:
            open("again", "w").close()
        print([t.name for t in threading.enumerate() if t.name == "holdfast-sync"])
        print(holdfast.run_sync(solve, **call).report.trajectories)

signal.signal(signal.SIGINT, signal.default_int_handler)
loop = asyncio.new_event_loop()
loop.run_until_complete(notebook())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout == "[]\n1\n", ended.stderr


def test_without_a_policy_the_embedded_engine_serves(tmp_path):
    result = holdfast.run_sync(
        one_turn, tasks=["What is 1 + 1?"], journal=tmp_path / "x.db", sampling={"max_tokens": 4}
    )
    assert result.report.permanent_failures == 0
    assert result.report.sampled_tokens > 0


# --- journals by their addresses


@pytest.mark.parametrize("url", ["mysql://me:secret@db/x", "sqlite:///x.db", "s3://bucket/x"])
def test_the_address_of_another_server_is_no_journal(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    for where in (url, Path(url), Path("postgres://me:secret@db/x")):
        for read_only in (False, True):
            with pytest.raises(holdfast.UsageError) as caught:
                holdfast.open_journal(where, read_only=read_only)
            assert "a journal is a file, like holdfast.db, or memory:, or postgresql://" in str(
                caught.value
            )
            assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["", None, 3])
def test_what_is_no_address_is_no_journal(where):
    with pytest.raises(holdfast.UsageError, match="a journal is the path of a file, or memory:"):
        holdfast.open_journal(where)


def test_a_colon_in_a_path_is_no_server(tmp_path):
    journal = holdfast.open_journal(tmp_path / "a:b" / "run:1.db")
    asyncio.run(journal.close())
    assert (tmp_path / "a:b" / "run:1.db").is_file()


async def say(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)


def test_one_policy_and_one_judge_serve_many_calls_of_run_sync() -> None:
    verdict = '{"reason": "fine", "score": 8}'
    with FakeEngine() as engine, FakeEngine(replies=[verdict]) as judging:
        policy = holdfast.EnginePolicy(engine.url, engine.model)
        judge = holdfast.Judge(
            "Good?", policy=holdfast.EnginePolicy(judging.url, judging.model), cache=None
        )
        for name in ("first", "second"):
            result = holdfast.run_sync(
                say, tasks=TASKS, policy=policy, scorer=judge, journal="memory:", name=name
            )
            assert result.rewards == [0.8], name


def test_a_closed_policy_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    journal = tmp_path / "runs.db"
    with FakeEngine() as engine:
        policy = holdfast.EnginePolicy(engine.url, engine.model)
        asyncio.run(policy.aclose())
        with pytest.raises(holdfast.UsageError, match="closed"):
            holdfast.run_sync(say, tasks=TASKS, policy=policy, journal=journal, name="r")
        assert engine.stats().requests == 0
    assert not journal.exists()


async def fails_at_a_door(t: holdfast.Rollout) -> None:
    raise ValueError(f"door 12 of room {t.task.id} failed at 1.5\nand more")


def test_the_table_has_the_text_of_an_error_as_it_is(served: FakeEngine) -> None:
    result = holdfast.run_sync(
        fails_at_a_door,
        tasks=[{"id": "7", "prompt": "go"}],
        policy=served.url,
        journal="memory:",
        settings={"max_retry": 0},
    )
    assert result.table[0]["error"] == "ValueError: door 12 of room 7 failed at 1.5\nand more"


async def with_nothing_given(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(tools=None, max_tokens=None, stop=None, json=None, extra_body=None)


def test_none_in_a_generation_is_as_if_it_was_not_given(served: FakeEngine) -> None:
    def replies(rollout: object) -> list[str]:
        result = holdfast.run_sync(
            rollout, tasks=TASKS, policy=served.url, journal="memory:", name="r", seed=3
        )
        assert result.report.permanent_failures == 0
        return [view.reply for view in result.trajectories]

    async def plain(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        await t.generate()

    assert replies(with_nothing_given) == replies(plain)


def test_a_run_in_which_everything_failed_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(t: holdfast.Rollout) -> float:
        if t.task.id != "c":
            raise KeyError("a bug")
        return 1.0

    def failed(*names: str) -> int:
        caplog.clear()
        tasks = [{"id": name, "prompt": name} for name in names]
        result = holdfast.run_sync(
            broken, tasks=tasks, policy=Oracle(), journal="memory:", renderer=ByteRenderer(),
            settings={"max_retry": 0, "backoff": 0},
        )  # fmt: skip
        return result.failed

    assert failed("a", "b") == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "run broken-1: nothing succeeded: all 2 trajectories failed for good; the most frequent "
        "error: KeyError: 'a bug'"
    )
    assert failed("a", "c") == 1
    assert not caplog.records
