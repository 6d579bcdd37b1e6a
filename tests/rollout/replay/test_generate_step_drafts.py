"""Token-level resume, as the durable context sees it: drafts on the way, one generation at last."""

import pytest

from holdfast.policy.policy import Completion, Draft, Request
from holdfast.records.encoding.tokens import count, pack_ids, pack_logprobs, unpack_ids
from holdfast.records.errors import EngineUnavailable, Truncated
from holdfast.records.samples.sample import samples_of
from holdfast.records.step import Drafted, Finished, Generated, VersionSpan
from holdfast.records.trajectory import Status
from holdfast.rollout.context import Rollout
from support.rollout.stage import Oracle, TrajectoryUnderTest, completion

TEXT = "a long answer that comes in parts"
WHOLE = completion(TEXT)


def part(start: int, end: int) -> Draft:
    return Draft(
        start,
        WHOLE.ids[4 * start : 4 * end],
        WHOLE.logprobs[4 * start : 4 * end],
        (VersionSpan("v1", 0, end),),
    )


class Streaming(Oracle):
    """Saves `parts` of the answer on the way; then gives all of it, or breaks off."""

    def __init__(self, *parts: tuple[int, int], dies: bool = False):
        super().__init__()
        self.parts = parts
        self.dies = dies

    async def sample(self, request: Request) -> Completion:
        self.requests.append(request)
        if request.partial is not None:
            for start, end in self.parts:
                await request.partial.save(part(start, end))
        if self.dies:
            raise EngineUnavailable("killed")
        return WHOLE


async def solve(t: Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()
    await t.generate()


async def once(t: Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()


async def _records(subject: TrajectoryUnderTest) -> list[object]:
    return await subject.journal.history((await subject.lease()).id)


async def test_a_generation_that_was_interrupted_goes_on_from_its_last_durable_token() -> None:
    subject = TrajectoryUnderTest(Streaming((0, 8), (8, 15), dies=True))
    with pytest.raises(EngineUnavailable):
        await subject.perform(once, partial_tokens=7)
    subject.oracle = Streaming((15, 20))
    await subject.perform(once, partial_tokens=7)
    first = subject.oracle.requests[0]
    assert first.draft.ids == WHOLE.ids[: 4 * 15]
    assert first.draft.logprobs == WHOLE.logprobs[: 4 * 15]
    assert first.draft.versions == (VersionSpan("v1", 0, 15),)
    history = await subject.history()
    step = history.steps["0"]
    assert isinstance(step, Generated)
    assert (step.ids, step.logprobs, step.message.text) == (WHOLE.ids, WHOLE.logprobs, TEXT)
    assert not history.drafts


async def test_tokens_that_a_draft_holds_are_not_stored_again() -> None:
    subject = TrajectoryUnderTest(Streaming((0, 8), (8, 20)))
    await subject.perform(solve, partial_tokens=7)
    records = await _records(subject)
    tokens = [count(record.ids) for record in records if isinstance(record, Drafted | Generated)]
    assert tokens == [8, 12, count(WHOLE.ids) - 20] * 2


async def test_a_trajectory_with_drafts_gives_the_samples_of_one_without() -> None:
    async def samples(oracle: Oracle, partial_tokens: int) -> list[object]:
        subject = TrajectoryUnderTest(oracle)
        await subject.perform(solve, partial_tokens=partial_tokens)
        history = await subject.history()
        history.take(Finished(Status.COMPLETED, "", 1.0, 0.0))
        return samples_of(history, task="t", group="t", sample=0)

    plain = await samples(Oracle(lambda request: TEXT), 0)
    assert await samples(Streaming((0, 3), (3, 4), (4, 30)), 1) == plain


async def test_a_draft_of_another_prompt_is_not_gone_on_with() -> None:
    async def other(t: Rollout) -> None:
        t.add("something else")
        await t.generate()

    subject = TrajectoryUnderTest(Streaming((0, 8), dies=True))
    with pytest.raises(EngineUnavailable):
        await subject.perform(solve, partial_tokens=7)
    subject.oracle = Streaming((0, 5))
    await subject.perform(other, partial_tokens=7)
    assert subject.oracle.requests[0].draft == Draft()
    step = (await subject.history()).steps["0"]
    assert isinstance(step, Generated)
    assert step.ids == WHOLE.ids


async def test_nothing_is_streamed_unless_it_is_asked_for() -> None:
    subject = TrajectoryUnderTest(Streaming((0, 8)))
    await subject.perform(solve)
    assert [request.partial for request in subject.oracle.requests] == [None, None]
    assert not any(isinstance(record, Drafted) for record in await _records(subject))


async def test_a_generation_that_ran_into_its_deadline_truncates_live_and_on_replay() -> None:
    late = Completion(
        pack_ids(unpack_ids(WHOLE.ids)[:5]),
        pack_logprobs([-0.5] * 5),
        "deadline",
        (VersionSpan("v1", 0, 5),),
        "oracle",
        1,
        0.0,
    )

    class Late(Oracle):
        async def sample(self, request: Request) -> Completion:
            self.requests.append(request)
            return late

    subject = TrajectoryUnderTest(Late())
    for _ in range(2):
        with pytest.raises(Truncated, match="generation_deadline"):
            await subject.perform(solve)
    assert len(subject.oracle.requests) == 1
    step = (await subject.history()).steps["0"]
    assert isinstance(step, Generated)
    assert count(step.ids) == 5
