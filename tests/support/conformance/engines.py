"""The engines that the conformance suite is run against, behind one small interface.

A `Server` is a process that can be killed and steered; an `Engine` is one way of speaking to it,
with what it can do. A real vLLM is among them only when HOLDFAST_VLLM_PYTHON names a Python that
has one (`make vllm`).
"""

import os
import shutil
import signal
import tempfile
import time
import urllib.request
from array import array
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from msgspec import Struct

import holdfast.embedded
from holdfast.embedded.child_process import EmbeddedEngine
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.message import user
from holdfast.server_tokens import known_token
from holdfast.testing import FakeEngine
from holdfast.testing.fake_engine.options import Dialect, Seeds
from support.conformance.vllm_server import VllmServer

VLLM_PYTHON = "HOLDFAST_VLLM_PYTHON"
TINY = Path(holdfast.embedded.__file__).parent / "tiny"
WILD = 2.0
"""The highest temperature that all of them take: hardly any token repeats by chance."""
FOR_TRAINING = ("--logprobs-mode", "processed_logprobs")
NOISE = array("i", [5, 6, 7, 8])
"""A prompt that makes no sense to any of them, so that nothing is likely to follow it."""
LONGEST = 2048
"""What every engine is started with as its longest context."""
FIRST = "default"
"""The weights that every engine starts with, by the name it gives them."""


class Server(Protocol):
    """A process that serves. Its address stays the same for its whole life."""

    model: str

    @property
    def url(self) -> str: ...

    def start(self) -> None:
        """Returns when it takes requests; does nothing if it runs."""
        ...

    def stop(self) -> None: ...

    def kill(self) -> None:
        """SIGKILL to all of it."""
        ...

    def under_way(self) -> int:
        """How many requests it works on, by its own count."""
        ...

    def sampled(self) -> int:
        """How many tokens it has sampled since it was started, by its own count."""
        ...

    def switch_weights(self, version: str) -> None:
        """Returns when the next token of everything under way is sampled by `version`."""
        ...

    def pause(self, *, abort: bool) -> None:
        """What is under way is broken off, or frozen."""
        ...

    def resume(self) -> None: ...


class Abilities(Struct, frozen=True):
    """What not every engine can."""

    tells_versions: bool = True
    tells_as_it_goes: bool = True
    """Not only in the last event of a stream: what breaks off before that has no version."""
    seeds_by_position: bool = True
    """A completion that goes on from its tokens is the one that was never interrupted."""
    takes_stop_ids: bool = True
    pauses: bool = True
    keeps_to_json: bool = True
    starts_quickly: bool = True
    in_a_second: int = 200
    """About how many tokens of one reply it samples in a second, or fewer: there must be time to
    interrupt it."""


class Engine:
    """One way of speaking to a server. `named` is the dialect that a user would have to name."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        dialect: Kind,
        named: Kind | None = None,
        can: Abilities | None = None,
        tokenizer: Path | None = None,
    ):
        self.name = name
        self.server = server
        self.dialect = dialect
        self.named = named
        self.can = can or Abilities()
        self.tokenizer = tokenizer

    @property
    def is_second(self) -> bool:
        """Whether its server is spoken to in another way already."""
        return self.named is not None

    @property
    def long(self) -> int:
        """The length of a reply that can be interrupted."""
        return self.can.in_a_second

    @property
    def renderer(self) -> Renderer:
        return _renderer(self.tokenizer)

    def prompt(self, text: str = "What is 12 * 7?") -> "array[int]":
        return array("i", self.renderer.render([user(text)], []))

    def long_prompt(self, length: int) -> "array[int]":
        """Exactly `length` tokens, all of its vocabulary."""
        once = self.prompt()
        return (once * (length // len(once) + 1))[:length]


@cache
def _renderer(tokenizer: Path | None) -> Renderer:
    if tokenizer is None:
        return renderer_for("", family="bytes")
    return renderer_for(tokenizer, family="template")


# --- the fake ones


class FakeServer:
    """Long replies that take their time, so that there is something to interrupt."""

    def __init__(self, dialect: Dialect, *, seeds: Seeds = "position"):
        self._sglang = dialect == "sglang"
        self._engine = FakeEngine(
            dialect=dialect, mean_length=0, token_delay=0.001, max_model_len=LONGEST, seeds=seeds
        )
        self._is_running = False
        self.model = self._engine.model

    @property
    def url(self) -> str:
        return self._engine.url

    def start(self) -> None:
        if not self._is_running:
            self._engine.start()
            self._is_running = True

    def stop(self) -> None:
        self._engine.stop()
        self._is_running = False

    def kill(self) -> None:
        self._engine.kill()
        self._is_running = False

    def under_way(self) -> int:
        return self._engine.stats().in_flight

    def sampled(self) -> int:
        return self._engine.stats().tokens

    def switch_weights(self, version: str) -> None:
        self._engine.update_weights(version)

    def pause(self, *, abort: bool) -> None:
        if self._sglang:
            post(f"{self.url}/pause_generation", {"mode": "abort" if abort else "in_place"})
        else:
            post(f"{self.url}/pause?mode={'abort' if abort else 'keep'}")

    def resume(self) -> None:
        post(f"{self.url}/{'continue_generation' if self._sglang else 'resume'}", {})


# --- the embedded one


@cache
def endless() -> Path:
    """Our tiny model without an end of its own: it goes on until a request says where to stop.

    It brings along what many models do in generation_config.json, and what nobody asked for.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-conformance-")) / TINY.name
    shutil.copytree(TINY, folder)
    # Left out, it would be the architecture's own default.
    for name, ends in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        text = msgspec.json.decode((folder / name).read_bytes()) | {ends: None}
        (folder / name).write_bytes(msgspec.json.encode(text))
    unasked = {"do_sample": True, "top_k": 3, "top_p": 0.8, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_bytes(msgspec.json.encode(unasked))
    return folder


class EmbeddedServer:
    """`holdfast serve`."""

    def __init__(self) -> None:
        self._port = 0
        self._process: EmbeddedEngine | None = None
        self.url = ""
        self.model = "tiny"

    def start(self) -> None:
        if self._process is not None:
            return
        options = ("--version", FIRST, "--port", str(self._port))
        self._process = EmbeddedEngine(endless(), options=options)
        self._process.start()
        self.url, self.model = self._process.url, self._process.model
        self._port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        assert self._process is not None, "started"
        os.kill(self._process.pid, signal.SIGKILL)
        self.stop()

    def under_way(self) -> int:
        return metrics(self.url, "holdfast_requests_running", "holdfast_requests_waiting")

    def sampled(self) -> int:
        return metrics(self.url, "holdfast_generation_tokens_total")

    def switch_weights(self, version: str) -> None:
        post(f"{self.url}/update_weights_from_disk", {"path": str(endless()), "version": version})

    def pause(self, *, abort: bool) -> None:
        post(f"{self.url}/pause?mode={'abort' if abort else 'keep'}")

    def resume(self) -> None:
        post(f"{self.url}/resume")


# --- the real one


class RealVllm(VllmServer):
    """As it is started for training."""

    def under_way(self) -> int:
        return metrics(self.url, "vllm:num_requests_running", "vllm:num_requests_waiting")

    def sampled(self) -> int:
        return metrics(self.url, "vllm:generation_tokens_total")

    def switch_weights(self, version: str) -> None:
        """The name alone: the weights are the same ones, which is all that its wire is about."""
        self.pause(abort=False)
        post(f"{self.url}/update_weight_version", {"new_version": version})
        self.resume()

    def pause(self, *, abort: bool) -> None:
        post(f"{self.url}/pause?mode={'abort' if abort else 'keep'}")

    def resume(self) -> None:
        post(f"{self.url}/resume")


# --- talking to a server beside the policy


def post(url: str, body: object = None) -> bytes:
    data = b"" if body is None else msgspec.json.encode(body)
    headers = {"Content-Type": "application/json"}
    if (token := known_token(url)) is not None:
        headers["Authorization"] = f"Bearer {token}"
    return _response_of(urllib.request.Request(url, data, headers))


def metrics(url: str, *names: str) -> int:
    """The sum of some of its metrics; each must be there."""
    lines = _response_of(urllib.request.Request(f"{url}/metrics")).decode().splitlines()
    values = {
        line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"
    }
    return int(sum(values[name] for name in names))


def _response_of(request: urllib.request.Request) -> bytes:
    # A proxy in the environment is not for an engine on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return bytes(answer.read())


def wait_until_idle(server: Server, *, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while under_way := server.under_way():
        assert time.monotonic() < deadline, f"{under_way} requests are still under way"
        time.sleep(0.02)


# --- all of them


def once_for_each_server(engine: Engine) -> Engine:
    """What costs seconds is done to each server once, but for HOLDFAST_EXHAUSTIVE=1."""
    if engine.is_second:
        skip_unless_exhaustive()
    return engine


def skip_unless_exhaustive() -> None:
    if os.environ.get("HOLDFAST_EXHAUSTIVE") != "1":
        pytest.skip("exhaustive: set HOLDFAST_EXHAUSTIVE=1")


def engines() -> list[Engine]:
    """One object for each; those of one server share it."""
    result = [
        Engine(
            "fake-vllm",
            FakeServer("vllm"),
            dialect=Kind.VLLM,
            can=Abilities(tells_versions=False),
        ),
        Engine(
            "fake-vllm-generate",
            FakeServer("vllm-scale-out"),
            dialect=Kind.VLLM_GENERATE,
            can=Abilities(tells_as_it_goes=False),
        ),
        Engine(
            "fake-vllm-seeds",
            FakeServer("vllm-scale-out", seeds="request"),
            dialect=Kind.VLLM_GENERATE,
            can=Abilities(tells_as_it_goes=False, seeds_by_position=False),
        ),
        Engine("fake-sglang", FakeServer("sglang"), dialect=Kind.SGLANG),
        Engine(
            "fake-fireworks",
            FakeServer("fireworks"),
            dialect=Kind.FIREWORKS,
            can=Abilities(tells_versions=False, takes_stop_ids=False, pauses=False),
        ),
    ]
    embedded, can = EmbeddedServer(), Abilities(in_a_second=100, keeps_to_json=False)
    result += [
        Engine("embedded", embedded, dialect=Kind.VLLM_GENERATE, can=can, tokenizer=TINY),
        Engine(
            "embedded-completions",
            embedded,
            dialect=Kind.VLLM,
            named=Kind.VLLM,
            can=can,
            tokenizer=TINY,
        ),
    ]
    return result + _real_vllm()


def raw_vllm() -> RealVllm:
    """One of default options: its logprobs are raw."""
    return RealVllm(Path(os.environ[VLLM_PYTHON]), endless, longest=LONGEST)


def _real_vllm() -> list[Engine]:
    python = os.environ.get(VLLM_PYTHON)
    if not python:
        return []
    server = RealVllm(Path(python), endless, longest=LONGEST, options=FOR_TRAINING)
    can = Abilities(
        tells_as_it_goes=False, seeds_by_position=False, starts_quickly=False, in_a_second=1800
    )
    completions = msgspec.structs.replace(can, tells_versions=False)
    return [
        Engine("vllm", server, dialect=Kind.VLLM_GENERATE, can=can, tokenizer=TINY),
        Engine(
            "vllm-completions",
            server,
            dialect=Kind.VLLM,
            named=Kind.VLLM,
            can=completions,
            tokenizer=TINY,
        ),
    ]
