"""Groups, reports and exports: what becomes of the data, and that it is seen."""

import asyncio

import msgspec
import pytest
from msgspec import structs

import holdfast
from holdfast.engine.export.export import What, rows
from holdfast.engine.open_run import RunChanged, open_run
from holdfast.engine.report import as_text
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.message import FunctionCall, ToolCall
from holdfast.records.sampling import Sampling
from holdfast.records.step import INTERRUPTED_CALL, Contract, ToolIntent
from holdfast.rollout.replay.prompt import fingerprint
from support.engine.local_run import LocalRun, turn
from support.rollout.stage import Oracle


def failing(*names: str):
    """Fails the trajectories called `task/sample`."""

    async def rollout(t):
        await turn(t)
        if f"{t.key.task}/{t.key.sample}" in names:
            raise KeyError("bug 17")
        return float(t.key.sample)

    return rollout


POLICIES = {
    # what is failed of a (3 of 3) and b (1 of 3): which groups are kept
    "partial": (GroupPolicy(), ["b"]),
    "at least 2": (GroupPolicy(at_least=2), ["b"]),
    "at least 3": (GroupPolicy(at_least=3), []),
    "drop": (GroupPolicy(shortfall=Shortfall.DROP), []),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_short_group_is_kept_or_dropped_by_its_policy(name):
    policy, kept = POLICIES[name]
    local = LocalRun("a", "b", "c", samples=3, group=policy)
    local.run(failing("a/0", "a/1", "a/2", "b/1"))
    report = local.report()
    assert (report.groups, report.groups_kept) == (3, len(kept) + 1)
    assert report.groups_dropped == 3 - report.groups_kept
    exported = [(row["task"], row["sample"]) for row in local.rows()]
    assert exported == [
        (task, sample) for task in [*kept, "c"] for sample in range(3) if (task, sample) != ("b", 1)
    ]


def test_a_group_policy_that_contradicts_itself_is_refused_before_the_run_exists():
    both = GroupPolicy(shortfall=Shortfall.DROP, at_least=2)
    local = LocalRun("a", samples=3, group=both)
    with pytest.raises(UsageError, match="drop keeps whole groups only"):
        local.run(failing())
    assert asyncio.run(local.journal.find_run("run")) is None
    item = LocalRun("a", samples=3, journal=local.journal)
    item.run(failing())
    with pytest.raises(UsageError, match="drop keeps whole groups only"):
        asyncio.run(open_run(local.journal, local.spec, local.tasks, accept_changes=True))


def test_a_run_that_was_recorded_with_a_contradicting_policy_goes_on_as_it_began():
    local = LocalRun("a", samples=3, group=GroupPolicy(shortfall=Shortfall.DROP, at_least=2))
    asyncio.run(local.journal.create_run(local.spec, local.tasks))
    local.run(failing("a/0"))
    assert (local.rows(), local.report().groups_dropped) == ([], 1)
    local.spec = structs.replace(local.spec, rollout="other")
    asyncio.run(open_run(local.journal, local.spec, local.tasks, accept_changes=True))


def test_a_fixed_group_has_placeholders_in_the_place_of_what_failed():
    local = LocalRun("a", samples=2)
    local.run(failing("a/1"))
    valid, placeholder = local.rows(fixed_groups=True)
    assert valid["status"] == "COMPLETED"
    assert placeholder["status"] == "ABORTED"
    assert {
        key: placeholder[key]
        for key in ("token_ids", "loss_mask", "logprobs", "reward", "remove_sample", "sample")
    } == {
        "token_ids": [0, 0],
        "loss_mask": [0],
        "logprobs": [0.0],
        "reward": 0.0,
        "remove_sample": True,
        "sample": 1,
    }
    assert not any("ABORTED" in request for request in local.policy.request_ids)


def test_an_unfinished_group_is_not_exported():
    local = LocalRun("a", samples=2)

    async def rollout(t):
        if t.key.sample == 1:
            local.stop.request("enough")
        await turn(t)

    local.run(rollout, concurrency=1)
    assert local.rows() == []
    assert local.report().unsettled == 1
    assert "1 not settled yet" in as_text(local.report())


def test_rows_come_in_order_whatever_the_order_in_which_they_were_made():
    def exported(concurrency, delay):
        async def rollout(t):
            await asyncio.sleep(delay * (5 - t.key.sample))
            await turn(t)
            return 1.0

        local = LocalRun(*"cab", samples=3)
        local.run(rollout, concurrency=concurrency)
        assert [(row["task"], row["sample"]) for row in local.rows(What.TRAJECTORIES)] == [
            (task, sample) for task in "cab" for sample in range(3)
        ]
        return msgspec.json.encode(local.rows())

    assert exported(1, 0) == exported(9, 0.004)


def test_a_disturbed_run_exports_the_same_samples_as_a_calm_one():
    def samples(trouble):
        async def rollout(t):
            await turn(t)
            if trouble:
                raise trouble.pop()
            await turn(t, "second")
            return 1.0

        local = LocalRun("a", "b", samples=2)
        local.run(rollout)
        return msgspec.json.encode(local.rows()), len(local.rows(What.FAILURES))

    calm, disturbed = samples([]), samples([EnvironmentBroken("x"), KeyError("y")])
    assert calm[0] == disturbed[0]
    assert (calm[1], disturbed[1]) == (0, 2)


# --- the report


def test_a_run_in_which_nothing_was_generated_says_so():
    async def helper(t):
        return 1.0

    local = LocalRun("a", samples=2)
    local.run(helper)
    line = "  nothing was generated: the rollout made no turn in 2 trajectories"
    assert line in as_text(local.report()).splitlines()

    async def for_one(t):
        if t.key.task == "a":
            await turn(t)

    once = LocalRun("a", "b")
    once.run(for_one)
    assert once.report().turns == 1
    assert "nothing was generated" not in as_text(once.report())


def test_a_scorer_that_never_gives_a_score_is_asked_about_its_return():
    def forgetful(view):
        assert view.key.sample in (0, 1)

    local = LocalRun("a", samples=2)
    local.run(failing(), forgetful)
    text = as_text(local.report())
    assert "2 trajectories without a valid score: in no mean" in text
    assert "  scorer forgetful returned None each time; is a return missing?" in text


def test_a_run_whose_verdicts_cannot_be_read_has_not_succeeded():
    def unread(view):
        return holdfast.Score(None, {}, {}, {"judge": {"unread": True}})

    local = LocalRun("a", samples=2)
    local.run(failing(), unread)
    assert local.report().nothing_succeeded
    assert "could not be read for 2 trajectories" in local.report().all_failed


def test_why_nothing_was_scored_is_grouped_and_only_said_where_nothing_was():
    def wrong(view):
        reason = "no verdict after 3 answers: it is not JSON"
        return holdfast.Score(None, reasons={"judge": reason if view.key.sample else "unclear"})

    local = LocalRun("a", samples=4)
    local.run(failing(), wrong)
    lines = as_text(local.report()).splitlines()
    at = lines.index("  4 trajectories without a valid score: in no mean")
    assert lines[at + 1 : at + 3] == [
        "    3 × no verdict after 3 answers: it is not JSON",
        "    1 × unclear",
    ]
    partly = LocalRun("a", samples=2)
    partly.run(failing(), lambda view: 1.0 if view.key.sample else None)
    assert "1 trajectory without a valid score: in no mean" in as_text(partly.report())
    assert "returned None" not in as_text(partly.report())


def test_failures_are_grouped_by_their_root_with_one_traceback_each():
    async def rollout(t):
        await turn(t)
        if t.key.sample < 2:
            raise KeyError(f"row {t.key.sample} of {t.key.task}")
        return 1.0

    def scorer(view):
        if view.key.task == "b":
            raise KeyError("row 9 of b")
        return 1.0

    local = LocalRun("a", "b", samples=3)
    local.run(rollout, scorer)
    causes = {(cause.root, cause.phase): cause for cause in local.report().causes}
    in_rollout = causes["KeyError: 'row # of b'", "rollout"]
    in_scorer = causes["KeyError: 'row # of b'", "scoring"]
    assert (in_rollout.failures, in_rollout.permanent, in_rollout.cause) == (4, 2, "code")
    assert (in_scorer.failures, in_scorer.permanent) == (2, 1)
    assert "in rollout" in in_rollout.traceback
    text = as_text(local.report())
    assert (
        "[code, rollout] 4 × KeyError: 'row 0 of b' "
        "(2 trajectories failed for good; for instance in run/b/0)"
    ) in text
    assert "[code, scoring] 2 × KeyError: 'row 9 of b'" in text
    assert text.count("Traceback (most recent call last)") == 3


def test_an_error_without_frames_is_shown_once():
    async def rollout(t):
        await t.generate()

    local = LocalRun("a")
    local.run(rollout, lambda t: "high")
    assert as_text(local.report()).count("NotAScore") == 1


def test_a_report_stays_readable_however_many_roots_there_are():
    async def rollout(t):
        await turn(t)
        raise ValueError("cannot read " + "".join(chr(ord("a") + int(item)) for item in t.key.task))

    local = LocalRun(*map(str, range(100, 130)))
    local.run(rollout)
    text = as_text(local.report())
    assert text.count("Traceback (most recent call last)") == 20
    assert "20 failures more, of 10 other roots (10 for good): `holdfast export run" in text
    assert len(local.report().causes) == 30, "scripts are given all of them"


def test_the_rewards_of_disturbed_trajectories_are_shown_beside_those_of_clean_ones():
    trouble = {0: [EnvironmentBroken("once")]}

    async def rollout(t):
        await turn(t)
        if trouble.get(t.key.sample):
            raise trouble[t.key.sample].pop()
        return float(t.key.sample)

    local = LocalRun("a", samples=3)
    local.run(rollout)
    report = local.report()
    assert (report.clean.count, report.clean.mean) == (2, 1.5)
    assert (report.disturbed.count, report.disturbed.mean) == (1, 0.0)
    assert report.retried_attempts == 1
    text = as_text(report)
    assert "mean reward: 1.0000 (n=3)" in text
    assert "of these: clean 1.5000 (n=2), disturbed 0.0000 (n=1)" in text
    assert "1 attempt retried" in text


def test_refills_and_truncations_are_counted_by_reason():
    trouble = [EnvironmentBroken("gone")]

    async def rollout(t):
        if trouble:
            raise trouble.pop()
        await turn(t)
        if t.key.sample:
            t.truncate("max_turns" if t.key.sample == 1 else "bored")
        return 1.0

    local = LocalRun("a", samples=4)
    local.run(rollout, max_retry=0)
    report = local.report()
    assert report.refills == 1
    assert report.truncations == {"max_turns": 1, "bored": 2}
    assert report.by_status == {"COMPLETED": 1, "TRUNCATED": 3}
    assert "truncated: 1 max_turns, 2 bored" in as_text(report)


def test_turns_and_tokens_are_those_of_the_data():
    local = LocalRun("a", samples=2)
    local.run(failing())
    report = local.report()
    assert report.turns == 2
    assert report.sampled_tokens == sum(sum(row["loss_mask"]) for row in local.rows())


# --- trying again


def test_failed_trajectories_are_reopened_with_new_budgets_and_replay():
    local = LocalRun("a", samples=2, group=GroupPolicy(refill=0))
    local.run(failing("a/1"))
    assert local.statuses()["a/1"] == ("FAILED", True)
    local.run(failing())
    assert local.statuses()["a/1"] == ("FAILED", True), "only when asked"
    local.run(failing(), reopen_failed=True)
    assert local.statuses()["a/1"] == ("COMPLETED", True)
    assert len(local.policy.requests) == 2
    history = local.history("a/1")
    assert [attempt.attempt for attempt in history.attempts] == [1, 2, 3]


def test_a_bug_is_tried_once_more_again_after_reopening():
    local = LocalRun()
    local.run(failing("a/0"))
    local.run(failing("a/0"), reopen_failed=True)
    assert len(local.history().failures) == 4


def test_a_trajectory_that_failed_in_scoring_is_only_scored_again():
    calls = []

    def scorer(view):
        calls.append(view)
        if len(calls) < 4:
            raise KeyError("scorer")
        return 3.0

    local = LocalRun()
    local.run(failing(), scorer)
    assert local.statuses() == {"a/0": ("FAILED", True)}
    local.run(failing(), scorer, reopen_failed=True)
    assert local.history().reward == 3.0, "the scorer has its tries again"
    assert len(local.policy.requests) == 1


# --- opening


def test_a_run_that_is_not_the_same_any_more_is_refused_with_every_difference():
    local = LocalRun("a")
    other = LocalRun("a", "b", samples=2, sampling=Sampling(temperature=0.5), seed=2)

    async def main(accept):
        await open_run(local.journal, local.spec, local.tasks)
        return await open_run(local.journal, other.spec, other.tasks, accept_changes=accept)

    with pytest.raises(RunChanged) as refused:
        asyncio.run(main(False))
    messages = {line.partition(":")[0]: line for line in refused.value.differences}
    assert messages.keys() == {"samples", "sampling.temperature", "seed", "tasks"}
    assert "recorded 1.0, now 0.5" in messages["sampling.temperature"]
    assert all(line in str(refused.value) for line in messages.values())
    assert "--accept-changes" in str(refused.value)

    changed = asyncio.run(main(True))
    assert len(changed.changes) == 1
    assert set(changed.changes[0].differences) == set(messages.values())


def test_an_accepted_change_plans_what_is_new_and_keeps_what_is_done():
    local = LocalRun("a")
    local.run(failing())
    wider = LocalRun("a", "b", samples=2, journal=local.journal)
    asyncio.run(open_run(local.journal, wider.spec, wider.tasks, accept_changes=True))
    wider.run(failing())
    assert list(wider.statuses()) == ["a/0", "a/1", "b/0", "b/1"]
    assert wider.policy.request_ids == ["run/a/1/0", "run/b/0/0", "run/b/1/0"]


async def test_another_scorer_scores_everything_anew_and_rolls_nothing_out(tmp_path):
    async def rollout(t):
        t.add(*t.task.messages)
        await t.generate()

    def first(view):
        return 1.0

    def second(view):
        return -5.0

    journal, oracle = SqliteJournal(tmp_path / "j.db"), Oracle()
    run = {
        "policy": oracle,
        "renderer": ByteRenderer(),
        "journal": journal,
        "name": "r",
        "samples": 2,
        "seed": 1,
    }
    await holdfast.run(rollout, tasks=[{"id": "a", "prompt": "x"}], scorer=first, **run)
    count = len(oracle.requests)
    more = [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"}]
    await holdfast.run(rollout, tasks=more, scorer=second, accept_changes=True, **run)
    opened = await journal.find_run("r")
    rewards = [row["reward"] async for row in rows(journal, opened, What.SAMPLES)]
    await journal.close()
    request, in_the_end, rewards = count, len(oracle.requests), rewards
    assert rewards == [-5.0] * 4, "no run holds the rewards of two scorers"
    assert in_the_end == request + 2, "only the new task was rolled out"


def test_an_interrupted_tool_call_makes_a_trajectory_disturbed():
    async def pay() -> str:
        return "paid"

    async def rollout(t):
        await turn(t)
        call = ToolCall("", FunctionCall("pay", "{}"))
        if not t._session.history.results and not t._session.history.steps.get("1"):
            # As a kill between intent and result leaves it.
            await t._session.log.append(
                ToolIntent(
                    "1",
                    fingerprint(b"pay", b"{}", b""),
                    "pay",
                    "{}",
                    "",
                    Contract.AT_MOST_ONCE,
                    "k",
                )
            )
        assert (await t.tool(call, pay)).error == INTERRUPTED_CALL
        return 1.0

    local = LocalRun("a", group=GroupPolicy(keep_interrupted=True))
    local.run(rollout)
    report = local.report()
    assert report.interrupted_calls == 1
    assert (report.clean.count, report.disturbed.count) == (0, 1)
    assert "1 tool call interrupted" in as_text(report)


def test_what_healed_is_one_line() -> None:
    trouble = [ConnectionError("gone")]

    async def rollout(t):
        if trouble:
            raise trouble.pop()
        if t.task.id == "b":
            raise KeyError("a bug")

    local = LocalRun("a", "b")
    local.run(rollout, concurrency=1)
    report = local.report()
    text = as_text(report)
    healed = "[infrastructure, rollout] 1 × ConnectionError: gone (healed; for instance in run/a/0)"
    assert f"\n\n{healed}\n\n1 failed for good; " in text
    assert len(text.splitlines()[-1]) <= 100
    assert text.count("Traceback") == 1
    assert as_text(report, full_tracebacks=True).count("Traceback") == 2


def test_what_was_retried_in_a_trajectory_that_failed_after_all_has_not_healed() -> None:
    trouble = {"a": 1, "b": 1}

    async def rollout(t):
        if trouble[t.task.id]:
            trouble[t.task.id] -= 1
            raise ConnectionError("gone")
        if t.task.id == "b":
            raise KeyError("a bug")

    local = LocalRun("a", "b")
    local.run(rollout, concurrency=1)
    report = local.report()
    gone = next(cause for cause in report.causes if "gone" in cause.root)
    assert (gone.failures, gone.permanent, gone.healed) == (2, 0, 1)
    assert "2 × ConnectionError: gone (1 healed; for instance in run/a/0)" in as_text(report)
