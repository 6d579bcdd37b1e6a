"""Data that does not depend on timing, on siblings, or on what the rollout never saw."""

import asyncio

import pytest

import holdfast
from holdfast.engine.export.export import What, rows
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError
from holdfast.records.trajectory import Status
from holdfast.rollout.threads import contain
from support.engine.local_run import LocalRun, turn
from support.rollout.stage import Oracle


class SlowOracle(Oracle):
    async def sample(self, request):
        await asyncio.sleep(0.01)
        return await super().sample(request)


async def one_turn(t):
    await turn(t)


def test_two_generations_at_once_on_one_conversation_are_refused():
    async def rollout(t):
        t.add(*t.task.messages)
        async with asyncio.TaskGroup() as group:
            group.create_task(t.generate())
            group.create_task(t.generate())

    local = LocalRun("a", policy=SlowOracle())
    local.run(rollout)
    report = local.report()
    assert report.by_status == {"FAILED": 1}
    assert "use t.branch" in report.causes[0].message


def test_what_a_scorer_sees_does_not_depend_on_which_branch_was_faster():
    def rollout_with(delays):
        def arm(index):
            async def run(t):
                await asyncio.sleep(delays[index])
                t.add(f"arm {index}")
                await t.generate()

            return run

        async def rollout(t):
            t.add(*t.task.messages)
            await t.branch(arm(0), arm(1))

        return rollout

    seen = []

    def scorer(view):
        seen.append([turn.step.path for turn in view.turns])
        return 1.0

    for delays in ((0, 0.05), (0.05, 0)):
        LocalRun("a").run(rollout_with(delays), scorer)
    assert seen == [["0.0.0", "0.1.0"]] * 2


def test_a_sample_that_changes_its_task_changes_no_sibling_s():
    async def rollout(t):
        await turn(t)
        t.task.metadata["count"] = t.task.metadata.get("count", 0) + 1
        return float(t.task.metadata["count"])

    local = LocalRun("a", samples=4)
    local.run(rollout)
    rewards = [row["reward"] for row in local.rows(What.SAMPLES)]
    assert rewards == [1.0] * 4


async def test_a_task_that_was_worked_on_cannot_ask_something_else_later():
    journal, oracle = MemoryJournal(), Oracle()
    run = {
        "policy": oracle,
        "renderer": ByteRenderer(),
        "journal": journal,
        "name": "r",
        "seed": 1,
    }
    await holdfast.run(one_turn, tasks=[{"id": "a", "prompt": "old"}], **run)
    with pytest.raises(UsageError, match=r"1 task has been worked on .* \(a\)"):
        await holdfast.run(
            one_turn, tasks=[{"id": "a", "prompt": "new"}], accept_changes=True, **run
        )


async def test_a_generation_that_the_rollout_gave_up_on_is_no_part_of_the_data():
    class Slow(MemoryJournal):
        """Its appends are durable before their waiters learn it."""

        async def append(self, lease, records, *, status=None, settled=None):
            await super().append(lease, records, status=status, settled=settled)
            if not settled:
                await asyncio.sleep(0.05)

    async def rollout(t):
        t.add(*t.task.messages)
        try:
            async with asyncio.timeout(0.02):
                await t.generate()
        except TimeoutError:
            t.add("try again")
        await t.generate()

    journal = Slow()
    await holdfast.run(
        rollout,
        tasks=[{"id": "a", "prompt": "x"}],
        policy=Oracle(),
        renderer=ByteRenderer(),
        journal=journal,
        name="r",
    )
    run = await journal.find_run("r")
    (sample,) = [row async for row in rows(journal, run, What.SAMPLES)]
    assert sum(sample["loss_mask"]) < len(sample["token_ids"])
    assert sample["status"] == Status.COMPLETED.name


async def test_a_rollout_that_never_ends_its_cancellation_is_left_behind(monkeypatch):
    monkeypatch.setattr(contain, "CANCEL_AGAIN_SECONDS", 0.05)
    let_go = False

    async def rollout(t):
        while not let_go:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    settings = holdfast.Settings(attempt_deadline=0.1, max_retry=0)
    group = holdfast.GroupPolicy(refill=0)
    _, report = await holdfast.run(
        rollout, tasks=[{"id": "a", "prompt": "x"}], policy=Oracle(),
        renderer=ByteRenderer(), name="r",
        journal=MemoryJournal(), settings=settings, group=group,
    )  # fmt: skip
    let_go = True
    await asyncio.sleep(0.05)
    assert (report).by_status == {"FAILED": 1}


async def test_a_scorer_that_swallows_its_cancellation_holds_nothing_up(monkeypatch):
    monkeypatch.setattr(contain, "CANCEL_AGAIN_SECONDS", 0.05)
    let_go = False

    async def scorer(view):
        while not let_go:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    scoring = holdfast.ScoringPolicy(tries=1, timeout=0.1)
    _, report = await holdfast.run(
        one_turn, tasks=[{"id": "a", "prompt": "x"}], policy=Oracle(),
        renderer=ByteRenderer(), name="r", scorer=scorer,
        journal=MemoryJournal(), settings=holdfast.Settings(scoring=scoring),
    )  # fmt: skip
    let_go = True
    await asyncio.sleep(0.05)
    assert "ScorerTimeout" in (report).causes[0].root


def test_a_processor_whose_clean_up_raises_takes_nothing_from_the_result():
    class Untidy(holdfast.RolloutProcessor):
        async def rollout(self, t):
            await turn(t)

        async def acleanup(self):
            raise KeyError("the browser was gone")

    local = LocalRun("a")
    ending = local.run(Untidy())
    assert "acleanup" in str(ending.fatal)
    assert local.report().by_status == {"COMPLETED": 1}


def test_idempotency_keys_differ_between_lives():
    keys = []

    async def charge(amount: int, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        return "ok"

    tool = holdfast.Tool(charge, contract="idempotent")

    async def rollout(t):
        await turn(t)
        await t.tool(tool.call(amount=len(keys)), tool)
        if len(set(keys)) == 1:
            raise holdfast.EnvironmentBroken("the world is gone")

    LocalRun("a").run(rollout, max_retry=0)
    assert len(set(keys)) == 2


def test_a_scorer_sees_the_main_conversation_whatever_its_branches_say_last():
    seen = []

    async def rollout(t):
        t.add(*t.task.messages)
        await t.generate()

        async def aside(branch):
            branch.add("aside")
            await branch.generate()

        await t.branch(aside, aside)
        await t.sub(aside)

    def score(view):
        seen.append((view.reply, len(view.messages)))
        return 1.0

    LocalRun("a", policy=Oracle(lambda request: f"said at {request.id}")).run(rollout, score)
    assert seen == [("said at run/a/0/0", 2)]
