"""How near to float32 the trainer's ways to compute real weights are: plain, packed and compiled.

    python benchmarks/training_nearness.py DIR [llama qwen2 qwen3] [--tokens N] [--device cuda]

`DIR` is a Llama with real weights (SmolLM2-135M-Instruct). As qwen2 and qwen3, its weights are put
into the shapes of these, with biases of 0 and norms of 1. The text is this repository's own.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from holdfast.records.samples.nearness import gap_between, is_as_near
from holdfast.training.model.network import Network
from holdfast.training.model.plain import load_model, logprobs_of, no_progress_bars
from holdfast.training.packing.rows import TokenSequence, pack

TEXT = Path(__file__).parents[1] / "docs/design.md"
SEQUENCES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shapes", nargs="*", default=["llama", "qwen2", "qwen3"])
    parser.add_argument("--tokens", type=int, default=256, help="of each sequence")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    for shape in args.shapes:
        with tempfile.TemporaryDirectory() as parent:
            folder = args.folder if shape == "llama" else _reshaped(args.folder, shape, parent)
            measure(shape, folder, args.folder, tokens=args.tokens, device=args.device)


def _reshaped(folder: Path, shape: str, parent: str) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen3Config

    kinds = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
    given = AutoConfig.from_pretrained(folder)
    values = {**given.to_dict(), "model_type": shape, "architectures": None}
    config = kinds[shape].from_dict(values)
    model: Any = AutoModelForCausalLM.from_config(config)
    weights = load_model(folder, torch.float32).state_dict()
    missing = model.load_state_dict(weights, strict=False).missing_keys
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in missing:
                parameter.fill_(1.0 if "norm" in name else 0.0)
    with no_progress_bars():
        model.to(torch.bfloat16).save_pretrained(parent)
    return Path(parent)


def measure(shape: str, folder: Path, tokenizer: Path, *, tokens: int, device: str) -> None:
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(tokenizer)(TEXT.read_text())["input_ids"]
    sequences = [
        TokenSequence(ids[start : start + tokens], list(range(1, tokens)))
        for start in range(0, SEQUENCES * tokens, tokens)
    ]
    exact = _plain(folder, sequences, torch.float32, device)
    plain = gap_between(_plain(folder, sequences, torch.bfloat16, device), exact)
    print(json.dumps({"shape": shape, "way": "plain", **structs.asdict(plain)}), flush=True)
    for compiled in (False, True):
        network = Network(
            folder, dtype=torch.bfloat16, device=device, compiled=compiled, longest=tokens
        )
        gap = gap_between(_packed(network, sequences), exact)
        line = {
            "shape": shape,
            "way": "compiled" if compiled else "packed",
            **structs.asdict(gap),
            "is_as_near": is_as_near(gap, plain),
            "why_not": network.why_sequential or network.why_slow,
            "trial": structs.asdict(network.trial.plain),
        }
        print(json.dumps(line), flush=True)


def _plain(
    folder: Path, sequences: list[TokenSequence], dtype: torch.dtype, device: str
) -> list[float]:
    module = load_model(folder, dtype).to(device)
    return [value for sequence in sequences for value in logprobs_of(module, sequence)]


@torch.no_grad()
def _packed(network: Network, sequences: list[TokenSequence]) -> list[float]:
    (row,) = pack(sequences, budget=sum(len(sequence.ids) for sequence in sequences))
    logprobs = network.logprobs(row, torch.ones(len(row.targets), device=network.device))[0]
    places = zip(row.sequences, row.indices, strict=True)
    return [value for _, value in sorted(zip(places, logprobs.tolist(), strict=True))]


if __name__ == "__main__":
    main()
