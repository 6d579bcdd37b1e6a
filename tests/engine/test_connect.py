"""Connecting to a policy: which model it is, and an embedded engine that is kept alive."""

import asyncio
import json
import threading
import urllib.request
from array import array
from pathlib import Path

import pytest

from holdfast.engine.connect import (
    EmbeddedEngines,
    EngineAddress,
    choose_model,
    connect,
)
from holdfast.policy.policy import Request
from holdfast.records.errors import PolicyRefused, UsageError, WaitTimedOut
from holdfast.records.sampling import Sampling
from holdfast.testing import FakeEngine
from support.weights.engines import engine
from support.weights.versions import version_at


def test_a_model_is_chosen_by_one_of_its_names_or_because_it_is_the_only_one():
    about = {"where": "http://a", "remedy": "name one"}
    assert choose_model(("openai/m", "m"), ("other", "m"), **about) == "m"
    assert choose_model((), ("m",), **about) == "m"
    with pytest.raises(UsageError, match="http://a serves m, other: name one"):
        choose_model((), ("m", "other"), **about)
    with pytest.raises(UsageError, match="does not serve model 'x'; it serves: m"):
        choose_model(("x", "y"), ("m",), **about)
    with pytest.raises(UsageError, match=r"it serves: m$"):
        choose_model(("x",), ("m",), where="http://a", remedy="")


def connected(address: EngineAddress) -> str:
    async def main():
        engines = EmbeddedEngines(lambda line: None)
        async with connect(address, engines=engines, notify=lambda line: None) as connection:
            return connection.policy.model

    return asyncio.run(main())


def test_an_engine_is_checked_before_it_is_given_out():
    with FakeEngine() as engine:
        assert connected(EngineAddress(urls=(engine.url,))) == engine.model
        with pytest.raises(UsageError, match="does not serve model 'nope'"):
            connected(EngineAddress(urls=(engine.url,), models=("nope",)))
        with pytest.raises(PolicyRefused, match="does not speak sglang"):
            connected(EngineAddress(urls=(engine.url,), dialect="sglang"))


def test_adapters_that_an_earlier_training_left_behind_are_no_models(tmp_path):
    adapter = version_at(tmp_path, 1, rank=4).adapter
    with engine(max_lora_rank=8) as server:
        load(server.url, "holdfast-step-1-0badcafe", adapter)
        assert connected(EngineAddress(urls=(server.url,), is_trained=True)) == server.model
        load(server.url, "mine", adapter)
        with pytest.raises(UsageError, match=f"serves {server.model}, mine: train one alone"):
            connected(EngineAddress(urls=(server.url,), remedy="train one alone"))


def load(url: str, name: str, adapter: Path) -> None:
    body = json.dumps({"lora_name": name, "lora_path": str(adapter)}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/load_lora_adapter", body, headers)
    urllib.request.urlopen(request, timeout=60).close()


def test_an_engine_that_is_down_at_the_start_is_waited_for_where_that_is_wanted():
    lines = []

    async def main(server, patience: float) -> str:
        address = EngineAddress(urls=(server.url,), waits=True, patience=patience)
        engines = EmbeddedEngines(lines.append)
        async with connect(address, engines=engines, notify=lines.append) as connection:
            return connection.policy.model

    with FakeEngine() as server:
        server.kill()
        with pytest.raises(WaitTimedOut, match=r"does not answer.*waited"):
            asyncio.run(main(server, 0.0))
        starting = threading.Timer(0.5, server.start)
        starting.start()
        assert asyncio.run(main(server, 60.0)) == server.model
        starting.join()
    assert len(lines) == 1
    assert lines[0].endswith("waiting for it")


def test_an_address_does_not_show_its_key():
    assert "secret" not in repr(EngineAddress(urls=("http://a",), api_key="secret"))


def test_an_embedded_engine_that_is_killed_is_started_again_and_calls_go_on():
    pytest.importorskip("torch")
    notes = []

    async def main():
        engines = EmbeddedEngines(notes.append, quiet=True)
        try:
            async with connect(EngineAddress(), engines=engines, notify=notes.append) as connection:
                policy, prompt = connection.policy, array("i", [1, 2, 3])
                request = Request(prompt, Sampling(max_tokens=2), seed=1, id="a")
                before = await policy.sample(request)
                (engine,) = engines._engines.values()
                killed = engine.pid
                engine.kill()
                after = await policy.sample(request)
                return before.ids == after.ids, killed != engine.pid
        finally:
            engines.close()

    assert asyncio.run(main()) == (True, True)
    assert not [line for line in notes if "cannot be started" in line]
