"""A run in short: no log is read, and what changes is noticed."""

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.history import History
from holdfast.records.samples.summary import summarize
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status
from holdfast.view.reading.digest import RunDigest
from holdfast.view.reading.numbers import moving_mean, numbers_of, reward_bins
from support.records import generated, ready, started


class CountingJournal(MemoryJournal):
    logs = 0

    async def history(self, trajectory):
        self.logs += 1
        return await super().history(trajectory)

    async def summaries(self, run, *, ordinals=None):
        self.logs += 1
        async for each in super().summaries(run, ordinals=ordinals):
            yield each


async def settle(journal, lease, reward):
    records = [started(), generated("0"), Finished(Status.COMPLETED, "", reward, 2.0)]
    lease.summary = summarize(History(records))
    await journal.append(lease, records, status=Status.COMPLETED, settled=True)


async def test_a_digest_follows_a_run_and_reads_no_log():
    journal = CountingJournal()
    run, _, claims = await ready(journal, *"abcdefgh", samples=2)
    digest = RunDigest()
    await digest.refresh(journal, run)
    before = numbers_of(digest)
    assert (before.trajectories, before.settled, before.mean) == (16, 0, None)
    for number, claim in enumerate(claims):
        for lease in claim.open:
            await settle(journal, lease, float(number % 2))
        version = digest.version
        await digest.refresh(journal, run)
        assert digest.version > version
        assert numbers_of(digest).settled == 2 * (number + 1)
    assert journal.logs == 0
    numbers = numbers_of(digest)
    assert (numbers.mean, numbers.by_status, numbers.tokens) == (0.5, {"COMPLETED": 16}, 48)
    version = digest.version
    await digest.refresh(journal, run)
    assert digest.version == version


def test_a_few_rewards_have_bars_of_their_own_and_many_share_bars():
    assert [row[:2] for row in reward_bins([0.0, 1.0, 1.0])] == [("0", 1), ("1", 2)]
    rewards = [number / 100 for number in range(101)]
    bins = reward_bins(rewards)
    assert sum(count for _, count, _, _ in bins) == 101
    assert (bins[0][2], bins[-1][3]) == (0.0, 1.0)


def test_a_moving_mean_has_few_points_and_the_same_sum():
    assert moving_mean([0.0, 1.0, 1.0, 1.0], points=2) == [(2.0, 0.5), (4.0, 1.0)]
    assert moving_mean([], points=5) == []
