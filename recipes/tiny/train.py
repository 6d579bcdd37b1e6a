"""Trains the tiny policy: `python -m recipes.tiny.train`, from the repository's root.

One seed decides the tokenizer, the initial weights and the order of the data; with the same
number of threads on the same kind of machine the weights come out the same, byte for byte. The
data is generated while training. Only what the assistant says is learned, never the prompts.
"""

import argparse
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from recipes.tiny.demonstrations import conversations
from recipes.tiny.tokenizer import END_OF_TEXT, END_OF_TURN, MAX_LENGTH, render, train_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "holdfast" / "embedded" / "tiny"
IGNORED = -100
TYPICAL = 40
"""Tokens that the assistant says in a conversation, about."""
HEAD = 32
"""The width of an attention head; the CPU kernels of inference engines want no less."""

log = logging.getLogger("train")


class Settings(NamedTuple):
    """The defaults are those of the policy in the package."""

    seed: int = 20260
    steps: int = 2200
    batch: int = 32
    rate: float = 2e-3
    warmup: int = 100
    layers: int = 4
    hidden: int = 128
    intermediate: int = 384
    threads: int = 1
    device: str = "cpu"


class Batch(NamedTuple):
    ids: torch.Tensor
    labels: torch.Tensor


def train(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The trained model, on the CPU. Sets torch's threads, seed and determinism."""
    make_deterministic(settings)
    model = LlamaForCausalLM(_config(settings, tokenizer))
    torch.nn.Module.to(model, settings.device)
    model.train()
    optimizer = _optimizer(model, settings)
    started = time.monotonic()
    for step, batch in enumerate(islice(batches(settings, tokenizer), settings.steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        loss = _loss(model, batch, settings.device)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            log.info(
                "step %d loss %.4f after %.0f s", step, loss.item(), time.monotonic() - started
            )
    torch.nn.Module.to(model, "cpu")
    model.train(False)
    return model


def make_deterministic(settings: Settings) -> None:
    # Read when the first CUDA context is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(settings.seed)


def _config(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.hidden // HEAD,
        num_key_value_heads=settings.hidden // HEAD,
        head_dim=HEAD,
        max_position_embeddings=MAX_LENGTH,
        # A reload of tied embeddings goes wrong in some engines.
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def _optimizer(model: LlamaForCausalLM, settings: Settings) -> torch.optim.AdamW:
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.05},
        {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.98))


def learning_rate(step: int, settings: Settings) -> float:
    """Up in a line, down to a twentieth in half a cosine."""
    if step < settings.warmup:
        return settings.rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def _loss(model: LlamaForCausalLM, batch: Batch, device: str) -> torch.Tensor:
    hidden = model.model(batch.ids.to(device), use_cache=False).last_hidden_state[:, :-1]
    labels = batch.labels.to(device)[:, 1:]
    learned = labels != IGNORED
    total = torch.nn.functional.cross_entropy(
        model.lm_head(hidden[learned]), labels[learned], reduction="sum"
    )
    # Not the mean over the batch's own tokens: batches are of one length each, so that the words
    # of short conversations would count for more, and the policy would talk short too often.
    return total / (len(labels) * TYPICAL)


def batches(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> Iterator[Batch]:
    """Batches of conversations of about the same length, in a random order."""
    random_ = torch.Generator().manual_seed(settings.seed)
    stream = encoded(settings.seed, tokenizer)
    while True:
        pool = sorted(islice(stream, settings.batch * 16), key=len)
        for place in torch.randperm(16, generator=random_).tolist():
            rows = pool[place * settings.batch : (place + 1) * settings.batch]
            yield _padded(rows, tokenizer)


def encoded(seed: int, tokenizer: PreTrainedTokenizerFast) -> Iterator[list[int]]:
    for conversation in conversations(seed):
        yield tokenizer.encode(render(tokenizer, conversation), add_special_tokens=False)


def _padded(rows: Sequence[list[int]], tokenizer: PreTrainedTokenizerFast) -> Batch:
    """Padding comes last, where causal attention never sees it."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), _id(tokenizer, END_OF_TEXT))
    labels = torch.full((len(rows), longest), IGNORED)
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    closing = _id(tokenizer, END_OF_TURN)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, : len(tokens)] = torch.tensor(labelled(tokens, opening, closing))
    return Batch(ids, labels)


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    (one,) = tokenizer.encode(token, add_special_tokens=False)
    return int(one)


def labelled(tokens: Sequence[int], opening: Sequence[int], closing: int) -> list[int]:
    """The tokens that the assistant says, its end of turn among them; the others ignored."""
    labels = [IGNORED] * len(tokens)
    said = False
    for place, token in enumerate(tokens):
        if said:
            labels[place] = token
            said = token != closing
        elif list(tokens[place - len(opening) + 1 : place + 1]) == list(opening):
            said = True
    return labels


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> str:
    """Writes the Hugging Face folder and returns the sha256 of the weights."""
    model.generation_config.update(
        do_sample=True,
        temperature=1.0,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    path = folder / "tokenizer_config.json"
    # The name that every release of transformers knows.
    known = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    return sha256(folder)


def sha256(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    arguments = _arguments()
    settings = Settings(
        seed=arguments.seed,
        steps=arguments.steps,
        threads=arguments.threads,
        device=arguments.device,
    )
    tokenizer = train_tokenizer(settings.seed)
    model = train(settings, tokenizer)
    digest = save(model, tokenizer, arguments.out)
    count = sum(parameter.numel() for parameter in model.parameters())
    log.info("%d parameters in %s, sha256 %s", count, arguments.out, digest)


def _arguments() -> argparse.Namespace:
    default = Settings()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--device", default=default.device)
    return parser.parse_args()


if __name__ == "__main__":
    main()
