"""Time in which an engine is down counts against no scorer's deadline, and fails nothing. What
engines used is part of the scores, whatever code made these of their answers."""

import asyncio

import pytest

from holdfast.engine.scoring.engine_use import engine_use, track_engine_use
from holdfast.engine.scoring.scorer import Score, Scorer, group_scorer
from holdfast.records.errors import EndpointDown, PolicyRefused, ScorerTimeout
from holdfast.records.usage import Usage, add_usages, judge_usage
from support.engine.local_run import LocalRun, turn
from support.rollout.stage import Oracle


class Engine:
    seconds_down = 0.0


async def one_turn(t):
    await turn(t)


def test_outages_count_from_when_an_engine_is_first_asked():
    engine, other = Engine(), Engine()
    engine.seconds_down = 100.0
    with track_engine_use(5.0) as waits:
        assert engine_use() is waits
        waits.count(engine)
        engine.seconds_down += 2
        waits.count(engine)
        waits.count(other)
        other.seconds_down += 1
        assert (waits.patience, waits.seconds) == (5.0, 3.0)
    assert engine_use() is None


def down_for(seconds: float):
    """A scorer that takes longer than its deadline, while its engine is down for so long."""

    async def scorer(view):
        engine, waits = Engine(), engine_use()
        assert waits is not None
        waits.count(engine)
        engine.seconds_down = seconds
        await asyncio.sleep(0.2)
        return 1.0

    return scorer


def score(function, seconds: float, **more):
    return asyncio.run(Scorer(function).score([object()], seconds=seconds, **more))


def test_a_deadline_moves_by_the_time_of_an_outage():
    added = []
    (result,) = score(down_for(1000.0), 0.02, on_extended=added.append)
    assert (result.reward, added) == (1.0, [1000.0])


def test_a_deadline_without_an_outage_stays():
    with pytest.raises(ScorerTimeout, match=r"within 0\.02 s"):
        score(down_for(0.0), 0.02)


@pytest.mark.parametrize("error", [EndpointDown("it is down"), PolicyRefused("no such key")])
def test_an_engine_that_cannot_be_used_stops_the_run_and_fails_nothing(error):
    def scorer(view):
        raise error

    local = LocalRun("a", "b")
    ending = local.run(one_turn, scorer)
    assert ending.fatal is error
    assert {settled for _, settled in local.statuses().values()} == {False}
    assert not any(history.scoring_failures for history in local.histories().values())
    local.run(one_turn, lambda view: 1.0)
    assert set(local.statuses().values()) == {("COMPLETED", True)}


class HoldsB(Oracle):
    """The reply to task b is on its way until the run is stopped."""

    local: LocalRun

    async def sample(self, request):
        if "/b/" in request.id:
            await self.local.stop.event.wait()
        return await super().sample(request)


def test_a_reply_that_is_on_its_way_then_is_kept():
    failed = []

    def scorer(view):
        failed.append(view.key.task)
        raise EndpointDown("it is down")

    policy = HoldsB()
    policy.local = local = LocalRun("a", "b", policy=policy)
    local.run(one_turn, scorer)
    assert failed == ["a"]
    assert local.statuses() == {"a/0": ("COMPLETED", False), "b/0": ("COMPLETED", False)}


def test_an_error_that_hides_it_changes_nothing():
    down = EndpointDown("it is down")

    async def scorer(view):
        waits = engine_use()
        assert waits is not None
        waits.unusable = down
        raise ExceptionGroup("several", [down])

    with pytest.raises(EndpointDown) as caught:
        score(scorer, 30.0)
    assert caught.value is down


def test_a_run_has_its_patience_for_them():
    seen = []

    def scorer(view):
        waits = engine_use()
        assert waits is not None
        seen.append(waits.patience)
        return 1.0

    LocalRun().run(one_turn, scorer, patience=7.0)
    assert seen == [7.0]


# --- tokens


JUDGED = {"judge": {"model": "wise", "usage": Usage(4, 2).as_fields()}}


def asks(*answers: object, group: bool = False):
    """A scorer that asks two judges, and returns these."""

    async def scorer(view):
        use = engine_use()
        assert use is not None
        use.add("wise", Usage(4, 2))
        use.add("wise", Usage(4, 2))
        use.add("kind", Usage(3, 1))
        return list(answers) if group else answers[0]

    return group_scorer(scorer) if group else scorer


def usages(function, views: int = 1) -> list[object]:
    scores = asyncio.run(Scorer(function).score([object() for _ in range(views)]))
    return [judge_usage(score.details) for score in scores]


def test_a_number_that_is_made_of_verdicts_has_their_usage():
    everything = {"wise": Usage(8, 4), "kind": Usage(3, 1)}
    assert usages(asks(0.5)) == [everything]
    assert usages(asks(None)) == [everything]
    assert usages(asks(Score(0.5, details=JUDGED))) == [everything], "nothing is counted twice"


def test_a_group_has_the_usage_in_parts_of_which_none_is_lost():
    first, second = usages(asks(1.0, Score(0.5, details=JUDGED), group=True), views=2)
    assert add_usages(first, second) == {"wise": Usage(8, 4), "kind": Usage(3, 1)}


def test_details_of_the_users_stay_and_a_scorer_that_asks_nobody_gets_none():
    (score,) = asyncio.run(Scorer(asks(Score(1.0, details={"own": 1}))).score([object()]))
    assert score.details["own"] == 1
    (score,) = asyncio.run(Scorer(lambda view: 1.0).score([object()]))
    assert score.details == {}
