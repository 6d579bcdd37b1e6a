"""The network that is trained: a Hugging Face causal LM folder, in full or with a LoRA adapter.

Rows go through it packed, with our attention and a head in chunks, where a trial at the start shows
that this gives the same numbers; else one sequence at a time, and `why_sequential` says why. On a
GPU the layers are compiled, all of them as one, for rows of any length; where that fails, or the
head has no kernels, `why_slow` says so. With several ranks it is spread over them: all make it at
once, and call it in the same order, since each call gathers the weights.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.training.model.sharding import ShardedCalls
from holdfast.training.packing import attention
from holdfast.training.packing.attention import PackedLayout
from holdfast.training.packing.head import token_logprobs, why_unfused
from holdfast.training.packing.rows import PackedRow, TokenSequence, pack
from holdfast.training.packing.tensors import to_tensor
from holdfast.training.ranks.group import RankGroup
from holdfast.training.settings import Lora

Result = TypeVar("Result")

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
        compiled: bool | None = None,
        ranks: RankGroup | None = None,
    ):
        """`compiled`: whether the layers are; None: on a GPU, in less than float32, by one rank."""
        ranks = ranks or RankGroup()
        self.folder = folder
        self.device = torch.device(ranks.device(device))
        self._dtype = dtype
        self.why_sequential = ""
        attention.register()
        self.module = _load(folder, dtype)
        if ranks.size == 1:
            self.module.to(self.device)
        self.module.requires_grad_(trained and lora is None)
        self.lora = lora
        if lora is not None:
            self.module = _with_adapter(self.module, lora)
        if gradient_checkpointing:
            _checkpoint_activations(self.module)
        self.module.train()
        _without_dropout(self.module)
        if self.module.get_output_embeddings() is None:
            raise UsageError(f"{folder} has no output head: it is no causal LM")
        self._decoder = self._plain.get_decoder()
        self.whole: Any = self.module
        """The module with all weights as `take_whole` got them; on rank 0 alone, if there are
        several."""
        self._sharded: ShardedCalls | None = None
        if ranks.size > 1:
            _check_alike(ranks, f"the weights in {folder}", digest_of(self.module.state_dict()))
            self.whole = copy.deepcopy(self.module) if trained and ranks.is_leader else None
            self._sharded = ShardedCalls(self.module, _layers(self.module), ranks)
        self._try_packed()
        _check_alike(ranks, "how the model takes packed rows", self.why_sequential or "it does")
        self.why_slow = why_unfused(self.device)
        # In float32 attention goes segment by segment, which would be compiled anew for each row.
        fits = self.device.type == "cuda" and dtype != torch.float32 and ranks.size == 1
        if not self.why_sequential and (fits if compiled is None else compiled):
            self._try_compiled()

    @property
    def _plain(self) -> Any:
        return self.module.get_base_model() if self.lora is not None else self.module

    @property
    def _own_attention(self) -> str:
        """That of transformers which the model can have."""
        return "sdpa" if getattr(self._plain, "_supports_sdpa", False) else "eager"

    @property
    def vocabulary(self) -> int:
        return int(self.module.get_output_embeddings().weight.shape[0])

    @property
    def hidden_size(self) -> int:
        return int(self.module.get_output_embeddings().weight.shape[1])

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trained parameters, by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def logprobs(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """(logprobs, entropies) of the row's trained tokens; `temperature` has one for each."""
        function = self._sequential if self.why_sequential else self._packed
        return self._call(partial(function, row, temperature))

    def _call(self, function: Callable[[], Result]) -> Result:
        """With weights that are whole."""
        if self._sharded is None:
            return function()
        return self._sharded.call(function)

    @torch.no_grad()
    def take_whole(self, weights: Mapping[str, Tensor]) -> None:
        """Brings `whole` up to date with weights that were gathered from all ranks."""
        if self._sharded is not None:
            parameters = dict(self.whole.named_parameters())
            for name, weight in weights.items():
                parameters[name].copy_(weight)

    @torch.no_grad()
    def best_logprobs(self, ids: Sequence[int], lengths: Sequence[int]) -> list[float]:
        """The logprob of the most likely token after each of these beginnings of `ids`."""
        logits = self._call(partial(self._all_logits, ids))
        best = logits.float().log_softmax(-1).max(-1).values
        return [float(best[length - 1]) for length in lengths]

    def _all_logits(self, ids: Sequence[int]) -> Tensor:
        logits: Tensor
        if self.why_sequential:
            logits = self.module(
                input_ids=torch.tensor([ids], device=self.device), use_cache=False
            ).logits[0]
        else:
            (row,) = pack([TokenSequence(list(ids), list(range(1, len(ids))))], budget=len(ids))
            head = self._plain.get_output_embeddings()
            logits = head(self._hidden(row))
        return logits

    def without_adapter(self) -> Any:
        """A context in which a LoRA network is the model that it began from."""
        return self.module.disable_adapter() if self.lora is not None else nullcontext()

    def _packed(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        head = self._plain.get_output_embeddings()
        return token_logprobs(
            self._hidden(row)[to_tensor(row.predictors, self.device)],
            head.weight,
            to_tensor(row.targets, self.device),
            temperature=temperature,
            bias=getattr(head, "bias", None),
        )

    def _hidden(self, row: PackedRow) -> Tensor:
        """The last hidden state of each of the row's tokens."""
        output = self._decoder(
            input_ids=to_tensor(row.ids, self.device)[None],
            position_ids=to_tensor(row.positions, self.device)[None],
            packed_layout=PackedLayout(row, self.device),
            use_cache=False,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

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
        places = torch.arange(len(targets), device=self.device)
        return scaled[places, targets], entropies

    def _try_packed(self) -> None:
        """Compares both ways on a few tokens; where they differ, sequences go one at a time."""
        sequences = _trial(self.vocabulary)
        (together,) = pack(sequences, budget=1000)
        try:
            with torch.no_grad():
                ones = torch.ones(len(together.targets), device=self.device)
                found = self._call(partial(self._packed, together, ones))[0]
        except _CANNOT_PACK as error:
            first = next(iter(str(error).splitlines()), "")
            self.why_sequential = f"its attention cannot be replaced ({first or type(error)})"
        self.module.set_attn_implementation(
            self._own_attention if self.why_sequential else attention.NAME
        )
        if self.why_sequential:
            return
        expected = self._alone(sequences)
        places = zip(together.sequences, together.indices, strict=True)
        alone = torch.tensor([expected[place] for place in places])
        gap = float((found.cpu().float() - alone).abs().max())
        if not gap <= _TOLERANCE[self._dtype]:
            self.why_sequential = f"packed rows differ from single ones by {gap:.3g} nats"
            self.module.set_attn_implementation(self._own_attention)

    def _try_compiled(self) -> None:
        """Compiles the layers and compares; where that fails, they stay as they are."""
        from torch import _dynamo as dynamo

        layers = _layers(self.module)
        (row,) = pack(_trial(self.vocabulary), budget=1000)
        ones = torch.ones(len(row.targets), device=self.device)
        expected = self._packed(row, ones)[0].detach()
        for layer in layers:
            layer.compile(dynamic=True)
        # One graph for each of: shared or not, with a gradient or not, with the adapter or not.
        dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, 64)
        try:
            found = self._packed(row, ones)[0]
            if found.requires_grad:
                found.sum().backward()  # type: ignore[no-untyped-call]
            gap = float((found.detach() - expected).abs().max())
            why = "" if gap <= _TOLERANCE[self._dtype] else f"they then differ by {gap:.3g} nats"
        except (*_CANNOT_PACK, OSError) as error:
            why = next(iter(str(error).splitlines()), "") or type(error).__name__
        self.module.zero_grad(set_to_none=True)
        if why or not layers:
            for layer in layers:
                layer._compiled_call_impl = None  # noqa: SLF001  # compile() has no way back
            slow = f"its layers cannot be compiled ({why or 'it has none that are known'})"
            self.why_slow = "; ".join(filter(None, (self.why_slow, slow)))

    def _alone(self, sequences: list[TokenSequence]) -> dict[tuple[int, int], float]:
        self.module.set_attn_implementation(self._own_attention)
        found: dict[tuple[int, int], float] = {}
        for number, sequence in enumerate(sequences):
            (row,) = pack([sequence], budget=1000)
            with torch.no_grad():
                ones = torch.ones(len(row.targets), device=self.device)
                values, _ = self._call(partial(self._sequential, row, ones))
            for index, value in enumerate(values.tolist()):
                found[number, index] = value
        self.module.set_attn_implementation(attention.NAME)
        return found


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Of names, shapes, types and bytes: the same for the same weights."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _check_alike(ranks: RankGroup, what: str, own: str) -> None:
    said = [found.decode() for found in ranks.exchange(own.encode())]
    if wrong := [rank for rank, found in enumerate(said) if found != said[0]]:
        raise UsageError(
            f"{what}: rank {wrong[0]} has {said[wrong[0]]:.80}, and rank 0 {said[0]:.80}; all "
            "ranks need the same files and the same environment"
        )


def _layers(module: Any) -> list[Any]:
    """The modules that are known to be layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [part for part in module.modules() if isinstance(part, GradientCheckpointingLayer)]


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
    from safetensors import SafetensorError
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
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise UsageError(f"{folder} cannot be trained: {first}") from error


def _without_dropout(module: Any) -> None:
    """The engine samples without it: ratios would compare two distributions."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0


def _checkpoint_activations(module: Any) -> None:
    # The name from transformers 5.23 on, and the one before.
    named = hasattr(module, "activation_checkpointing_enable")
    name = "activation_checkpointing_enable" if named else "gradient_checkpointing_enable"
    getattr(module, name)({"use_reentrant": False})
    module.enable_input_require_grads()


def _with_adapter(module: Any, lora: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    names = {name.rsplit(".", 1)[-1] for name, _ in module.named_modules()}
    if wrong := [name for name in lora.targets if name.rsplit(".", 1)[-1] not in names]:
        raise _no_targets(wrong, names)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets) or "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        # The optimizer has float32 copies; a float32 adapter would be multiplied in float32.
        adapted = get_peft_model(module, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise _no_targets(lora.targets, names) from error
    for chosen in adapted.peft_config.values():
        _sort_sets(chosen)
    return adapted


def _sort_sets(config: Any) -> None:
    """Sorts sets, because peft writes them in the order of their hashes, which differs between
    processes: equal content would be published as different bytes."""
    for name, value in vars(config).items():
        if isinstance(value, set | frozenset):
            setattr(config, name, sorted(value))


def _no_targets(wrong: Sequence[str], names: Iterable[str]) -> UsageError:
    linear = sorted(name for name in names if name.endswith(("proj", "fc1", "fc2", "dense")))
    return UsageError(
        f"the model has no modules called {', '.join(wrong)} for LoRA; it has {', '.join(linear)}"
    )
