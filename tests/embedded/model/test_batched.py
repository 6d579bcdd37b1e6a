"""The same tokens and bit-identical logprobs, whatever else the engine is doing."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast.embedded.model import attention
from holdfast.embedded.model.load import LoadedModel, load
from holdfast.embedded.scheduler import slots
from holdfast.embedded.scheduler.engine import DecodeEngine, PauseMode
from holdfast.embedded.scheduler.generation import TokenSampling
from support.embedded.client import AwaitedGeneration, ask, sampling
from support.embedded.prompts import prompt


def crowd(count: int, *, seed: int) -> list[AwaitedGeneration]:
    """Others: of all lengths and samplings."""
    chance = random.Random(seed)
    return [
        AwaitedGeneration(
            prompt(chance.choice([1, 3, 40, 63, 64, 65, 130]), seed=seed + i),
            sampling(
                seed=i,
                max_tokens=chance.randrange(1, 30),
                temperature=chance.choice([0.0, 0.7, 1.0, 1.5]),
                top_p=chance.choice([1.0, 0.9, 0.5]),
            ),
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def tried(
    request: pytest.FixtureRequest, shared_engine: DecodeEngine, llama_folder: Path
) -> Iterator[DecodeEngine]:
    if request.param == "qwen2":
        yield shared_engine
        return
    with DecodeEngine(load(llama_folder)) as engine:
        yield engine


@pytest.fixture(params=["cold", "kept"])
def cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both: with everything computed anew, and with what the cache still holds or others share."""
    if request.param == "cold":
        monkeypatch.setattr(slots, "common_prefix", lambda *_: 0)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize(
    ("length", "changes"),
    [(1, {}), (100, {"temperature": 0.0}), (100, {"temperature": 0.8, "top_p": 0.9})],
    ids=["plain", "greedy", "nucleus"],
)
def test_alone_and_in_a_batch_of_32(
    tried: DecodeEngine, length: int, changes: dict[str, float]
) -> None:
    alone = ask(tried, prompt(length), **changes).result
    others = crowd(31, seed=length)
    mine = AwaitedGeneration(prompt(length), sampling(**changes))
    tried.submit(*others[:15], mine, *others[15:])
    assert mine.result == alone
    for other in others:
        other.wait()


@pytest.mark.usefixtures("cold")
def test_joining_late_and_being_joined(tried: DecodeEngine) -> None:
    alone = ask(tried, prompt(50)).result
    first = crowd(20, seed=1)
    long = AwaitedGeneration(prompt(9), sampling(max_tokens=60), stream=True)
    tried.submit(*first, long)
    for _ in range(5):
        long.next()
    mine = ask(tried, prompt(50))
    later = crowd(20, seed=2)
    tried.submit(*later)
    assert mine.result == alone
    for item in (*first, *later, long):
        item.wait()


@pytest.mark.usefixtures("cold")
def test_sent_again_from_any_point(tried: DecodeEngine) -> None:
    """An interrupted generation goes on where it stopped, decoded tokens read in as a prompt."""
    whole = ask(tried, prompt(50), max_tokens=24)
    expected = whole.result
    for kept in range(1, 24):
        rest = ask(tried, prompt(50) + whole.tokens[:kept], max_tokens=24 - kept)
        assert rest.result == expected[kept:], f"after {kept} tokens"


@pytest.mark.usefixtures("cold")
def test_in_every_slot(tried: DecodeEngine) -> None:
    alone = ask(tried, prompt(70)).result
    same = [AwaitedGeneration(prompt(70), sampling()) for _ in range(32)]
    tried.submit(*same)
    assert [item.result for item in same] == [alone] * 32
    assert len({item.slot for item in same}) == 32


def test_with_fewer_slots_and_without_other_widths(
    model: LoadedModel, engine: DecodeEngine
) -> None:
    """The numbers of an engine are not those of its settings."""
    expected = ask(engine, prompt(90)).result
    with DecodeEngine(model, max_batch=3) as small:
        assert ask(small, prompt(90)).result == expected
    with DecodeEngine(model, max_batch=16) as narrow:
        narrow._passes.widths = [narrow._passes.narrow]
        others = [ask(narrow, item.ids[: item.prompt_length]) for item in crowd(12, seed=5)]
        assert ask(narrow, prompt(90)).result == expected
        for other in others:
            other.wait()


def test_what_a_slot_still_holds_is_used_and_changes_nothing(model: LoadedModel) -> None:
    with DecodeEngine(model, max_batch=2) as fresh:
        expected = ask(fresh, prompt(150, seed=3)).result
    with DecodeEngine(model, max_batch=2) as used:
        for length in (80, 150, 151):  # The beginning of it, all of it, and a longer one.
            ask(used, prompt(150, seed=3) + prompt(9, seed=length), max_tokens=3).wait()
            assert ask(used, prompt(150, seed=3)).result == expected
        ask(used, prompt(150, seed=4)).wait()
        before = used.statistics.row_sum
        mine = ask(used, prompt(150, seed=3))
        assert mine.result == expected
        assert used.statistics.row_sum - before == 24, "one token of the prompt, 23 sampled ones"


def test_what_a_free_slot_holds_survives_the_work_of_others(model: LoadedModel) -> None:
    with DecodeEngine(model, max_batch=4) as engine:
        expected = ask(engine, prompt(150, seed=3)).result
        others = [AwaitedGeneration(prompt(150, seed=i), sampling()) for i in (4, 5, 6)]
        engine.submit(*others)
        for other in others:
            other.wait()
        assert ask(engine, prompt(150, seed=3)).result == expected


def test_a_prompt_is_read_once_for_all_who_ask_it_together(model: LoadedModel) -> None:
    with DecodeEngine(model, max_batch=8) as engine:
        expected = [ask(engine, prompt(200), seed=seed).result for seed in range(8)]
        ask(engine, prompt(150, seed=1), max_tokens=1).wait()
    with DecodeEngine(model, max_batch=8) as engine:
        group = [AwaitedGeneration(prompt(200), sampling(seed=seed)) for seed in range(8)]
        engine.submit(*group)
        assert [item.result for item in group] == expected
        assert engine.statistics.row_sum == 200 + 7 + 8 * 23, "the last token is each one's own"


def test_a_leader_that_leaves_hands_over_what_it_has(model: LoadedModel) -> None:
    with DecodeEngine(model, max_batch=4) as engine:
        expected = ask(engine, prompt(900), max_tokens=5).result
    with DecodeEngine(model, max_batch=4) as engine:
        engine.pause(PauseMode.KEEP).result(60)
        leader = ask(engine, prompt(900))
        followers = [ask(engine, prompt(900), max_tokens=5) for _ in range(3)]
        engine.resume()
        engine.cancel(leader)
        assert [follower.result for follower in followers] == [expected] * 3


@pytest.mark.usefixtures("cold")
def test_random_interleavings(engine: DecodeEngine) -> None:
    """Whatever comes and goes, each request's result is the one that it has alone."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = crowd(12, seed=seed)
    expected = []
    for kind in kinds:
        alone = AwaitedGeneration(kind.ids, kind.sampling)
        engine.submit(alone)
        expected.append(alone.result)
    requests: list[tuple[int, AwaitedGeneration]] = []
    while len(requests) < 50:
        for which in chance.choices(range(len(kinds)), k=chance.randrange(1, 12)):
            kept = chance.randrange(kinds[which].sampling.max_tokens)
            ids = kinds[which].ids[:] + [token for token, _ in expected[which][:kept]]
            limits = sampling_with(kinds[which].sampling, kinds[which].sampling.max_tokens - kept)
            item = AwaitedGeneration(ids, limits, stream=True)
            engine.submit(item)
            requests.append((kept, item))
            item.which = which  # type: ignore[attr-defined]
        chance.choice(requests)[1].wait()
        gone = AwaitedGeneration(prompt(70, seed=len(requests)), sampling(max_tokens=100))
        engine.submit(gone)
        engine.cancel(gone)
    for kept, item in requests:
        assert item.result == expected[item.which][kept:], f"seed {seed}"  # type: ignore[attr-defined]


def sampling_with(base: TokenSampling, max_tokens: int) -> TokenSampling:
    from msgspec.structs import replace

    return replace(base, max_tokens=max_tokens)


@pytest.mark.usefixtures("cold")
def test_logprobs_are_those_of_transformers(tried: DecodeEngine) -> None:
    answer = ask(tried, prompt(100), max_tokens=60)
    answer.wait()
    network = tried.model.network
    with torch.inference_mode():
        network.set_attn_implementation("eager")
        try:
            logits = network(input_ids=torch.tensor([answer.ids])).logits[0]
        finally:
            network.set_attn_implementation(attention.NAME)
    theirs = logits.double().log_softmax(-1)
    for place, (token, logprob) in enumerate(answer.result, start=99):
        assert float(theirs[place, token]) == pytest.approx(logprob, abs=1e-4)
