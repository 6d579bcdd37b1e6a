"""TRL's `SFTTrainer` on an export of ours, as JSONL and as Parquet."""

import json
import subprocess
import sys

import pytest
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from holdfast.embedded.model.files import TINY
from holdfast.testing import FakeEngine

AGENT = """
import holdfast

async def solve(t: holdfast.Rollout) -> float:
    t.add(*t.task.messages)
    await t.generate(max_tokens=12)
    return 1.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "agent.py").write_text(AGENT)
    rows = [{"id": f"t{n}", "prompt": f"do {n}"} for n in range(4)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with FakeEngine(mean_length=8) as engine:
        words = ["run", "agent.py", "--tasks", "tasks.jsonl", "--run", "r", "--samples", "2"]
        holdfast(folder, *words, "--policy", engine.url, "--model", engine.model)
    return folder


def holdfast(folder, *words):
    subprocess.run([sys.executable, "-m", "holdfast", *words], cwd=folder, check=True)


@pytest.mark.parametrize("layout", ["messages", "prompt_completion"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_an_export_is_read(folder, tmp_path, layout, ending):
    out = tmp_path / f"sft.{ending}"
    holdfast(folder, "export", "r", "--what", "sft", "--sft-layout", layout, "--out", str(out))
    kind = "json" if ending == "jsonl" else ending
    rows = load_dataset(kind, data_files=str(out), cache_dir=str(tmp_path / "cache"))["train"]
    assert len(rows) == 8
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = SFTTrainer(
        model=str(TINY),
        args=SFTConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=1,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
        ),
        processing_class=tokenizer,
        train_dataset=rows,
    )
    assert trainer.train().training_loss > 0
