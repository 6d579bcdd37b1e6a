"""The trained network is a Hugging Face causal LM folder, in full or with a LoRA adapter.

Rows go through the network packed, with Holdfast's own attention. The head works in chunks. A trial
at the start must show that the results are as near to float32 as the results of the model's own
forward pass. Otherwise sequences are computed one at a time, and `why_sequential` says why.

On a GPU, all layers are compiled for rows of any length, if the same trial accepts the compiled
layers. `why_slow` says why they are not compiled, or why the head has no fused kernels. With
several ranks, the network is divided among them. All ranks must create it at the same time and call
it in the same order, because each call gathers the weights.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from holdfast.records.errors import UsageError
from holdfast.records.samples.nearness import gap_between
from holdfast.training.model.exact import in_float32
from holdfast.training.model.plain import alone, load_model, plain_logprobs
from holdfast.training.model.sharding import ShardedCalls
from holdfast.training.model.trial import hold_trial
from holdfast.training.packing import attention
from holdfast.training.packing.attention import PackedLayout
from holdfast.training.packing.head import token_logprobs, why_unfused
from holdfast.training.packing.rows import PackedRow, TokenSequence
from holdfast.training.packing.tensors import to_tensor
from holdfast.training.ranks.group import RankGroup
from holdfast.training.settings import Lora

Result = TypeVar("Result")

_CANNOT_PACK = (NotImplementedError, TypeError, ValueError, KeyError, RuntimeError, AttributeError)


class Network:
    """A causal LM that returns logprobs of trained tokens, with gradients. The model is in
    evaluation mode, without dropout or router noise."""

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
        longest: int = 1024,
        ranks: RankGroup | None = None,
    ):
        """`compiled` says whether the layers are compiled. With None, they are compiled only on a
        GPU, with a data type smaller than float32, on a single rank. `longest` is the largest
        number of tokens in a sequence."""
        ranks = ranks or RankGroup()
        self.folder = folder
        self.device = torch.device(ranks.device(device))
        self.why_sequential = ""
        attention.register()
        self.module = load_model(folder, dtype)
        if self.module.get_output_embeddings() is None:
            raise UsageError(f"{folder} has no output head: it is not a causal LM")
        if ranks.size == 1:
            self.module.to(self.device)
        self._own_attention = self.module.config._attn_implementation  # noqa: SLF001  # set, but not asked for
        self.trial = hold_trial(folder, self.module, longest=longest)
        self.module.requires_grad_(trained and lora is None)
        self.lora = lora
        if lora is not None:
            self.module = _with_adapter(self.module, lora).eval()
        if gradient_checkpointing:
            _checkpoint_activations(self.module)
        self._decoder = self._plain.get_decoder()
        self.whole: Any = self.module
        """The module with all weights, as `take_whole` received them. With several ranks, only rank
        0 has this module."""
        self._sharded: ShardedCalls | None = None
        if ranks.size > 1:
            _check_alike(ranks, f"the weights in {folder}", digest_of(self.module.state_dict()))
            self.whole = copy.deepcopy(self.module) if trained and ranks.is_leader else None
            self._sharded = ShardedCalls(self.module, _layers(self.module), ranks)
        self._try_packed()
        _check_alike(ranks, "how the model takes packed rows", self.why_sequential or "it does")
        self.why_slow = why_unfused(self.device)
        # In float32, attention runs segment by segment, and would be compiled anew for each row.
        fits = self.device.type == "cuda" and dtype != torch.float32 and ranks.size == 1
        if not self.why_sequential and (fits if compiled is None else compiled):
            self._try_compiled()

    @property
    def _plain(self) -> Any:
        return self.module.get_base_model() if self.lora is not None else self.module

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
        """Returns (logprobs, entropies) of the row's trained tokens. `temperature` has one value
        for each token."""
        function = self._sequential if self.why_sequential else self._packed
        return self._call(partial(function, row, temperature))

    def _call(self, function: Callable[[], Result]) -> Result:
        """Calls a function while this rank has the whole weights."""
        if self._sharded is None:
            return function()
        return self._sharded.call(function)

    @torch.no_grad()
    def take_whole(self, weights: Mapping[str, Tensor]) -> None:
        """Copies weights that were gathered from all ranks into `whole`."""
        if self._sharded is not None:
            parameters = dict(self.whole.named_parameters())
            for name, weight in weights.items():
                parameters[name].copy_(weight)

    @torch.no_grad()
    def best_logprobs(self, ids: Sequence[int], lengths: Sequence[int]) -> list[float]:
        """Returns, for each length in `lengths`, the logprob of the likeliest token after the first
        `length` tokens of `ids`."""
        logits = self._call(partial(self._logits, ids, [length - 1 for length in lengths]))
        best: list[float] = logits.float().log_softmax(-1).max(-1).values.tolist()
        return best

    def exact_logprobs(self, ids: Sequence[int], lengths: Sequence[int]) -> list[float]:
        """Returns the same numbers as `best_logprobs`, computed in float32 from the present
        weights. With several ranks, only rank 0 computes them, from `whole`."""
        if self._sharded is None:
            with in_float32():
                return self.best_logprobs(ids, lengths)
        with in_float32():
            at = torch.tensor([length - 1 for length in lengths], device=self.whole.device)
            given = torch.tensor([ids], device=self.whole.device)
            logits = self.whole(input_ids=given, use_cache=False, logits_to_keep=at).logits[0]
            best: list[float] = logits.log_softmax(-1).max(-1).values.tolist()
        return best

    def _logits(self, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        logits: Tensor
        at = torch.tensor(places, device=self.device)
        if self.why_sequential:
            logits = self.module(
                input_ids=torch.tensor([ids], device=self.device),
                use_cache=False,
                logits_to_keep=at,
            ).logits[0]
        else:
            row = alone(TokenSequence(list(ids), list(range(1, len(ids)))))
            logits = self._plain.get_output_embeddings()(self._hidden(row)[at])
        return logits

    def without_adapter(self) -> Any:
        """Returns a context in which the LoRA adapter of the network is switched off."""
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
        """Returns the last hidden state of each of the row's tokens."""
        output = self._decoder(
            input_ids=to_tensor(row.ids, self.device)[None],
            position_ids=to_tensor(row.positions, self.device)[None],
            packed_layout=PackedLayout(row, self.device),
            use_cache=False,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _sequential(self, row: PackedRow, temperature: Tensor) -> tuple[Tensor, Tensor]:
        return plain_logprobs(self.module, row, temperature)

    def _try_packed(self) -> None:
        """Switches to packed rows if their logprobs are as near to float32 as the logprobs of the
        model's own pass. Otherwise the model's own pass computes one sequence at a time."""
        row = self.trial.row
        try:
            self.module.set_attn_implementation(attention.NAME)
            with torch.no_grad():
                ones = torch.ones(len(row.targets), device=self.device)
                packed = self._call(partial(self._packed, row, ones))[0]
            gap = self.trial.gap(packed.tolist())
            near = self.trial.accepts(gap)
            why = "" if near else f"packed rows are off by {gap.text} from its own forward pass"
        except _CANNOT_PACK as error:
            first = next(iter(str(error).splitlines()), "") or type(error).__name__
            why = f"its attention cannot be replaced ({first})"
        if not why:
            return
        self.why_sequential = why
        self.module.set_attn_implementation(self._own_attention)
        self._check_sequential()

    @torch.no_grad()
    def _check_sequential(self) -> None:
        """Raises `UsageError` if the model's own pass, as the network now runs it, gives other
        logprobs than in the trial. Possible reasons are dropout, or an attention that was not
        switched back."""
        sequence = self.trial.sequences[-1]
        own = self._call(lambda: plain_logprobs(self.module, alone(sequence))[0].tolist())
        gap = gap_between(own, self.trial.exact[-len(own) :])
        if not self.trial.accepts(gap):
            raise UsageError(
                f"{self.folder} cannot be trained so: {self.why_sequential}, and by itself, as it "
                f"is trained, its own is off by {gap.text}"
            )

    def _try_compiled(self) -> None:
        """Compiles the layers if their logprobs then are as near to float32 as the logprobs of the
        model's own pass."""
        from torch import _dynamo as dynamo

        layers, row = _layers(self.module), self.trial.row
        ones = torch.ones(len(row.targets), device=self.device)
        for layer in layers:
            layer.compile(dynamic=True)
        # One graph for each combination: shared or not, with a gradient or not, with the adapter or
        # not.
        dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, 64)
        try:
            logprobs = self._packed(row, ones)[0]
            if logprobs.requires_grad:
                logprobs.sum().backward()  # type: ignore[no-untyped-call]
            gap = self.trial.gap(logprobs.tolist())
            near = self.trial.accepts(gap)
            why = "" if near else f"their logprobs are then off by {gap.text}"
        except (*_CANNOT_PACK, OSError) as error:
            why = next(iter(str(error).splitlines()), "") or type(error).__name__
        self.module.zero_grad(set_to_none=True)
        if why or not layers:
            for layer in layers:
                layer._compiled_call_impl = None  # noqa: SLF001  # compile() has no way back
            slow = f"its layers cannot be compiled ({why or 'it has none that are known'})"
            self.why_slow = "; ".join(filter(None, (self.why_slow, slow)))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Returns a digest of names, shapes, types and bytes. Equal weights have equal digests."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _check_alike(ranks: RankGroup, what: str, own: str) -> None:
    digests = [digest.decode() for digest in ranks.exchange(own.encode())]
    if wrong := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        raise UsageError(
            f"{what}: rank {wrong[0]} has {digests[wrong[0]]:.80}, and rank 0 {digests[0]:.80}; "
            "all ranks need the same files and the same environment"
        )


def _layers(module: Any) -> list[Any]:
    """Returns the modules of the model that are known to be layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [part for part in module.modules() if isinstance(part, GradientCheckpointingLayer)]


def _checkpoint_activations(module: Any) -> None:
    # The first name is of transformers 5.23 and later, the second of earlier versions.
    named = hasattr(module, "activation_checkpointing_enable")
    name = "activation_checkpointing_enable" if named else "gradient_checkpointing_enable"
    getattr(module, name)({"use_reentrant": False})
    module.enable_input_require_grads()
    for layer in _layers(module):
        # Checkpointing checks this flag. The layer's parts stay in evaluation mode.
        layer.training = True


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
        # The optimizer keeps float32 copies. A float32 adapter would compute in float32.
        adapted = get_peft_model(module, config, autocast_adapter_dtype=False)
    except ValueError as error:
        raise _no_targets(lora.targets, names) from error
    for chosen in adapted.peft_config.values():
        _sort_sets(chosen)
    return adapted


def _sort_sets(config: Any) -> None:
    """Sorts the sets in `config`. peft would write a set in the order of its hashes, which differs
    between processes, so that equal content would be published as different bytes."""
    for name, value in vars(config).items():
        if isinstance(value, set | frozenset):
            setattr(config, name, sorted(value))


def _no_targets(wrong: Sequence[str], names: Iterable[str]) -> UsageError:
    linear = sorted(name for name in names if name.endswith(("proj", "fc1", "fc2", "dense")))
    return UsageError(
        f"the model has no modules called {', '.join(wrong)} for LoRA; it has {', '.join(linear)}"
    )
