"""Of which distribution the logprobs of every engine are: what it says is what is measured."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.policy.client.logprobs_probe import measure_logprobs_mode
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import Completion
from holdfast.records.errors import UsageError
from holdfast.records.samples.logprobs import LogprobsMode
from support.conformance.engines import TINY, VLLM_PYTHON, Engine, RealVllm, raw_vllm
from support.conformance.runs import CommandLine
from support.conformance.samples import drawn, ids, logprobs, policy_for, request

COLD = 0.5
CLOSE = 1e-3
WARM = ("--temperature", 0.8)
FLAG = "--logprobs-mode processed_logprobs"


def test_its_logprobs_are_of_the_distribution_that_is_sampled_from(engine: Engine) -> None:
    async def main() -> tuple[LogprobsMode, LogprobsMode]:
        async with policy_for(engine) as policy:
            (endpoint,) = policy.endpoints
            mode = await measure_logprobs_mode(endpoint.send, endpoint.dialect, endpoint.model)
            return policy.logprobs_mode, mode

    assert asyncio.run(main()) == (LogprobsMode.PROCESSED, LogprobsMode.PROCESSED)


def computed(engine: Engine, completion: Completion, *, temperature: float) -> list[float]:
    """The logprobs that a trainer computes of these tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    prompt, sampled = engine.prompt().tolist(), ids(completion)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    scores = (logits / temperature).log_softmax(-1)
    values: list[float] = scores.gather(-1, torch.tensor(sampled)[:, None])[:, 0].tolist()
    return values


def test_they_are_those_that_a_trainer_computes_at_that_temperature(engine: Engine) -> None:
    if engine.tokenizer is None:
        pytest.skip("the logprobs of a fake engine are made up")
    (completion,) = drawn(engine, request(engine, temperature=COLD))
    expected = computed(engine, completion, temperature=COLD)
    assert logprobs(completion) == pytest.approx(expected, abs=CLOSE, rel=0)


# --- a real vLLM of default options


@pytest.fixture(scope="module")
def raw_server() -> Iterator[RealVllm]:
    if VLLM_PYTHON not in os.environ:
        pytest.skip("needs a real vLLM (make vllm)")
    server = raw_vllm()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=[None, Kind.VLLM], ids=["generate", "completions"])
def raw(request: pytest.FixtureRequest, raw_server: RealVllm) -> Engine:
    kind = request.param
    return Engine("raw", raw_server, dialect=kind or Kind.VLLM_GENERATE, named=kind, tokenizer=TINY)


@pytest.mark.vllm
def test_a_vllm_of_default_options_is_found_to_give_raw_ones(raw: Engine, tmp_path: Path) -> None:
    shell = CommandLine(tmp_path, raw)
    arguments = ["policy", "check", raw.server.url]
    done = shell.holdfast(*arguments, *(("--dialect", raw.named) if raw.named else ()))
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("fit for training: no, because of its logprobs")
    assert FLAG in done.out


@pytest.mark.vllm
def test_raw_ones_are_those_of_temperature_1_whatever_was_sampled_at(raw: Engine) -> None:
    (completion,) = drawn(raw, request(raw, temperature=COLD))
    results = logprobs(completion)
    assert results == pytest.approx(computed(raw, completion, temperature=1.0), abs=CLOSE, rel=0)
    wanted = computed(raw, completion, temperature=COLD)
    assert (
        max(abs(result - other) for result, other in zip(results, wanted, strict=True))
        > 100 * CLOSE
    )


@pytest.mark.vllm
def test_what_it_sampled_at_another_temperature_is_told_and_refused(
    raw: Engine, tmp_path: Path
) -> None:
    shell = CommandLine(tmp_path, raw)
    done = shell.run("warm", *WARM)
    assert done.code == 0, done.err
    assert "are raw: at temperature 0.8" in done.err.splitlines()[0]
    export = ("export", "warm", "--what", "samples", "--journal", "warm.db", "--out", "s.jsonl")
    refused = shell.holdfast(*export)
    assert refused.code == 2
    assert FLAG in refused.err
    assert shell.holdfast(*export, "--logprobs", "raw").code == 0
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    assert {json.loads(line)["logprobs_mode"] for line in lines} == {"raw"}


@pytest.mark.vllm
def test_it_is_no_replica_of_one_that_processes_them(engine: Engine, raw: Engine) -> None:
    if not isinstance(engine.server, RealVllm) or engine.is_second or raw.is_second:
        pytest.skip("once, with two of vLLM")
    addresses = [engine.server.url, raw.server.url]

    async def main() -> None:
        policy = EnginePolicy(addresses, engine.server.model)
        try:
            await policy.check()
        finally:
            await policy.aclose()

    with pytest.raises(UsageError, match="the replicas differ") as error:
        asyncio.run(main())
    assert all(address in str(error.value) for address in addresses)
