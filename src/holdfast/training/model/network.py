"""The network that is trained: a Hugging Face causal LM folder, in full or with a LoRA adapter.

Rows go through it packed, with our attention and a head in chunks, where a trial at the start shows
that this gives the same numbers; else one sequence at a time, and `why_sequential` says why.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.training.packing import attention
from holdfast.training.packing.attention import PackedLayout
from holdfast.training.packing.head import token_logprobs
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack
from holdfast.training.settings import Lora

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.1}
"""In nats; between two orders of the same additions. A wrong mask is off by far more."""
_CANNOT_PACK = (NotImplementedError, TypeError, ValueError, KeyError, RuntimeError, AttributeError)


class Network:
    """A causal LM that gives logprobs of trained tokens, with gradients."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        lora: Lora | None = None,
        gradient_checkpointing: bool = False,
        trained: bool = True,
        compiled: bool = False,
    ):
        self.folder = folder
        self.device = torch.device(device)
        self._dtype = dtype
        self.why_sequential = ""
        attention.register()
        self.module = _load(folder, dtype).to(self.device)
        self.module.requires_grad_(trained and lora is None)
        self.lora = lora
        if lora is not None:
            self.module = _with_adapter(self.module, lora)
        if gradient_checkpointing:
            self.module.gradient_checkpointing_enable({"use_reentrant": False})
            self.module.enable_input_require_grads()
        self.module.train()
        _without_dropout(self.module)
        if self.module.get_output_embeddings() is None:
            raise UsageError(f"{folder} has no output head: it is no causal LM")
        self._decoder = self._plain.get_decoder()
        self._try_packed()
        if compiled and not self.why_sequential:
            self._decoder = torch.compile(self._decoder, dynamic=True)

    @property
    def _plain(self) -> Any:
        return self.module.get_base_model() if self.lora is not None else self.module

    @property
    def vocabulary(self) -> int:
        return int(self.module.get_output_embeddings().weight.shape[0])

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Those that are trained, by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def logprobs(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """(logprobs, entropies) of the row's trained tokens; `temperature` has one for each."""
        if self.why_sequential:
            return self._sequential(row, temperature)
        return self._packed(row, temperature)

    def without_adapter(self) -> Any:
        """A context in which a LoRA network is the model that it began from."""
        return self.module.disable_adapter() if self.lora is not None else nullcontext()

    def _packed(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        output = self._decoder(
            input_ids=torch.tensor([row.ids], device=self.device),
            position_ids=torch.tensor([row.positions], device=self.device),
            packed_layout=PackedLayout(row, self.device),
            use_cache=False,
        )
        head = self._plain.get_output_embeddings()
        predictors = torch.tensor(row.predictors, device=self.device)
        return token_logprobs(
            output.last_hidden_state[0][predictors],
            head.weight,
            torch.tensor(row.targets, device=self.device),
            temperature=temperature,
            bias=getattr(head, "bias", None),
        )

    def _sequential(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """By the model's own attention and its own logits; a row holds one sequence."""
        assert len(row.segments) == 1, "packed for one sequence at a time"
        logits = self.module(
            input_ids=torch.tensor([row.ids], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(row.predictors, device=self.device),
        ).logits[0]
        scaled = (logits.float() / temperature[:, None]).log_softmax(-1)
        targets = torch.tensor(row.targets, device=self.device)
        entropies = -(scaled.exp() * scaled).sum(-1)
        return scaled.gather(-1, targets[:, None])[:, 0], entropies

    def _try_packed(self) -> None:
        """Compares both ways on a few tokens; where they differ, sequences go one at a time."""
        sequences = _trial(self.vocabulary)
        (together,) = pack(sequences, budget=1000)
        try:
            with torch.no_grad():
                found = self._packed(together, torch.ones(len(together.targets)).to(self.device))[0]
        except _CANNOT_PACK as error:
            first = next(iter(str(error).splitlines()), "")
            self.why_sequential = f"its attention cannot be replaced ({first or type(error)})"
        self.module.set_attn_implementation("sdpa" if self.why_sequential else attention.NAME)
        if self.why_sequential:
            return
        expected = self._alone(sequences)
        places = zip(together.sequences, together.indices, strict=True)
        alone = torch.tensor([expected[place] for place in places])
        gap = float((found.cpu().float() - alone).abs().max())
        if not gap <= _TOLERANCE[self._dtype]:
            self.why_sequential = f"packed rows differ from single ones by {gap:.3g} nats"
            self.module.set_attn_implementation("sdpa")

    def _alone(self, sequences: list[TokenSequence]) -> dict[tuple[int, int], float]:
        self.module.set_attn_implementation("sdpa")
        found: dict[tuple[int, int], float] = {}
        for number, sequence in enumerate(sequences):
            (row,) = pack([sequence], budget=1000)
            with torch.no_grad():
                values, _ = self._sequential(row, torch.ones(len(row.targets)).to(self.device))
            for index, value in enumerate(values.tolist()):
                found[number, index] = value
        self.module.set_attn_implementation(attention.NAME)
        return found


def _trial(vocabulary: int) -> list[TokenSequence]:
    """Sequences that share a beginning, and one that does not."""
    numbers = [(7919 * n + 11) % vocabulary for n in range(60)]
    shared = numbers[:9]
    lists = [[*shared, *numbers[9:20]], [*shared, *numbers[20:28]], numbers[30:47], shared]
    return [TokenSequence(ids, list(range(1, len(ids)))) for ids in lists]


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """transformers draws them on stderr whenever it reads or writes weights."""
    from transformers.utils import logging

    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()


@no_progress_bars()
def _load(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=attention.NAME,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise UsageError(f"{folder} cannot be trained: {first}") from error


def _without_dropout(module: Any) -> None:
    """The engine samples without it: ratios would compare two distributions."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0


def _with_adapter(module: Any, lora: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets) or "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(module, config)
    except ValueError as error:
        names = {name.rsplit(".", 1)[-1] for name, _ in module.named_modules()}
        linear = sorted(name for name in names if name.endswith(("proj", "fc1", "fc2", "dense")))
        wrong = ", ".join(set(lora.targets) - names) or ", ".join(lora.targets)
        raise UsageError(
            f"the model has no modules called {wrong} for LoRA; it has {', '.join(linear)}"
        ) from error
