"""A judge scores by a rubric: durably, strictly, and never a 0 for what it cannot judge."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

import holdfast
from holdfast.engine.judging.prompt import Candidate
from holdfast.engine.open_run import RunChanged
from holdfast.journal import opened_journal
from holdfast.records.errors import EndpointDown, HoldfastError, PolicyRefused, UsageError
from holdfast.records.history import History
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.policy.canned_server import Answer, Canned

RUBRIC = "Is the answer right?"
GOOD = '{"reason": "it is right", "score": 8}'
CANDIDATE = Candidate("[user]\n1+1?\n\n[assistant]\n2", "2")


@pytest.fixture(scope="module")
def policy() -> Iterator[FakeEngine]:
    with FakeEngine(mean_length=8) as engine:
        yield engine


async def solve(t: holdfast.Rollout) -> None:
    """No two samples are equal, whatever the engine says: equal ones are compared as one."""
    t.add(*t.task.messages, f"this is sample {t.key.sample}")
    await t.generate(max_tokens=8)


def judge_of(engine: FakeEngine, rubric: object = RUBRIC, **options: object) -> holdfast.Judge:
    return holdfast.Judge(rubric, policy=engine.url, **options)  # type: ignore[arg-type]


def verdict(engine: FakeEngine, candidate: Candidate = CANDIDATE, **options: object):
    return asyncio.run(judge_of(engine, **options).judge(candidate))


def questions(engine: FakeEngine) -> int:
    """How often it was asked for a verdict."""
    return sum(name == "judge" for name, _ in engine.requests())


def run_with(judge, policy: FakeEngine, journal: str = "memory:", *, samples: int = 2, **more):
    tasks = [{"id": name, "prompt": name, "ground_truth": "2"} for name in ("a", "b")]
    return asyncio.run(
        holdfast.run(
            solve,
            tasks=tasks,
            policy=policy.url,
            journal=journal,
            scorer=judge,
            samples=samples,
            name="judged",
            **more,
        )
    )


# --- verdicts


def test_a_verdict_is_a_reward_with_its_reason() -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        score = verdict(engine)
    assert score.reward == pytest.approx(0.8)
    assert (score.metrics, score.reasons) == ({"score": 8}, {"score": "it is right"})
    details = score.details["judge"]
    assert (details["model"], details["tries"]) == ("fake", 1)
    assert details["usage"]["completion_tokens"] > 0


def test_criteria_are_metrics_and_the_reward_is_their_mean() -> None:
    answer = '{"right": {"reason": "yes", "score": 1}, "kind": {"reason": "no", "score": 0}}'
    with FakeEngine(replies=[answer]) as engine:
        score = verdict(engine, rubric={"right": "Is it?", "kind": "Is it?"}, scale=(0, 1))
    assert score.reward == 0.5
    assert score.metrics == {"right": 1, "kind": 0}
    assert score.reasons == {"right": "yes", "kind": "no"}


def test_an_answer_in_a_fence_is_read() -> None:
    with FakeEngine(replies=[f"```json\n{GOOD}\n```"]) as engine:
        assert verdict(engine).reward == pytest.approx(0.8)


@pytest.mark.parametrize(
    "wrong",
    [
        "It is an 8.",
        '{"score": 11, "reason": "x"}',
        '{"score": "8", "reason": "x"}',
        '{"score": true, "reason": "x"}',
        '{"reason": "x"}',
        "[8]",
        '{"score": NaN}',
        f"Sure! {GOOD}",
    ],
)
def test_what_cannot_be_read_is_asked_for_again(wrong: str) -> None:
    with FakeEngine(replies=[f"@0 {wrong}", f"@1 {GOOD}"]) as engine:
        score = verdict(engine)
    assert score.reward == pytest.approx(0.8)
    assert score.details["judge"]["tries"] == 2


def test_a_judge_that_cannot_answer_gives_no_score_and_asks_a_bounded_number_of_times() -> None:
    with FakeEngine(replies=["nonsense"]) as engine:
        score = verdict(engine, repairs=1)
        assert questions(engine) == 2
    assert score.reward is None
    assert score.metrics == {}
    assert "no verdict after 2 answers" in score.reasons["judge"]
    assert score.reasons["judge"].endswith("\nthe last answer: nonsense")


def test_null_says_that_it_cannot_be_judged() -> None:
    with FakeEngine(replies=['{"reason": "there is no answer", "score": null}']) as engine:
        score = verdict(engine)
    assert (score.reward, score.reasons) == (
        None,
        {"score": "the judge gave no score: there is no answer"},
    )


def test_a_judge_that_is_down_for_a_moment_is_asked_again() -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        engine.set_faults(Fault(FaultKind.UNAVAILABLE, rate=0.5))
        assert verdict(engine).reward == pytest.approx(0.8)


# --- outages


# A queue is no plain data: what is in it is not a part of the rollout.
victims: SimpleQueue[FakeEngine] = SimpleQueue()


async def solve_killing(t: holdfast.Rollout) -> None:
    """Ends the judge's engine when everything was checked, and nothing judged."""
    if not victims.empty():
        victims.get().kill()
    await solve(t)


def run_killing(engine: FakeEngine, policy: FakeEngine, journal: Path, **settings: object):
    return asyncio.run(
        holdfast.run(
            solve_killing,
            tasks=[{"id": "a", "prompt": "a"}],
            policy=policy.url,
            journal=journal,
            scorer=judge_of(engine),
            settings=settings,
        )
    )


class StartsAgain(logging.Handler):
    """Starts an engine as soon as it is said to be waited for."""

    def __init__(self, engine: FakeEngine):
        super().__init__()
        self._engine = engine

    def emit(self, record: logging.LogRecord) -> None:
        if "waiting for it" in record.getMessage():
            self._engine.start()


def test_an_engine_that_goes_before_the_first_judgement_is_waited_for(
    tmp_path: Path, policy: FakeEngine
) -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        victims.put(engine)
        handler = StartsAgain(engine)
        logging.getLogger("holdfast").addHandler(handler)
        try:
            result = run_killing(engine, policy, tmp_path / "j.db")
        finally:
            logging.getLogger("holdfast").removeHandler(handler)
        assert questions(engine) == 1
    assert [row.reward for row in result.trajectories] == [pytest.approx(0.8)]


def test_one_that_stays_away_stops_the_run_which_then_only_judges(
    tmp_path: Path, policy: FakeEngine
) -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        victims.put(engine)
        with pytest.raises(EndpointDown, match="the same command to go on") as caught:
            run_killing(engine, policy, tmp_path / "j.db", patience=0.0)
        assert str(caught.value).startswith(f"the judge: {engine.url} has been down")
        engine.start()
        sampled = policy.stats().tokens
        result = run_killing(engine, policy, tmp_path / "j.db")
        assert policy.stats().tokens == sampled
        assert questions(engine) == 1
    assert [row.reward for row in result.trajectories] == [pytest.approx(0.8)]


# --- as a scorer


def test_a_run_is_scored_by_it(policy: FakeEngine) -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        judge = judge_of(engine)
        result = run_with(judge, policy)
    assert [sample.reward for sample in result.samples] == [pytest.approx(0.8)] * 4
    assert judge.usage.completion_tokens > 0


def test_the_rest_of_a_run_is_unharmed_by_a_judge_that_cannot_judge(policy: FakeEngine) -> None:
    with FakeEngine(replies=["nonsense"]) as engine:
        result = run_with(judge_of(engine, repairs=0), policy)
    assert [row.reward for row in result.trajectories] == [None] * 4
    assert "mean reward" not in str(result)


def test_groups_are_compared(policy: FakeEngine) -> None:
    answer = (
        '{"A": {"reason": "best", "score": 10}, "B": {"reason": "worst", "score": 0}, '
        '"C": {"reason": "?", "score": null}}'
    )
    with FakeEngine(replies=[answer]) as engine:
        judge = judge_of(engine, compare=True)
        result = run_with(judge, policy, samples=3)
    by_task: dict[str, list[float | None]] = {}
    for row in result.trajectories:
        by_task.setdefault(row.key.task, []).append(row.reward)
    assert [sorted(map(str, rewards)) for rewards in by_task.values()] == [
        ["0.0", "1.0", "None"]
    ] * 2


@pytest.mark.parametrize("compare", [False, True])
def test_a_verdict_that_could_not_be_read_is_asked_for_again_with_retry_failed(
    tmp_path: Path, policy: FakeEngine, compare: bool
) -> None:
    journal, both = str(tmp_path / "j.db"), f'{{"A": {GOOD}, "B": {GOOD}}}'
    with FakeEngine(replies=["nonsense"]) as engine:
        judge = judge_of(engine, repairs=0, compare=compare, model="fake")
        first = run_with(judge, policy, journal)
        question_count = questions(engine)
        run_with(judge, policy, journal)
        assert questions(engine) == question_count, "the same command asks for nothing"
    assert [row.reward for row in first.trajectories] == [None] * 4
    with FakeEngine(replies=[both if compare else GOOD]) as engine:
        judge = judge_of(engine, repairs=0, compare=compare, model="fake")
        sampled = len(policy.requests())
        again = run_with(judge, policy, journal, retry_failed=True)
        assert [row.reward for row in again.trajectories] == [pytest.approx(0.8)] * 4
        names = [name for name, _ in policy.requests()[sampled:]]
        assert not [name for name in names if name], "nothing is sampled again"
        question_count = questions(engine)
        run_with(judge, policy, journal, retry_failed=True)
        assert questions(engine) == question_count, "what was read is not asked for again"


def test_a_judge_that_says_null_has_answered(tmp_path: Path, policy: FakeEngine) -> None:
    journal = str(tmp_path / "j.db")
    with FakeEngine(replies=['{"reason": "who knows", "score": null}']) as engine:
        run_with(judge_of(engine), policy, journal)
        question_count = questions(engine)
        run_with(judge_of(engine), policy, journal, retry_failed=True)
        assert questions(engine) == question_count == 4


def test_so_is_one_of_which_a_function_made_a_none_of_its_own(
    tmp_path: Path, policy: FakeEngine
) -> None:
    journal, answer = str(tmp_path / "j.db"), tmp_path / "answer"

    async def score(trajectory: holdfast.TrajectoryView) -> float | None:
        with FakeEngine(replies=[answer.read_text()]) as engine:
            verdict = await judge_of(engine, repairs=0)(trajectory)
        return verdict.reward

    answer.write_text("nonsense")
    first = run_with(score, policy, journal, samples=1)
    assert [row.reward for row in first.trajectories] == [None] * 2
    answer.write_text(GOOD)
    again = run_with(score, policy, journal, samples=1, retry_failed=True)
    assert [row.reward for row in again.trajectories] == [pytest.approx(0.8)] * 2


def test_equal_answers_are_shown_once_and_share_a_score_whatever_their_numbers() -> None:
    answer = '{"A": {"reason": "best", "score": 10}, "B": {"reason": "worst", "score": 0}}'
    same, other = Candidate("[assistant]\n2", "2"), Candidate("[assistant]\n3", "2")
    with FakeEngine(replies=[answer]) as engine:
        judge = judge_of(engine, compare=True)
        first, second, third = asyncio.run(judge([same, other, same]))
        assert first.reward == third.reward != second.reward
        assert first.reasons == third.reasons
        turned = asyncio.run(judge([other, same, same]))
        assert [score.reward for score in turned] == [second.reward, first.reward, first.reward]
        assert questions(engine) == 1, "the same question, whatever the order"


def test_a_group_that_said_the_same_thing_is_judged_as_one() -> None:
    with FakeEngine(replies=['{"A": {"reason": "right", "score": 8}}']) as engine:
        scores = asyncio.run(judge_of(engine, compare=True)([CANDIDATE] * 3))
    assert [score.reward for score in scores] == [pytest.approx(0.8)] * 3
    tokens = [score.details["judge"]["usage"]["completion_tokens"] for score in scores]
    assert max(tokens) - min(tokens) <= 1, "it is paid for by all of them"


def test_another_rubric_is_another_scorer(tmp_path: Path, policy: FakeEngine) -> None:
    journal = str(tmp_path / "j.db")
    with FakeEngine(replies=[GOOD]) as engine:
        run_with(judge_of(engine), policy, journal)
        assert questions(engine) == 4
        run_with(judge_of(engine), policy, journal)
        assert questions(engine) == 4
        with pytest.raises(UsageError, match="scorer"):
            run_with(judge_of(engine, "Is it polite?"), policy, journal)


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        judge = judge_of(engine, cache=tmp_path / "verdicts.db")
        first = asyncio.run(judge.judge(CANDIDATE))
        used = judge.usage
        again = asyncio.run(judge.judge(CANDIDATE))
        other = judge_of(engine, cache=tmp_path / "verdicts.db")
        elsewhere = asyncio.run(other.judge(CANDIDATE))
    assert judge.usage == used
    assert other.usage.total_tokens == 0
    assert first.reward == again.reward == elsewhere.reward
    assert again.details["judge"]["tries"] == 0


# --- kills

PROGRAM = """
import asyncio, sys
import holdfast

async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)

judge = holdfast.Judge("Is it right?", policy=sys.argv[2])
tasks = [{"id": str(n), "prompt": str(n)} for n in range(12)]
asyncio.run(holdfast.run(solve, tasks=tasks, policy=sys.argv[1], journal="j.db", name="r",
    scorer=judge, settings={"concurrency": 2}))
"""


def test_what_is_judged_is_not_judged_again_after_a_kill(
    tmp_path: Path, policy: FakeEngine
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with FakeEngine(replies=[GOOD], delay=0.05) as engine:
        command = [sys.executable, str(program), policy.url, engine.url]
        process = subprocess.Popen(command, cwd=tmp_path, env=os.environ)
        while len(recorded(tmp_path)) < 4:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = recorded(tmp_path)
        engine.reset()
        subprocess.run(command, cwd=tmp_path, check=True)
        after = recorded(tmp_path)
        question_count = questions(engine)
    assert len(after) == 12
    assert before.items() <= after.items()
    assert question_count == 12 - len(before)


def recorded(folder: Path) -> dict[str, float]:
    """When each trajectory was scored."""

    async def read() -> dict[str, float]:
        if not (folder / "j.db").exists():
            return {}
        async with opened_journal(folder / "j.db", read_only=True) as journal:
            run = await journal.find_run("r")
            result = {}
            if run is not None:
                async for row, records in journal.histories(run):
                    scored = History(records).scored
                    if row.settled and scored is not None:
                        result[str(row.key)] = scored.at
            return result

    return asyncio.run(read())


# --- mistakes


class Row:
    messages = ({"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
    ground_truth = 2


@pytest.mark.parametrize(
    ("compare", "judged", "message"),
    [
        (False, None, "a judge takes a finished trajectory, or a row"),
        (False, "text", "something with messages, not 'text'"),
        (False, [Row()], "one at a time; to compare several, compare=True"),
        (True, Row(), "takes a list of several trajectories or rows, not Row; to judge one"),
        (True, [], "takes a list of several trajectories or rows, not an empty one; to judge one"),
        (True, [5], "something with messages, not 5"),
    ],
)
def test_what_cannot_be_judged_is_one_line(compare: bool, judged: object, message: str) -> None:
    judge = holdfast.Judge(RUBRIC, policy="http://127.0.0.1:1", compare=compare)
    with pytest.raises(UsageError, match=message):
        asyncio.run(judge(judged))


def test_messages_may_be_dicts() -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        judge = judge_of(engine)
        assert judge._candidate(Row()) == CANDIDATE
        assert asyncio.run(judge(Row())).reward == pytest.approx(0.8)


def test_a_judge_of_the_users_class_has_arguments_of_its_own() -> None:
    class Polite(holdfast.Judge):
        def __init__(self, url: str):
            super().__init__("Is it polite?", policy=url)

    assert Polite("http://127.0.0.1:1").rubric.criteria == {"score": "Is it polite?"}


# --- what is found before anything is sampled


def refused(engine: FakeEngine, tmp_path: Path, *, samples: int = 2, **arguments: object) -> str:
    """What a run with such a judge says; nothing is sampled and nothing recorded."""
    judge = holdfast.Judge(RUBRIC, **{"policy": engine.url, **arguments})  # type: ignore[arg-type]
    journal, before = tmp_path / "j.db", engine.stats().tokens
    with pytest.raises(HoldfastError) as caught:
        run_with(judge, engine, str(journal), samples=samples)
    assert engine.stats().tokens == before
    assert not journal.exists() or not asyncio.run(listed_runs(journal))
    return f"{type(caught.value).__name__}: {caught.value}"


async def listed_runs(journal: Path) -> list[str]:
    async with opened_journal(journal) as opened:
        return [row.name for row in await opened.runs()]


def test_a_providers_key_is_asked_for_before_anything_is_sampled(
    tmp_path: Path, policy: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: a file with a judge in it imports without the key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refusal = refused(policy, tmp_path, policy="openai/gpt-4o-mini")
    assert refusal.startswith("UsageError: the judge: model 'openai/gpt-4o-mini' is served by")
    assert "set OPENAI_API_KEY" in refusal
    keyless = holdfast.Judge(RUBRIC, policy="openai/gpt-4o-mini").identity
    with_key = holdfast.Judge(RUBRIC, policy="openai/gpt-4o-mini", api_key="any").identity
    assert keyless == with_key


def test_a_judge_that_does_not_answer_is_found_before_anything_is_sampled(
    tmp_path: Path, policy: FakeEngine
) -> None:
    with FakeEngine() as gone:
        address = gone.url
    refusal = refused(policy, tmp_path, policy=address)
    assert refusal.startswith(f"EndpointDown: the judge: the policy at {address} does not answer")


def test_the_tokenizer_of_its_engine_need_not_be_here() -> None:
    """A server that somebody else runs, with a model from a hub."""
    model = {"id": "wise", "root": "somebody/wise", "owned_by": "vllm"}
    message = {"role": "assistant", "content": GOOD}

    async def main() -> float | None:
        async with Canned() as server:
            server.always("/v1/models", Answer(body={"data": [model]}))
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            server.always("/v1/chat/completions", Answer(body={"choices": [choice]}))
            judge = holdfast.Judge(RUBRIC, policy=server.url)
            return (await judge.judge(CANDIDATE)).reward

    assert asyncio.run(main()) == 0.8


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
def test_so_is_a_key_that_it_does_not_take(policy: FakeEngine, path: str) -> None:
    """Also where everybody may list its models, and only sampling wants a key."""
    model = {"id": "wise", "owned_by": "vllm", "logprobs_mode": "processed", "renderer": "bytes"}
    before = policy.stats().tokens

    async def main() -> None:
        async with Canned() as server:
            server.always("/v1/models", Answer(body={"data": [model]}))
            server.always(path, Answer(401))
            judge = holdfast.Judge(RUBRIC, policy=server.url, api_key="the-wrong-key")
            await holdfast.run(
                solve, tasks=[{"prompt": "a"}], policy=policy.url, journal="memory:", scorer=judge
            )

    with pytest.raises(PolicyRefused, match=r"^the judge: .*answered 401.*Judge\(…, api_key"):
        asyncio.run(main())
    assert policy.stats().tokens == before


def test_a_key_that_is_taken_back_meanwhile_stops_the_run(policy: FakeEngine) -> None:
    """The judge is made in the scorer, where nobody can check it before."""

    async def score(trajectory: holdfast.TrajectoryView) -> object:
        async with Canned() as server:
            server.always("/v1/models", Answer(401))
            judge = holdfast.Judge(RUBRIC, policy=server.url, api_key="the-wrong-key")
            return await judge(trajectory)

    with pytest.raises(PolicyRefused, match=r"^the judge: ") as caught:
        run_with(score, policy)
    assert "the-wrong-key" not in str(caught.value)


def test_so_is_a_misspelled_provider_and_a_model_that_it_does_not_serve(
    tmp_path: Path, policy: FakeEngine
) -> None:
    refusal = refused(policy, tmp_path, policy="openay/gpt-4o")
    assert refusal.startswith("UsageError: the judge: ")
    assert refusal.endswith("not 'openay/gpt-4o'; is 'openai/gpt-4o' meant?")
    assert "does not serve model 'other'" in refused(policy, tmp_path, model="other")


@pytest.mark.parametrize("name", ["missing/verdicts.db", "folder", "text.txt"])
def test_so_is_a_cache_that_cannot_be_used(tmp_path: Path, policy: FakeEngine, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("no database, and longer than the header of one" * 9)
    refusal = refused(policy, tmp_path, cache=tmp_path / name)
    assert refusal.startswith(f"UsageError: the judge's cache {tmp_path / name} cannot be used: ")


def test_so_are_more_samples_than_it_can_compare(tmp_path: Path, policy: FakeEngine) -> None:
    refusal = refused(policy, tmp_path, samples=27, compare=True)
    assert refusal.startswith("UsageError: a judge compares at most 26 samples of a task, not 27;")


def test_a_finished_run_needs_no_judge(tmp_path: Path, policy: FakeEngine) -> None:
    with FakeEngine(replies=[GOOD]) as engine:
        judge = judge_of(engine)
        run_with(judge, policy, str(tmp_path / "j.db"))
    assert run_with(judge, policy, str(tmp_path / "j.db")).report.permanent_failures == 0


# --- what it costs


@pytest.mark.parametrize("compare", [False, True])
def test_its_tokens_are_in_the_report_under_its_model(policy: FakeEngine, compare: bool) -> None:
    both = '{"A": {"score": 8, "reason": null}, "B": {"score": 2}}'
    with FakeEngine(replies=[both if compare else GOOD], model="wise") as engine:
        judge = judge_of(engine, compare=compare)
        result = run_with(judge, policy)
    assert judge.usage.prompt_tokens > 0
    assert result.report.usage["wise"] == judge.usage.as_fields()
    assert result.report.usage.keys() == {"fake", "wise"}


def test_they_count_against_a_limit(policy: FakeEngine, tmp_path: Path) -> None:
    journal = str(tmp_path / "j.db")
    with FakeEngine(replies=[GOOD], model="wise") as engine:
        judge = judge_of(engine)
        limited = {"max_tokens_total": 3000, "concurrency": 1}
        # More than may wait for their scores at once: not all are sampled when the first is judged.
        stopped = run_with(judge, policy, journal, samples=60, settings=limited)
        assert stopped.ending.spent
        used = stopped.report.usage
        assert sum(used["fake"].values()) < sum(used["wise"].values())
        whole = run_with(judge, policy, journal, samples=60, settings={"max_tokens_total": 10**9})
    assert not whole.ending.stopped
    assert whole.report.permanent_failures == 0


def test_no_verdict_is_begun_when_the_limit_is_reached(policy: FakeEngine, tmp_path: Path) -> None:
    journal = str(tmp_path / "j.db")
    with FakeEngine(replies=[GOOD], model="wise") as engine:
        judge = judge_of(engine)
        limited = {"max_tokens_total": 1, "scoring": {"concurrency": 1}, "concurrency": 8}
        stopped = run_with(judge, policy, journal, samples=8, settings=limited)
        assert stopped.ending.spent
        judged = [reward for reward in stopped.rewards if reward is not None]
        assert len(judged) <= 1, "the first shows that it costs something"
        whole = run_with(judge, policy, journal, samples=8, settings={"max_tokens_total": 10**9})
    assert not whole.ending.stopped
    assert len(whole.rewards) == 16


def test_a_judge_without_a_price_is_found_before_anything_is_sampled(policy: FakeEngine) -> None:
    prices = {"fake": {"prompt": 1, "completion": 1}}
    before = policy.stats().tokens
    limited = {"max_cost": 1.0, "prices": prices}
    with (
        FakeEngine(replies=[GOOD], model="wise") as engine,
        pytest.raises(UsageError, match="model 'wise' has no price"),
    ):
        run_with(judge_of(engine), policy, settings=limited)
    assert policy.stats().tokens == before


# --- who it is


def test_an_engine_that_moves_is_the_same_judge_and_another_model_is_another(
    tmp_path: Path, policy: FakeEngine
) -> None:
    other = GOOD.replace("8", "3")

    def go(engine: FakeEngine, samples: int, **more: object) -> list[float | None]:
        journal = str(tmp_path / "j.db")
        return run_with(
            judge_of(engine), policy, journal, samples=samples, **{"accept_changes": True, **more}
        ).rewards

    with FakeEngine(replies=[GOOD]) as engine:
        assert go(engine, 2) == [0.8] * 4
    with FakeEngine(replies=[other]) as moved:
        assert sorted(go(moved, 3)) == pytest.approx([0.3] * 2 + [0.8] * 4)
        assert questions(moved) == 2, "what was judged already stays"
    with FakeEngine(model="another", replies=[other]) as another:
        with pytest.raises(RunChanged, match="judge: recorded 'fake', now 'another'"):
            go(another, 4, accept_changes=False)
        assert go(another, 4) == pytest.approx([0.3] * 8)
