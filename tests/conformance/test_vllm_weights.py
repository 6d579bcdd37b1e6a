"""A real vLLM on the CPU takes weights by each way that it offers, under running requests.

Its model's head is its embedding, which a plain reload would leave as it was. Every token of every
reply is computed again with the weights that it is labelled with.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft", reason="the extra `train`")

import torch
from msgspec import structs
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from holdfast import crashpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Completion, Partial, Request
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.sampling import Sampling
from holdfast.training.model.network import Lora, Network
from holdfast.training.run import weights
from holdfast.weights import sync as sync_module
from holdfast.weights.carrier import Carrier, Framing
from holdfast.weights.collective import TensorMeta, cut
from holdfast.weights.content import fingerprint_of
from holdfast.weights.replica import Replica
from holdfast.weights.strategies.adapter import AdapterStrategy
from holdfast.weights.strategies.disk import DiskStrategy
from holdfast.weights.strategies.strategy import WeightStrategy
from holdfast.weights.strategies.vllm_transfer import (
    VllmOwnTransfer,
    VllmSharedMemory,
    VllmTransfer,
)
from holdfast.weights.sync import WeightSync
from holdfast.weights.version import WeightFolder
from support.conformance.vllm_server import VllmServer
from support.conformance.vllm_weights import server_of, write_tied_model
from support.weights.lying_proxy import LyingProxy

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif("HOLDFAST_VLLM_PYTHON" not in os.environ, reason="make vllm"),
]
TOLERANCE = 1e-4
WAYS = ("disk", "gloo", "ipc", "adapter")
PROMPTS = [[5 + number, 6, 7, 8] for number in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tied_model(tmp_path_factory.mktemp("tied") / "model", noise=0.05)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[VllmServer]:
    server = server_of(model)
    yield server
    server.stop()


class Trainer:
    """A network that changes, and its versions."""

    def __init__(self, model: Path, out: Path, *, lora: bool):
        self.lora, self.out = lora, out
        self.network = Network(model, lora=Lora(4, 8) if lora else None)
        self.versions: list[WeightFolder] = []
        self.scores = weights.Scores()

    def step(self, by: float = 0.02) -> WeightFolder:
        number = len(self.versions) + 1
        with torch.no_grad():
            for parameter in self.network.parameters.values():
                parameter.add_(torch.randn_like(parameter) * by)
        digest = weights.digest_of(dict(self.network.parameters))
        name = f"step-{number}-{digest[:6]}"
        path = weights.write_folder(self.out, name, self.network)
        adapter = path / weights.ADAPTER if self.lora else None
        scores = self.scores.of(self.network)
        self.versions.append(WeightFolder(name, path, digest, adapter, scores))
        return self.versions[-1]

    def worst_gap(self, completion: Completion, prompt: list[int]) -> float:
        """Between the engine's logprobs and those of the weights that its tokens are labelled with,
        computed by transformers."""
        ids = prompt + unpack_ids(completion.ids).tolist()
        logprobs, worst = unpack_logprobs(completion.logprobs), 0.0
        folders = {version.name: version.path for version in self.versions}
        for span in completion.versions:
            plain = AutoModelForCausalLM.from_pretrained(folders[span.version])
            with torch.no_grad():
                table = plain(torch.tensor([ids])).logits[0].log_softmax(-1)
            for at in range(span.start, span.end):
                place = len(prompt) + at
                gap = abs(float(table[place - 1, ids[place]]) - logprobs[at])
                worst = max(worst, gap)
        return worst


def strategy(way: str) -> WeightStrategy:
    if way == "adapter":
        return AdapterStrategy(rank=4)
    if way == "ipc":
        return VllmSharedMemory()
    return VllmTransfer(Carrier.GLOO) if way == "gloo" else DiskStrategy(is_tied=True)


@asynccontextmanager
async def synced(
    server: VllmServer | LyingProxy, way: str
) -> AsyncIterator[tuple[EnginePolicy, WeightSync]]:
    lines: list[str] = []
    policy = EnginePolicy(server.url, server.model, patience=300.0, notify=lines.append)
    await policy.check()
    sync = WeightSync(policy, [strategy(way)], report=lines.append)
    try:
        await sync.start()
        yield policy, sync
    finally:
        await sync.aclose()
        await policy.aclose()
        print("\n".join(lines))


def running(
    policy: EnginePolicy,
    *,
    tokens: int = 800,
    ignore_eos: bool = False,
    on_tokens: Callable[[int], None] = lambda number: None,
) -> list[asyncio.Task[Completion]]:
    """`on_tokens` gets the number of a call whenever there are more tokens of it."""

    def request(number: int) -> Request:
        async def save(draft: object) -> None:
            on_tokens(number)

        sampling = Sampling(tokens, ignore_eos=ignore_eos)
        prompt = array("i", PROMPTS[number])
        return Request(prompt, sampling, 7, str(number), partial=Partial(save, 16))

    return [asyncio.create_task(policy.sample(request(n))) for n in range(len(PROMPTS))]


async def under_way(policy: EnginePolicy) -> list[asyncio.Task[Completion]]:
    """Calls whose replies have begun, and will be as long as the context."""
    begun = [asyncio.Event() for _ in PROMPTS]
    calls = running(policy, tokens=2000, ignore_eos=True, on_tokens=lambda n: begun[n].set())
    await asyncio.gather(*(event.wait() for event in begun))
    return calls


def restart(server: VllmServer) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("way", WAYS)
def test_an_update_under_running_requests(
    server: VllmServer, model: Path, tmp_path: Path, way: str
) -> None:
    server.start()
    if way == "adapter":
        restart(server)  # With the weights that the adapter belongs to.
    trainer = Trainer(model, tmp_path, lora=way == "adapter")

    async def body() -> list[Completion]:
        async with synced(server, way) as (policy, sync):
            await sync.publish_first(trainer.step())
            version = trainer.step()
            calls = await under_way(policy)
            await sync.publish(version)
            print(way, sync.times, sync.probes)
            return [*await asyncio.gather(*calls), *await asyncio.gather(*running(policy))]

    completions = asyncio.run(body())
    first, second = (version.name for version in trainer.versions)
    expected = [first] if way == "adapter" else [first, second]
    assert [[s.version for s in c.versions] for c in completions] == [expected] * 3 + [[second]] * 3
    assert all(completion.tries == 1 for completion in completions), "none was sent again"
    # Exact across the switch, too: what was in the cache is computed again.
    for number, completion in enumerate(completions):
        assert trainer.worst_gap(completion, PROMPTS[number % 3]) < TOLERANCE


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_that_is_killed_in_the_middle_is_given_the_weights_when_it_is_back(
    server: VllmServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Killed while it gets them, with all its processes; then started as it was, without them."""
    server.start()
    if way == "adapter":
        restart(server)
    trainer = Trainer(model, tmp_path, lora=way == "adapter")

    async def body() -> list[Completion]:
        async with synced(server, way) as (policy, sync):
            await sync.publish_first(trainer.step())
            calls = await under_way(policy)
            restarts: list[asyncio.Task[None]] = []

            def kill_once(point: str) -> None:
                """The weights are sent as soon as this returns. Replies stand still by now; by
                adapter they go on, and have most of their tokens before them."""
                if point == "weights.paused" and not restarts:
                    assert not any(call.done() for call in calls)
                    restarts.append(asyncio.create_task(asyncio.to_thread(restart, server)))

            monkeypatch.setattr(crashpoint, "_trap", kill_once)
            await sync.publish(trainer.step())
            await asyncio.gather(*restarts)
            return await asyncio.gather(*calls)

    names = []
    for number, completion in enumerate(asyncio.run(body())):
        names += [span.version for span in completion.versions]
        assert trainer.worst_gap(completion, PROMPTS[number]) < TOLERANCE
    assert set(names) <= {version.name for version in trainer.versions}, names
    assert trainer.versions[-1].name in names, "the replies went on with the new weights"


@pytest.mark.parametrize("kind", ["gloo", "ipc"])
def test_a_sender_that_is_killed_in_the_middle_leaves_whole_weights(
    server: VllmServer, model: Path, tmp_path: Path, kind: str
) -> None:
    server.start()
    trainer = Trainer(model, tmp_path, lora=False)

    async def body() -> list[Completion]:
        async with synced(server, kind) as (policy, sync):
            await sync.publish_first(trainer.step())
            version = trainer.step()
            way: Any = next(iter(sync._choices.values())).strategy
            publishing = asyncio.create_task(sync.publish(version))
            await asyncio.sleep(0.15)
            os.kill(way._sender.pid, signal.SIGKILL)
            await publishing
            return await asyncio.gather(*running(policy, tokens=40))

    for number, completion in enumerate(asyncio.run(body())):
        assert [span.version for span in completion.versions] == [trainer.versions[-1].name]
        assert trainer.worst_gap(completion, PROMPTS[number]) < TOLERANCE


async def test_an_update_that_a_dead_trainer_began_does_not_block_the_next(
    server: VllmServer, model: Path, tmp_path: Path
) -> None:
    server.start()
    trainer = Trainer(model, tmp_path, lora=False)
    async with synced(server, "gloo") as (policy, sync):
        await policy.endpoints[0].send("POST", "/pause?mode=keep")
        await policy.endpoints[0].send("POST", "/start_weight_update")
        await sync.publish_first(trainer.step())
        assert policy.endpoints[0].weights == trainer.versions[0].name


async def test_a_plain_reload_of_a_tied_head_is_what_the_extension_is_for(
    server: VllmServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    trainer = Trainer(model, tmp_path, lora=False)

    async def no_workers(self: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(Replica, "_find_workers", no_workers)
    with pytest.raises(UsageError, match="would answer 200 and keep its old head"):
        async with synced(server, "disk"):
            pass
    policy = EnginePolicy(server.url, server.model)
    await policy.check()
    sync = WeightSync(policy, [DiskStrategy()])  # It is not told that the head is tied.
    await sync.start()
    with pytest.raises(weights.WeightsNotTaken, match="serves other weights"):
        await sync.publish_first(trainer.step())
    await sync.aclose()
    await policy.aclose()


@pytest.mark.parametrize("way", ["disk", "ipc"])
async def test_a_step_that_no_logprob_shows_is_seen_by_what_the_engine_loaded(
    server: VllmServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    server.start()
    trainer = Trainer(model, tmp_path, lora=False)
    async with synced(server, way) as (_, sync):
        first, second, third = trainer.step(), trainer.step(1e-9), trainer.step(1e-9)
        await sync.publish_first(first)
        await sync.publish(second)
        # What is sent are the weights before, and the trainer knows what it has.
        expected = fingerprint_of(third.path)
        assert fingerprint_of(second.path) != expected
        monkeypatch.setattr(sync_module, "_fingerprint_of", lambda _: expected)
        with pytest.raises(weights.WeightsNotTaken, match=f"fingerprint is .*not {expected}"):
            await sync.publish(structs.replace(third, path=second.path))


def keep_old(path: str, body: bytes) -> bytes | None:
    """A reload succeeds, and changes nothing."""
    return b'{"results": [null]}' if b"weights_path" in body else None


class LoadHalf:
    """A reload loads every second tensor of the version, and the others of the one before."""

    def __init__(self, server: VllmServer, versions: list[WeightFolder]):
        self._server, self._versions = server, versions

    def __call__(self, path: str, body: bytes) -> bytes | None:
        if b"weights_path" not in body:
            return None
        old, new = (version.path for version in self._versions[-2:])
        mixed = new.with_name("mixed")
        shutil.copytree(new, mixed, dirs_exist_ok=True)
        tensors = load_file(old / "model.safetensors")
        tensors |= dict(list(load_file(new / "model.safetensors").items())[::2])
        save_file(tensors, mixed / "model.safetensors", metadata={"format": "pt"})
        changed = body.replace(str(new).encode(), str(mixed).encode())
        assert changed != body
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._server.url}{path}", changed, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())


@pytest.mark.parametrize("lie", ["old", "half", "slow"])
@pytest.mark.parametrize("seen_by", ["fingerprint", "logprobs"])
def test_a_proxy_that_lies_about_an_update_gets_no_token_counted(
    server: VllmServer,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    seen_by: str,
) -> None:
    server.start()
    trainer = Trainer(model, tmp_path, lora=False)
    if seen_by == "logprobs":
        monkeypatch.setattr(DiskStrategy, "fingerprints", lambda self, replica: False)

    async def body(proxy: LyingProxy) -> None:
        async with synced(proxy, "disk") as (policy, sync):
            await sync.publish_first(trainer.step())
            version = trainer.step()
            calls = await under_way(policy)
            if lie == "slow":
                proxy.delay = 0.5
                await sync.publish(version)
                for number, completion in enumerate(await asyncio.gather(*calls)):
                    assert trainer.worst_gap(completion, PROMPTS[number]) < TOLERANCE
                return
            proxy.lie = keep_old if lie == "old" else LoadHalf(server, trainer.versions)
            why = "fingerprint is" if seen_by == "fingerprint" else "serves other weights"
            with pytest.raises(weights.WeightsNotTaken, match=why):
                await sync.publish(version)
            assert policy.endpoints[0].weights is None
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(outcome, HoldfastError) for outcome in outcomes), outcomes

    with LyingProxy(server.url) as proxy:
        proxy.model = server.model
        asyncio.run(body(proxy))
    restart(server)


@pytest.mark.parametrize("way", ["disk", "gloo", "ipc"])
@pytest.mark.parametrize("unfit", ["name", "shape"])
async def test_a_model_that_does_not_fit_is_refused_with_the_engines_own_words(
    server: VllmServer, model: Path, tmp_path: Path, way: str, unfit: str
) -> None:
    """Before anything is sampled. Loading it may end the engine: it gets no request."""
    restart(server)
    trainer = Trainer(model, tmp_path, lora=False)
    version = trainer.step()
    file = version.path / "model.safetensors"
    state = load_file(file)
    name = "model.layers.0.mlp.down_proj.weight"
    tensor = state.pop(name)
    state |= {"model.layers.0.other": tensor} if unfit == "name" else {name: tensor[:, :3].clone()}
    save_file(state, file, metadata={"format": "pt"})
    async with synced(server, way) as (policy, sync):
        with pytest.raises(weights.WeightsNotTaken) as caught:
            await sync.publish_first(version)
        print(caught.value)
        assert policy.endpoints[0].weights is None


def test_vllms_own_backend_takes_the_requests_that_are_sent_for_it(tmp_path: Path) -> None:
    """And cuts tensors into messages as the sender does. Nothing of it needs a GPU."""
    sizes = [3, 70, 20, 64, 1, 1]
    way = VllmOwnTransfer()
    at = {"master_address": "127.0.0.1", "master_port": 4711, "world_size": 3}
    wanted = {"init": {**at, "rank_offset": 1, **way._wire()}, "sizes": sizes, "limit": 64}
    code = """
import json, sys, torch
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo)
from vllm.distributed.weight_transfer.packed_tensor import pack_tensors
wanted = json.loads(sys.argv[1])
NCCLWeightTransferInitInfo(**wanted["init"])
NCCLWeightTransferUpdateInfo(names=["a"], dtype_names=["float32"], shapes=[[2]])
tensors = iter([(str(n), torch.zeros(n, dtype=torch.uint8)) for n in wanted["sizes"]])
found = []
while (chunk := pack_tensors(tensors, lambda item: item[1], wanted["limit"])) is not None:
    found.append(chunk.tensor_sizes)
print("found", json.dumps(found))
"""
    command = [os.environ["HOLDFAST_VLLM_PYTHON"], "-c", code, json.dumps(wanted)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("found")] or [run.stderr]
    metas = [TensorMeta(str(size), "uint8", (size,)) for size in sizes]
    expected = [[m.size for m in part] for part in cut(metas, Framing.OVERFLOWING, 64)]
    assert json.loads(line.removeprefix("found ")) == expected
