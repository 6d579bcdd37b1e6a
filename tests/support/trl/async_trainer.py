"""`AsyncGRPOTrainer` as its rollout worker, its weight transfer and its callback see it: the order
of its calls, and its micro-batches. It trains nothing: a step changes one number of the model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.embedded.model.files import TINY

SAMPLES = 2


class Collator:
    """TRL's `DataCollatorForRollout`, which counts the groups of an epoch."""

    def __init__(self) -> None:
        self.groups_trained: set[int] = set()

    def __call__(self, rows: list[Any]) -> list[Any]:
        return [sample for rank in rows[0] for sample in rank.samples]


class AsyncTrainer:
    """One process of a training. `saved`: what the restored checkpoint holds."""

    def __init__(self, folder: Path, parts: Any, *, saved: Any = None, **more: Any):
        self.parts = parts
        self.args = SimpleNamespace(
            output_dir=str(folder / "out"),
            seed=0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=None,
            repetition_penalty=1.0,
            max_completion_length=8,
            num_generations=SAMPLES,
            max_inflight_tasks=2 * SAMPLES,
            weight_sync_steps=1,
            world_size=1,
            token_budget=0,
            restore_callback_states_from_checkpoint=False,
        )
        for name, value in more.items():
            setattr(self.args, name, value)
        step, callbacks = saved or (0, {})
        self.state = SimpleNamespace(global_step=step, stateful_callbacks=dict(callbacks))
        self.version = 0
        self.model = AutoModelForCausalLM.from_pretrained(TINY)
        self._set_weights()
        parts.callback.on_init_end(self.args, self.state, None)

    def begin(self) -> None:
        self.collator = Collator()
        self.loader = SimpleNamespace(collate_fn=self.collator)
        self.parts.callback.on_train_begin(
            self.args,
            self.state,
            None,
            model=self.model,
            processing_class=AutoTokenizer.from_pretrained(TINY),
            train_dataloader=SimpleNamespace(base_dataloader=self.loader),
        )
        self.parts.weight_transfer.init_weight_transfer()
        self._send()
        self.parts.worker.start()

    def take(self) -> list[Any]:
        """The rows of one group."""
        buffer = self.parts.worker.rollout_buffer
        return [buffer.get(timeout=60) for _ in range(SAMPLES)]

    def train(self, rows: list[Any]) -> None:
        """One micro-batch, which is one step."""
        metrics = [{"metrics": row.metrics} for row in rows]
        self.loader.collate_fn([[SimpleNamespace(samples=metrics)]])
        self.state.global_step += 1
        self._set_weights()
        self.parts.callback.on_step_end(self.args, self.state, None)
        self._send()

    def save(self) -> tuple[int, dict[str, Any]]:
        """The checkpoint: its step, and the states of the callbacks in it."""
        states = {type(self.parts.callback).__name__: self.parts.callback.state()}
        self.parts.callback.on_save(self.args, self.state, None)
        return self.state.global_step, states

    def end(self) -> None:
        self.parts.worker.stop()

    def _send(self) -> None:
        transfer = self.parts.weight_transfer
        transfer.pause()
        transfer.send_weights(iter(self.model.state_dict().items()))
        transfer.resume()
        self.version += 1
        self.parts.worker.update_model_version(self.version)

    def _set_weights(self) -> None:
        with torch.no_grad():
            next(self.model.parameters()).view(-1)[0] = float(self.state.global_step)
