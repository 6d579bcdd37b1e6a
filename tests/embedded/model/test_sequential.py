"""Models whose sequences cannot share a pass: served all the same, each sequence by itself."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from holdfast.embedded import EmbeddedEngine
from holdfast.embedded.model import weights
from holdfast.embedded.model.load import load
from holdfast.embedded.model.sequential import STRIDE, SoloPasses
from holdfast.embedded.scheduler import slots
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.records.errors import UsageError
from support.embedded import odd_models, tiny_models
from support.embedded.client import AwaitedGeneration, ask, sampling, serving
from support.embedded.prompts import prompt

SHORT = {"max_tokens": 8}


@pytest.fixture(scope="module", params=odd_models.FAMILIES, ids=lambda f: f.__name__)
def odd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DecodeEngine]:
    folder = odd_models.saved(request.param, tmp_path_factory.mktemp(request.param.__name__))
    with DecodeEngine(load(folder), max_batch=4, version="v1") as engine:
        assert passes(engine).stride == odd_models.STRIDES.get(request.param, STRIDE)
        yield engine


@pytest.fixture
def mixtral(tmp_path: Path) -> Iterator[DecodeEngine]:
    folder = odd_models.saved(odd_models.mixtral, tmp_path / "mixtral")
    with DecodeEngine(load(folder), max_batch=4, version="v1") as engine:
        yield engine


def passes(engine: DecodeEngine) -> SoloPasses:
    assert isinstance(engine._passes, SoloPasses)
    return engine._passes


def test_the_same_alone_and_in_company(odd: DecodeEngine) -> None:
    alone = ask(odd, prompt(36), **SHORT).result
    others = [AwaitedGeneration(prompt(n, seed=n), sampling(max_tokens=n)) for n in (1, 9, 20)]
    same = [AwaitedGeneration(prompt(36), sampling(**SHORT)) for _ in range(4)]
    odd.submit(*others[:2], *same, *others[2:])
    assert [item.result for item in same] == [alone] * 4
    for other in others:
        other.wait()
    assert ask(odd, prompt(36), seed=8, **SHORT).result != alone, "seeds make a difference"


def test_sent_again_from_any_point(odd: DecodeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """From what is still held, from less of it, and with everything read in anew."""
    whole = ask(odd, prompt(36), max_tokens=10)
    expected = whole.result
    for length in (9, 1, 4, 4):
        rest = ask(odd, prompt(36) + whole.tokens[:length], max_tokens=10 - length)
        assert rest.result == expected[length:], f"after {length} tokens"
        if length == 1:
            monkeypatch.setattr(slots, "common_prefix", lambda *_: 0)


def test_after_a_restart_and_from_half_of_anothers_prompt(odd: DecodeEngine) -> None:
    expected = ask(odd, prompt(36), **SHORT).result
    ask(odd, prompt(36)[:25] + prompt(9, seed=3), **SHORT).wait()
    with DecodeEngine(load(odd.model.path), max_batch=1) as again:
        ask(again, [*prompt(36)[:30], 5, 6], **SHORT).wait()
        assert ask(again, prompt(36), **SHORT).result == expected
    assert ask(odd, prompt(36), **SHORT).result == expected


def test_logprobs_are_those_of_transformers(odd: DecodeEngine) -> None:
    from transformers import AutoModelForCausalLM

    request = ask(odd, prompt(36), **SHORT).wait()
    network = AutoModelForCausalLM.from_pretrained(odd.model.path, dtype=torch.float32)
    with torch.inference_mode():
        logits = network.eval()(input_ids=torch.tensor([request.ids]), use_cache=False).logits[0]
    theirs = logits.double().log_softmax(-1)
    for place, (token, logprob) in enumerate(request.result, start=35):
        assert float(theirs[place, token]) == pytest.approx(logprob, abs=1e-4)


def counted(engine: DecodeEngine, work: Callable[[], object]) -> int:
    """How many tokens the network has computed meanwhile."""
    seen: list[int] = []

    def count(module: Any, inputs: Any, options: dict[str, Any]) -> None:
        seen.append(options["input_ids"].numel())

    handle = engine.model.network.register_forward_pre_hook(count, with_kwargs=True)
    work()
    handle.remove()
    return sum(seen)


def test_a_group_reads_its_prompt_once_and_a_next_turn_only_what_is_new(odd: DecodeEngine) -> None:
    mine = prompt(60, seed=99)
    group = [AwaitedGeneration(mine, sampling(max_tokens=5, seed=i)) for i in range(4)]

    def first() -> None:
        odd.submit(*group)
        for item in group:
            item.wait()

    computed = counted(odd, first)
    turn = group[2].ids + prompt(7, seed=5)
    later = counted(odd, lambda: ask(odd, turn, max_tokens=3).wait())
    if stride := passes(odd).stride:
        # The block that was filled by decoding is read again, as a whole.
        again = STRIDE if stride > 1 else 0
        assert (computed, later) == (59 + 4 * 5, again + 1 + 7 + 2)
    else:
        assert (computed, later) == (4 * sum(range(60, 65)), 72 + 73 + 74), "all, for every token"


def test_random_interleavings(mixtral: DecodeEngine) -> None:
    """Whatever comes, goes and goes on, each request's result is the one that it has alone."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kinds = [prompt(60)[: 7 * n] + prompt(4 * n, seed=n) for n in range(1, 7)]
    expected = [ask(mixtral, ids, max_tokens=20).result for ids in kinds]
    requests: list[tuple[int, int, AwaitedGeneration]] = []
    for _ in range(30):
        which, kept = chance.randrange(len(kinds)), chance.randrange(20)
        ids = kinds[which] + [token for token, _ in expected[which][:kept]]
        requests.append((which, kept, ask(mixtral, ids, max_tokens=20 - kept)))
        if chance.random() < 0.3:
            mixtral.cancel(ask(mixtral, kinds[which], max_tokens=40))
        if chance.random() < 0.3:
            requests[-1][2].wait()
    for which, kept, item in requests:
        assert item.result == expected[which][kept:], f"seed {seed}"


def test_new_weights_from_disk_though_files_name_them_otherwise(
    mixtral: DecodeEngine, tmp_path: Path
) -> None:
    other = odd_models.saved(odd_models.mixtral, tmp_path / "other", seed=1)
    assert set(weights.read(other)) - set(mixtral.model.network.state_dict()), "experts are apart"
    before = ask(mixtral, prompt(30), **SHORT).result

    async def main() -> list[Any]:
        async with serving(mixtral) as client:
            update = {"path": str(other), "version": "v2"}
            done = await client.ok("/update_weights_from_disk", update)
            return [done, await client.get("/v1/models")]

    done, (_, models) = asyncio.run(main())
    assert done["success"]
    assert "mixture of experts" in msgspec.json.decode(models)["data"][0]["solo"]
    after = ask(mixtral, prompt(30), **SHORT)
    with DecodeEngine(load(other), max_batch=2) as fresh:
        assert ask(fresh, prompt(30), **SHORT).result == after.result != before
    assert [span.version for span in after.spans] == ["v2"]


@pytest.mark.parametrize("how", ["lacking", "unknown"])
def test_a_mixture_that_does_not_fit_changes_nothing(
    mixtral: DecodeEngine, tmp_path: Path, how: str
) -> None:
    from safetensors.torch import load_file, save_file

    bad = odd_models.saved(odd_models.mixtral, tmp_path / "bad", seed=1)
    state = load_file(bad / "model.safetensors")
    name = next(item for item in sorted(state) if "experts" in item)
    tensor = state.pop(name) if how == "lacking" else state[name].clone()
    if how == "unknown":
        state["model.layers.7.strange.weight"] = tensor
    save_file(state, bad / "model.safetensors", metadata={"format": "pt"})
    before = ask(mixtral, prompt(30), **SHORT).result
    with pytest.raises(UsageError):
        mixtral.update_weights(weights.read_converted(mixtral.model.network, bad), "v2")
    assert ask(mixtral, prompt(30), **SHORT).result == before
    assert mixtral.version == "v1"


@pytest.mark.parametrize("reset", [False, True])
def test_weights_are_switched_in_flight(mixtral: DecodeEngine, tmp_path: Path, reset: bool) -> None:
    other = load(odd_models.saved(odd_models.mixtral, tmp_path / "other", seed=1))
    request = AwaitedGeneration(prompt(30), sampling(max_tokens=40), stream=True)
    mixtral.submit(request)
    for _ in range(5):
        request.next()
    mixtral.update_weights(other.network.state_dict(), "v2", reset_cache=reset)
    cut = request.wait().spans[0].end
    with DecodeEngine(other, max_batch=2) as fresh:
        rest = ask(fresh, request.ids[: 30 + cut], max_tokens=40 - cut).result
        assert (request.result[cut:] == rest) is reset, "what is remembered is kept, or made anew"
        assert ask(mixtral, prompt(30)).result == ask(fresh, prompt(30)).result


def test_numbers_that_are_not_finite_fail_their_request_and_are_forgotten(
    mixtral: DecodeEngine,
) -> None:
    expected = ask(mixtral, prompt(30), **SHORT).result
    good = {name: field.clone() for name, field in mixtral.model.network.state_dict().items()}
    head = {"lm_head.weight": 3e38, "model.norm.weight": 1e3}
    huge = {
        name: torch.full_like(item, head[name]) if name in head else item
        for name, item in good.items()
    }
    mixtral.update_weights(huge, "huge")
    assert ask(mixtral, prompt(30), **SHORT).wait().finish_reason == "error"
    mixtral.update_weights(good, "good")
    assert [ask(mixtral, prompt(30), **SHORT).result for _ in range(5)] == [expected] * 5


def test_it_is_said_once_when_it_starts(tmp_path: Path) -> None:
    folder = odd_models.saved(odd_models.mixtral, tmp_path / "mixtral")
    log = tmp_path / "serve.log"
    reported: list[str] = []
    with EmbeddedEngine(folder, log=log, report=reported.append):
        text = log.read_text()
    (line,) = text.splitlines()
    assert line.startswith("holdfast: mixtral runs one sequence at a time, and slower for it: ")
    assert "mixture of experts" in line
    changed = line.replace("holdfast: ", "the embedded engine: ", 1)
    assert [item for item in reported if "so far" not in item] == [changed]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_move_with_the_length_are_computed_anew(tmp_path: Path, kind: str) -> None:
    factors = {"long_factor": [4.0] * 8, "short_factor": [1.0] * 8} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **factors,
            "original_max_position_embeddings": 32}  # fmt: skip
    folder = tiny_models.qwen2(tmp_path, rope_parameters=rope, max_position_embeddings=128)
    with DecodeEngine(load(folder), max_batch=4) as engine:
        assert "with --max-model-len 32 it does not" in engine.model.why_solo
        assert passes(engine).stride == 0
        whole = ask(engine, prompt(28), max_tokens=12)
        long = ask(engine, prompt(100))
        rest = ask(engine, prompt(28) + whole.wait().tokens[:6], max_tokens=6)
        assert rest.result == whole.result[6:]
        long.wait()
    assert not load(folder, max_length=32).solo


def test_a_model_that_names_no_length_may_be_given_any(tmp_path: Path) -> None:
    folder = odd_models.saved(odd_models.mamba, tmp_path)
    assert load(folder).max_length == 2048
    assert load(folder, max_length=5000).max_length == 5000


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (odd_models.t5, "encoder-decoder"),
        (odd_models.vit, "is not a causal LM"),
        (odd_models.bert, "later tokens show"),
        (odd_models.reformer, "do not give the same numbers twice"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_what_is_no_causal_lm_is_refused_in_one_line(
    made: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    folder = odd_models.plainly_saved(made, tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        DecodeEngine(load(folder), max_batch=2).start()
    assert "\n" not in str(caught.value)
