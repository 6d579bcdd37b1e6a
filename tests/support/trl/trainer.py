"""`GRPOTrainer` as a rollout function sees it: its attributes, its callbacks, and its order of
calls. It trains nothing: a step changes one number of the model."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.embedded.model.files import TINY

SAMPLES = 2
ROWS = [
    {"prompt": [{"role": "user", "content": f"{n} + {n}?"}], "ground_truth": str(2 * n)}
    for n in range(4)
]


class Trainer:
    """One process of a training. `resume`: the optimizer steps of the checkpoint that it has."""

    def __init__(self, folder: Path, rollout_func: Any, *, resume: int = 0, **more: Any):
        self.rollout_func = rollout_func
        self.model = AutoModelForCausalLM.from_pretrained(TINY)
        self.model.train()
        self.processing_class = AutoTokenizer.from_pretrained(TINY)
        self.accelerator = SimpleNamespace(num_processes=1, unwrap_model=lambda model: model)
        self.state = SimpleNamespace(global_step=0)
        self.args = SimpleNamespace(
            output_dir=str(folder / "out"),
            seed=0,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            min_p=None,
            repetition_penalty=1.0,
            max_completion_length=8,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
        )
        self.num_generations = self.num_generations_eval = SAMPLES
        self.num_iterations = 1
        self.tools: list[object] = []
        self.train_dataset: Any = ROWS
        self.eval_dataset: Any = None
        self.reward_funcs: list[Any] = []
        self.callback_handler = SimpleNamespace(callbacks=[])
        for name, value in more.items():
            setattr(self, name, value)
        for _ in range(resume):
            self._update()

    def add_callback(self, callback: Any) -> None:
        self.callback_handler.callbacks.append(callback)

    def step(self) -> dict[str, list[Any]]:
        """Asks for the rows of one generation, and trains on them."""
        row = self.train_dataset[self.state.global_step % len(self.train_dataset)]
        columns = self.rollout_func([row["prompt"]] * SAMPLES, self)
        self._update()
        return columns

    def evaluate(self) -> dict[str, list[Any]]:
        self.model.eval()
        try:
            return self.rollout_func([ROWS[0]["prompt"]] * SAMPLES, self)
        finally:
            self.model.train()

    def save(self) -> None:
        self._call("on_save")

    def end(self) -> None:
        self._call("on_train_end")
        shutil.rmtree(self.args.output_dir)

    def _call(self, event: str) -> None:
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(self.args, self.state, None)

    def _update(self) -> None:
        self.state.global_step += 1
        with torch.no_grad():
            next(self.model.parameters()).view(-1)[0] = float(self.state.global_step)
