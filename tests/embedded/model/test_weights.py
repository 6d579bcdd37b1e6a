"""Weights switched between two steps, while requests are in flight."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.embedded.model import weights
from holdfast.embedded.model.load import load
from holdfast.embedded.scheduler.engine import DecodeEngine, PauseMode
from holdfast.embedded.scheduler.generation import WeightSpan
from holdfast.records.errors import UsageError
from support.embedded.client import AwaitedGeneration, ask, completion, sampling, serving, until

PROMPT = list(range(10, 90))


@pytest.fixture(scope="module")
def others(other_weights: Path) -> DecodeEngine:
    """An engine that has had the other weights from the start."""
    engine = DecodeEngine(load(other_weights), max_batch=4, version="v2")
    engine.start()
    return engine


def switched(engine: DecodeEngine, folder: Path, **options: Any) -> AwaitedGeneration:
    """A generation of 60 tokens, in the middle of which the weights are replaced."""
    request = AwaitedGeneration(PROMPT, sampling(max_tokens=60), stream=True)
    engine.submit(request)
    for _ in range(10):
        request.next()
    engine.update_weights(weights.read(folder), "v2", **options)
    return request.wait()


def test_each_span_is_what_its_weights_sample(
    own_engine: DecodeEngine, others: DecodeEngine, other_weights: Path
) -> None:
    before = ask(own_engine, PROMPT, max_tokens=60).result
    request = switched(own_engine, other_weights, reset_cache=True)
    first, second = request.spans
    assert (first.version, first.start, second.version, second.end) == ("v1", 0, "v2", 60)
    assert 10 <= first.end == second.start < 60
    assert request.result[: first.end] == before[: first.end]
    rest = ask(others, PROMPT + request.tokens[: first.end], max_tokens=60 - first.end)
    assert request.result[first.end :] == rest.result
    assert rest.result != before[first.end :], "the weights make a difference"


def test_without_a_reset_what_is_in_the_cache_is_kept(
    own_engine: DecodeEngine, others: DecodeEngine, other_weights: Path
) -> None:
    request = switched(own_engine, other_weights)
    cut = request.spans[0].end
    rest = ask(others, PROMPT + request.tokens[:cut], max_tokens=60 - cut)
    assert request.result[cut:] != rest.result, "old keys and values are still looked at"
    assert len(request.drawn) == 60
    # But nobody else sees them: neither from this request's slot nor from earlier ones.
    expected = ask(others, PROMPT, max_tokens=60).result
    assert ask(own_engine, PROMPT, max_tokens=60).result == expected


def test_weights_from_a_trainer_in_the_same_process(
    own_engine: DecodeEngine, others: DecodeEngine, other_weights: Path
) -> None:
    trained = load(other_weights).network
    own_engine.update_weights(trained.state_dict(), "step-1")
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.zero_()  # The trainer goes on; the engine has a copy.
    answer = ask(own_engine, PROMPT)
    assert answer.result == ask(others, PROMPT).result
    assert answer.spans == [WeightSpan("step-1", 0, 24)]


def test_tied_weights_may_have_either_name_or_both(llama_folder: Path) -> None:
    with DecodeEngine(load(llama_folder), max_batch=4) as engine:
        state = dict(engine.model.network.state_dict())
        expected = ask(engine, PROMPT).result
        new = {name: tensor.clone() for name, tensor in state.items()}
        for absent in ("lm_head.weight", "model.embed_tokens.weight", None):
            engine.update_weights({k: v for k, v in new.items() if k != absent}, f"{absent}")
            assert ask(engine, PROMPT).result == expected
        new["lm_head.weight"] = new["lm_head.weight"] + 1
        with pytest.raises(UsageError, match="one tensor in the model, and differ"):
            engine.update_weights(new, "torn")
        assert ask(engine, PROMPT).result == expected


def spoiled(folder: Path, how: str, tmp_path: Path) -> Path:
    bad = tmp_path / how
    if how == "absent":
        return bad
    shutil.copytree(folder, bad)
    file = bad / "model.safetensors"
    state = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    if how == "shape":
        state[name] = state[name][:-1].clone()
    elif how == "unknown":
        state["model.layers.9.mlp.up_proj.weight"] = state[name].clone()
    elif how == "lacking":
        del state[name]
    elif how == "nan":
        state[name][0, 0] = float("nan")
    elif how == "integers":
        state[name] = state[name].to(torch.int32)
    save_file(state, file)
    if how == "torn":
        file.write_bytes(file.read_bytes()[:-100])
    if how == "pickle":
        torch.save(state, bad / "pytorch_model.bin")
        file.unlink()
    return bad


@pytest.mark.parametrize(
    "how", ["absent", "shape", "unknown", "lacking", "nan", "integers", "torn", "pickle"]
)
def test_a_bad_folder_is_refused_and_changes_nothing(
    engine: DecodeEngine, other_weights: Path, how: str, tmp_path: Path
) -> None:
    bad = spoiled(other_weights, how, tmp_path)
    before = {name: t.clone() for name, t in engine.model.network.state_dict().items()}

    async def main() -> Any:
        async with serving(engine) as client:
            body = {"path": str(bad), "version": "v2"}
            refused = await client.post("/update_weights_from_disk", body)
            return refused, await client.get("/weight_version"), await client.complete()

    (status, answer), version, after = asyncio.run(main())
    assert (status, answer["error"]["param"]) == (400, "path")
    assert (version[0], json.loads(version[1])["weight_version"]) == (200, "v1")
    assert after["choices"][0]["weight_versions"][0]["version"] == "v1"
    for name, tensor in engine.model.network.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("body", [{}, {"path": "x"}, {"version": "v"}, {"path": 3, "version": "v"},
                                  {"path": "x", "version": "v", "flush": True}])  # fmt: skip
def test_an_update_says_which_folder_and_which_version(engine: DecodeEngine, body: Any) -> None:
    async def main() -> Any:
        async with serving(engine) as client:
            return await client.post("/update_weights_from_disk", body)

    status, _ = asyncio.run(main())
    assert status == 400
    assert engine.version == "v1"


def test_over_http_in_flight(own_engine: DecodeEngine, other_weights: Path) -> None:
    async def main() -> Any:
        async with serving(own_engine) as client:
            body = completion(max_tokens=300, ignore_eos=True)
            running = asyncio.create_task(client.ok("/v1/completions", body))
            await until(lambda: own_engine.statistics.generation_tokens > 5)
            update = {"path": str(other_weights), "version": "v2"}
            assert (await client.ok("/update_weights_from_disk", update))["success"]
            chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
            chat["ignore_eos"] = True
            return await running, await client.chat(**chat), await client.get("/metrics")

    answer, chat, metrics = asyncio.run(main())
    choice = answer["choices"][0]
    assert [span["version"] for span in choice["weight_versions"]] == ["v1", "v2"]
    assert choice["weight_versions"][-1]["end"] == len(choice["token_ids"]) == 300
    assert chat["choices"][0]["weight_versions"] == [{"version": "v2", "start": 0, "end": 3}]
    assert 'version="v2"} 1\n' in metrics[1]


def test_in_a_pause_the_weights_are_replaced_before_anything_goes_on(
    own_engine: DecodeEngine, other_weights: Path
) -> None:
    own_engine.pause(PauseMode.KEEP).result(60)
    answer = ask(own_engine, PROMPT)
    own_engine.update_weights(weights.read(other_weights), "v2")
    own_engine.resume().result(60)
    assert answer.wait().spans == [WeightSpan("v2", 0, 24)]


def test_a_model_that_gives_no_numbers_fails_its_request_and_recovers(
    own_engine: DecodeEngine, folder: Path
) -> None:
    """Weights can be finite and still overflow."""
    expected = ask(own_engine, PROMPT).result
    state = weights.read(folder)
    huge = {name: torch.full_like(tensor, 1e30) for name, tensor in state.items()}

    async def main() -> Any:
        async with serving(own_engine) as client:
            own_engine.update_weights(huge, "huge")
            plain = await client.post("/v1/completions", completion())
            return plain, await client.stream("/v1/completions", completion())

    (status, answer), events = asyncio.run(main())
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    assert [events[0]["error"]["code"], events[1]] == [500, "[DONE]"]
    own_engine.update_weights(state, "good")
    assert [answer.result for answer in (ask(own_engine, PROMPT) for _ in range(6))] == [
        expected
    ] * 6
