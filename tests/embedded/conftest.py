"""Tiny models, and one engine for the whole package of tests."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# The engine is made for the CPU; elsewhere its proof at start-up may refuse a model.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

pytest.importorskip("torch", reason="needs the extra `local`")
pytest.importorskip("transformers", reason="needs the extra `local`")

import torch
from transformers.utils import logging

from holdfast.embedded.model.load import LoadedModel, load
from holdfast.embedded.scheduler.engine import DecodeEngine
from support.embedded import tiny_models
from support.embedded.client import SECONDS

torch.set_num_threads(1)
logging.disable_progress_bar()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.qwen2(tmp_path_factory.mktemp("models") / "qwen2")


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture as `folder`, other numbers."""
    return tiny_models.qwen2(tmp_path_factory.mktemp("models") / "qwen2-b", seed=1)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def model(folder: Path) -> LoadedModel:
    return load(folder)


@pytest.fixture(scope="session")
def shared_engine(model: LoadedModel) -> Iterator[DecodeEngine]:
    with DecodeEngine(model, version="v1") as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: DecodeEngine) -> DecodeEngine:
    """Idle, and never given other weights: a test that does has an engine of its own."""
    assert shared_engine.version == "v1"
    # What a client left behind in the test before is dropped between two steps.
    deadline = time.monotonic() + SECONDS
    while shared_engine.running or shared_engine.waiting:
        assert time.monotonic() < deadline, "the test before has left something that never ends"
        time.sleep(0.01)
    return shared_engine


@pytest.fixture
def own_engine(folder: Path) -> Iterator[DecodeEngine]:
    """Of which a test may change the weights."""
    with DecodeEngine(load(folder), max_batch=4, max_waiting=8, version="v1") as engine:
        yield engine
