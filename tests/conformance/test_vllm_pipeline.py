"""An asynchronous training on a real vLLM, in which anything is killed at any moment.

Every token that is trained was sampled by the version that it is labelled with: transformers
computes its logprob again from that version's published folder.
"""

import asyncio
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="the extra `train`")

import torch
from transformers import AutoModelForCausalLM

from holdfast.journal import open_journal
from holdfast.records.history import History
from holdfast.records.samples.sample import Sample, samples_of
from support.conformance.vllm_server import VllmServer
from support.conformance.vllm_weights import server_of, write_tied_model
from support.crash.pipeline import ROLLOUTER, SUPERVISOR, TRAINER, Pipeline
from support.crash.pipeline_checks import assert_whole
from support.crash.training import RUN

KILLS = int(os.environ.get("HOLDFAST_KILLS", "15"))
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(3600 + 240 * KILLS),
    pytest.mark.skipif("HOLDFAST_VLLM_PYTHON" not in os.environ, reason="make vllm"),
]
VLLM = "vllm"
SEED = int(os.environ.get("HOLDFAST_SEED", "0")) or random.randrange(1 << 30)
STEPS = 4 * KILLS
TOLERANCE = 1e-3
"""In nats; one step at this learning rate moves most tokens by more."""
WAYS = {"full": (), "lora": ("--lora-rank", "4")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tied_model(tmp_path_factory.mktemp("tied") / "model")


@pytest.fixture
def server(model: Path) -> Iterator[VllmServer]:
    server = server_of(model, "--logprobs-mode", "processed_logprobs")
    server.start()
    yield server
    server.stop()


@contextmanager
def kept_versions(published: Path, kept: Path) -> Iterator[None]:
    """Each folder of weights, also when the training has removed it."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(0.02):
            for folder in published.glob("step-*"):
                aside = kept / f".{folder.name}"
                if (kept / folder.name).exists():
                    continue
                shutil.rmtree(aside, ignore_errors=True)
                try:
                    shutil.copytree(folder, aside, copy_function=os.link)
                except (OSError, shutil.Error):
                    continue  # It was removed, or is written anew.
                aside.rename(kept / folder.name)

    kept.mkdir()
    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


@pytest.mark.parametrize("way", WAYS)
def test_kills_at_random_end_in_a_training_whose_tokens_are_what_they_are_labelled_as(
    server: VllmServer, model: Path, tmp_path: Path, way: str
) -> None:
    print(f"HOLDFAST_SEED={SEED} HOLDFAST_KILLS={KILLS}")
    chance = random.Random(SEED)
    pipeline = Pipeline(tmp_path, staleness=1)
    options = (
        *("--policy", server.url, "--model", str(model), "--steps", str(STEPS)),
        *("--learning-rate", "0.001", *WAYS[way]),
    )
    with kept_versions(pipeline.out / "weights", tmp_path / "kept"):
        killed = keep_killing(pipeline, server, chance, options, kept=tmp_path / "kept")
        print(f"killed: {killed}")
        code, _, err = pipeline.train(*options)
        assert code == 0, err
    assert_whole(pipeline)
    check_tokens(pipeline, tmp_path / "kept")


def keep_killing(
    pipeline: Pipeline,
    server: VllmServer,
    chance: random.Random,
    options: tuple[str, ...],
    *,
    kept: Path,
) -> list[str]:
    """Until the training is over, or everything was killed often enough. Two of three kills come
    after another step: on a busy machine, kills that followed the clock alone would hit nothing but
    starts."""
    killed: list[str] = []
    process = drained(pipeline.start(*options))
    while len(killed) < KILLS:
        versions = len(list(kept.glob("step-*"))) + (chance.random() < 2 / 3)
        while process.poll() is None and len(list(kept.glob("step-*"))) < versions:
            time.sleep(0.02)
        deadline = time.monotonic() + chance.uniform(0, 5)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() == 0:
            return killed
        assert process.poll() is None, "nothing but a kill ends it"
        part = chance.choices((TRAINER, ROLLOUTER, SUPERVISOR, VLLM), (4, 4, 2, 1))[0]
        print(f"{time.strftime('%X')} kill {part}", flush=True)
        if part == VLLM:
            server.kill()
            server.start()
        elif not pipeline.kill(part, process):
            continue
        killed.append(part)
        if part == SUPERVISOR:
            process.wait()
            assert pipeline.parts_left() == []
            process = drained(pipeline.start(*options))
    pipeline.kill(SUPERVISOR, process)
    process.wait()
    assert pipeline.parts_left() == []
    return killed


def drained(process: Any) -> Any:
    """Its output is read, and shown where the test fails."""

    def show(stream: Any) -> None:
        with stream:
            print(stream.read())

    for stream in (process.stdout, process.stderr):
        threading.Thread(target=show, args=[stream], daemon=True).start()
    return process


def check_tokens(pipeline: Pipeline, kept: Path) -> None:
    worst: dict[str, float] = {}
    networks = {
        folder.name: AutoModelForCausalLM.from_pretrained(folder)
        for folder in kept.glob("step-*")
        if not folder.name.startswith(".")
    }
    samples = asyncio.run(trained(pipeline))
    for sample in samples:
        table = torch.tensor([sample.token_ids])
        tables: dict[str, torch.Tensor] = {}
        for span in sample.version_spans:
            if span.version not in tables:
                with torch.no_grad():
                    logits = networks[span.version](table).logits[0]
                tables[span.version] = logits.log_softmax(-1)
            for at in range(span.start, span.end):
                logprob = float(tables[span.version][at - 1, sample.token_ids[at]])
                gap = abs(logprob - sample.logprobs[at])
                worst[span.version] = max(worst.get(span.version, 0.0), gap)
    wrong = {name: gap for name, gap in worst.items() if gap > TOLERANCE}
    tokens = sum(sum(sample.loss_mask) for sample in samples)
    print(f"{tokens} tokens of {len(worst)} versions, at most {max(worst.values()):.2g} nats off")
    assert wrong == {}


async def trained(pipeline: Pipeline) -> list[Sample]:
    journal = open_journal(str(pipeline.journal))
    try:
        run = await journal.find_run(RUN)
        assert run is not None
        found: list[Sample] = []
        async for row, log in journal.histories(run):
            task = row.key.task
            found += samples_of(History(log), task=task, group=task, sample=row.key.sample)
        return found
    finally:
        await journal.close()
