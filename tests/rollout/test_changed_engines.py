"""Rollouts whose engines change, are gone, or cannot do what they are asked."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Completion, Draft, Request
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import EngineUnavailable, RowEndpointDown, UsageError
from holdfast.records.message import user
from holdfast.records.sampling import Sampling
from holdfast.records.step import Drafted, Generated, VersionSpan
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors import row_clients
from holdfast.rollout.processors.processor import RolloutConfig
from holdfast.rollout.processors.row_clients import ClientCache
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from holdfast.rollout.tools.tool import tool
from holdfast.testing import FakeEngine
from support.rollout.stage import Oracle, TrajectoryUnderTest, completion

NOWHERE = "http://127.0.0.1:9"


async def once(t: Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate()


# --- drafts of another model


class Model(Oracle):
    """Says `text`; saves the first `kept` tokens of it on the way, and may die after that."""

    def __init__(self, model: str, text: str, *, kept: int = 0, dies: bool = False):
        super().__init__()
        self.model = model
        self.whole = completion(text)
        self.kept = kept
        self.dies = dies

    async def sample(self, request: Request) -> Completion:
        self.requests.append(request)
        start, end = len(request.draft.ids) // 4, self.kept
        if request.partial is not None and end > start:
            ids, logprobs = (
                items[4 * start : 4 * end] for items in (self.whole.ids, self.whole.logprobs)
            )
            await request.partial.save(Draft(start, ids, logprobs, (VersionSpan("v1", 0, end),)))
        if self.dies:
            raise EngineUnavailable("killed")
        return self.whole


async def interrupted(subject: TrajectoryUnderTest) -> None:
    with pytest.raises(EngineUnavailable):
        await subject.perform(once, partial_tokens=3)


@pytest.mark.parametrize("kept", [0, 4, 12], ids=["no draft", "a shorter one", "a longer one"])
async def test_a_draft_of_another_model_is_no_beginning_of_this_ones_reply(kept: int) -> None:
    subject = TrajectoryUnderTest(Model("small", "the small one says this", kept=8, dies=True))
    await interrupted(subject)
    second = subject.oracle = Model("large", "AND THE LARGE ONE THAT", kept=kept)
    await subject.perform(once, partial_tokens=3)
    (request,) = second.requests
    assert request.draft == Draft()
    step = (await subject.history()).steps["0"]
    assert isinstance(step, Generated)
    assert (step.ids, step.logprobs) == (second.whole.ids, second.whole.logprobs)
    assert step.message.text == "AND THE LARGE ONE THAT"
    assert step.drafted == 0


async def test_what_is_recorded_after_another_models_draft_refers_to_none_of_its_tokens() -> None:
    """Also where both models happen to begin alike."""
    subject = TrajectoryUnderTest(Model("small", "the same words", kept=8, dies=True))
    await interrupted(subject)
    second = subject.oracle = Model("large", "the same words, and more")
    await subject.perform(once, partial_tokens=3)
    records = await subject.journal.history((await subject.lease()).id)
    (draft,) = [record for record in records if isinstance(record, Drafted)]
    (step,) = [record for record in records if isinstance(record, Generated)]
    assert draft.model == "small"
    assert (step.drafted, step.ids) == (0, second.whole.ids)


async def test_a_draft_of_the_same_model_is_gone_on_with() -> None:
    subject = TrajectoryUnderTest(Model("small", "the small one says this", kept=8, dies=True))
    await interrupted(subject)
    first = subject.oracle
    second = subject.oracle = Model("small", "the small one says this")
    await subject.perform(once, partial_tokens=3)
    assert isinstance(first, Model)
    assert second.requests[0].draft.ids == first.whole.ids[: 4 * 8]
    step = (await subject.history()).steps["0"]
    assert isinstance(step, Generated)
    assert step.ids == second.whole.ids


# --- tools that the model would never see


@tool(contract="idempotent")
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def offering(t: Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(tools=[add])


class Blind(ByteRenderer):
    """Renders no tools, and says so."""

    shows_tools = False


async def performed(subject: TrajectoryUnderTest, renderer: ByteRenderer) -> None:
    session = await subject.session()
    session.speaker = msgspec.structs.replace(session.speaker, renderer=renderer)
    await session.log.begin_anew_if_needed()
    await offering(Rollout(session))


def test_tools_that_the_template_does_not_show_are_refused_before_anything_is_asked() -> None:
    subject = TrajectoryUnderTest()
    with pytest.raises(UsageError, match="describe them in a message") as caught:
        asyncio.run(performed(subject, Blind()))
    assert "does not show tools" in str(caught.value)
    assert subject.oracle.requests == []


def test_tools_that_the_renderer_shows_are_offered() -> None:
    subject = TrajectoryUnderTest()
    asyncio.run(performed(subject, ByteRenderer()))
    assert len(subject.oracle.requests) == 1


@pytest.mark.parametrize("shows", [True, False])
def test_a_template_shows_tools_when_it_has_them(shows: bool, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra `renderers`")
    import shutil
    from importlib.resources import files

    from holdfast.policy.rendering.select import renderer_for

    folder = tmp_path / "model"
    shutil.copytree(Path(str(files("holdfast.embedded"))) / "tiny", folder)
    if not shows:
        plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        opening = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        (folder / "chat_template.jinja").write_text(plain + opening)
    assert getattr(renderer_for(folder), "shows_tools", None) is shows


# --- endpoints that only rows name


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The model of every check of an engine, in order; they really happen, and often."""
    seen: list[str] = []
    check = EnginePolicy.check

    async def checked(self: EnginePolicy) -> None:
        seen.append(self.model)
        await check(self)

    monkeypatch.setattr(EnginePolicy, "check", checked)
    monkeypatch.setattr(row_clients, "CHECK_AGAIN_SECONDS", 0.02)
    return seen


def row(name: str, **params: object) -> Task:
    return Task(id=name, messages=(user(f"do {name}"),), metadata={"completion_params": params})


async def rows(
    processor: TrainingRolloutProcessor, *tasks: Task, policy: object = None
) -> list[object]:
    """What became of each row; all run at once."""
    plays = [TrajectoryUnderTest(policy or Oracle(), task=task) for task in tasks]  # type: ignore[arg-type]
    sessions = {subject.task.id: await subject.session() for subject in plays}
    config = RolloutConfig("oracle", Sampling(), lambda task: Rollout(sessions[task.id]))
    async with asyncio.timeout(120):
        return list(await asyncio.gather(*processor(tasks, config), return_exceptions=True))


async def test_rows_wait_together_for_their_endpoint_and_are_told_together(
    checks: list[str],
) -> None:
    processor = TrainingRolloutProcessor(retry=RetryPolicy(tries=1), patience=2.0)
    try:
        await processor.setup()
        down = [row(name, base_url=NOWHERE, model="m") for name in "abc"]
        ended = await rows(processor, *down, row("d"))
        count = len(checks)
        later = await rows(processor, row("e", base_url=NOWHERE, model="m"))
    finally:
        await processor.acleanup()
    assert count > 2, "it is waited for"
    assert len(checks) == count, "one patience for all rows, also for those that come later"
    for end in (*ended[:3], *later):
        assert isinstance(end, RowEndpointDown), end
        assert not end.retryable
    assert ended[3] is None, "the others go on"


def test_an_endpoint_that_comes_within_patience_costs_no_row(checks: list[str]) -> None:
    async def main() -> list[object]:
        with FakeEngine(mean_length=6) as engine:
            engine.kill()
            processor = TrainingRolloutProcessor(retry=RetryPolicy(tries=1), patience=600.0)
            task = row("a", base_url=engine.url, model=engine.model)
            running = asyncio.create_task(rows(processor, task))
            while len(checks) < 3:
                await asyncio.sleep(0.01)
            engine.start()
            try:
                return await running
            finally:
                await processor.acleanup()

    assert asyncio.run(main()) == [None]


def test_a_rows_endpoint_is_waited_for_as_long_as_the_run_waits(checks: list[str]) -> None:
    async def main() -> list[object]:
        own = EnginePolicy(NOWHERE, "own", patience=0.1, retry=RetryPolicy(tries=1))
        processor = TrainingRolloutProcessor()
        try:
            return await rows(processor, row("a", base_url=NOWHERE, model="m"), policy=own)
        finally:
            await processor.acleanup()
            await own.aclose()

    (end,) = asyncio.run(main())
    assert isinstance(end, RowEndpointDown), end
    assert re.search("does not answer", str(end))
    assert set(checks) == {"m"}


async def test_a_sibling_is_as_patient_as_its_policy_unless_told_otherwise() -> None:
    own = EnginePolicy(NOWHERE, "own", patience=17.0)
    inherits, chosen = ClientCache(), ClientCache(patience=3.0)
    patiences = [item.get((NOWHERE,), "m", own=own).policy.patience for item in (inherits, chosen)]
    for entry in (inherits, chosen, own):
        await entry.aclose()
    assert (patiences) == [17.0, 3.0]
