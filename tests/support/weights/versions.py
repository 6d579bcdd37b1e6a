"""Versions of weights for fake engines: folders whose bytes are what their engines sample with."""

import json
import struct
from pathlib import Path

from holdfast.policy.dialects.dialect import UNFINISHED
from holdfast.policy.policy import Completion
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.testing.fake_engine.generation import FakeGeneration
from holdfast.testing.fake_engine.tokens import Sampler, TokenLimits
from holdfast.weights.probe import probe_ids
from holdfast.weights.version import PREFIXES, TokenScores, WeightFolder
from support.weights.fake_engine.weights import read_folder

IDS = tuple(probe_ids(256))
SHAPES = {"embed.weight": [8, 4], "layer.weight": [4, 4], "lm_head.weight": [8, 4]}


def write_tensors(path: Path, seed: int, *, dtype: str = "F32") -> None:
    """Safetensors without torch."""
    size = {"F32": 4, "BF16": 2}[dtype]
    header, data = {}, b""
    for name, shape in SHAPES.items():
        count = shape[0] * shape[1]
        raw = b"".join(struct.pack("<f", seed + at / 7)[:size] for at in range(count))
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def best_logprobs(content: str) -> list[float]:
    """What a fake engine with this content answers to a probe: greedily, its seed is 0."""
    logprobs = []
    for length in PREFIXES:
        prompt = list(IDS[:length])
        generation = FakeGeneration(Sampler(0), prompt, seed=0, limits=TokenLimits(1))
        generation.advance(1, content=content)
        logprobs.append(generation.logprobs[0])
    return logprobs


def version_at(parent: Path, step: int, *, seed: int | None = None, rank: int = 0) -> WeightFolder:
    """`step-N`; with a rank, as an adapter, too."""
    name = f"step-{step}"
    path = parent / name
    path.mkdir(parents=True, exist_ok=True)
    write_tensors(path / "model.safetensors", step if seed is None else seed)
    (path / "config.json").write_text("{}")
    adapter = None
    if rank:
        adapter = path / "adapter"
        adapter.mkdir(exist_ok=True)
        write_tensors(adapter / "adapter_model.safetensors", 1000 + step)
        (adapter / "adapter_config.json").write_text(json.dumps({"r": rank}))
    scores = TokenScores(IDS, tuple(best_logprobs(read_folder(adapter or path))))
    return WeightFolder(name, path, f"{step:08d}", adapter, scores)


def mislabelled(
    completion: Completion, prompt: list[int], seed: int, versions: list[WeightFolder]
) -> list[int]:
    """The tokens whose logprob is not what the weights that they are labelled with give."""
    contents = {v.name: read_folder(v.adapter or v.path) for v in versions}
    ids, logprobs = unpack_ids(completion.ids), unpack_logprobs(completion.logprobs)
    wrong = []
    for span in completion.versions:
        for at in range(span.start, span.end):
            if span.version in ("", UNFINISHED):
                continue  # Nobody claims to know.
            before = prompt + ids[:at].tolist()
            generation = FakeGeneration(Sampler(0), before, seed=seed, limits=TokenLimits(1))
            generation.advance(1, content=contents.get(span.version, span.version))
            if (generation.ids[0], generation.logprobs[0]) != (ids[at], logprobs[at]):
                wrong.append(at)
    return wrong
