"""slime's arguments, as its parser would give them."""

import json
from argparse import Namespace
from pathlib import Path

from holdfast.embedded.model.files import TINY

EVALUATION = {
    **dict.fromkeys(("rm_type", "custom_rm_path", "input_key", "label_key", "tool_key")),
    **dict.fromkeys(("n_samples_per_eval_prompt", "temperature", "top_p", "top_k")),
    **dict.fromkeys(("max_response_len", "stop", "stop_token_ids", "min_new_tokens")),
    **dict.fromkeys(("repetition_penalty", "apply_chat_template", "apply_chat_template_kwargs")),
    **dict.fromkeys(("custom_generate_function_path", "min_eval_samples")),
    "metadata_overrides": {},
}
AGENT = Path(__file__).parent / "agent.py"


def arguments(folder: Path, url: str, *, samples: int = 2, groups: int = 2, **more) -> Namespace:
    data = folder / "data.jsonl"
    if not data.exists():
        rows = [{"input": f"do task {number}", "label": "fine"} for number in range(8)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "hf_checkpoint": str(TINY),
        "prompt_data": str(data),
        "input_key": "input",
        "label_key": "label",
        "rollout_batch_size": groups,
        "n_samples_per_prompt": samples,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": 12,
        "rollout_seed": 3,
        "rollout_shuffle": True,
        "rollout_global_dataset": True,
        "partial_rollout": False,
        "save": str(folder / "checkpoints"),
        "custom_reward_post_process_path": "holdfast.slime.post_process_rewards",
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "holdfast_rollout": f"{AGENT}:solve",
        "holdfast_journal": str(folder / "holdfast.db"),
        "holdfast_policy": url,
        "holdfast_renderer": "bytes",
    }
    return Namespace(**values | more)


def evaluation(name: str, path: Path | str, **more) -> Namespace:
    """slime's `EvalDatasetConfig`."""
    return Namespace(**EVALUATION | {"name": name, "path": str(path)} | more)
