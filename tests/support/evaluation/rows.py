"""A row with every field set."""

from hypothesis import strategies as st

FULL = {
    "messages": [
        {"role": "system", "content": "Be ürgent 🌊", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": [{"type": "text", "text": "see", "detail": 1},
                                     {"type": "image_url", "image_url": {"url": "data:,"}},
                                     {"type": "input_audio", "input_audio": {"data": ""}}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "weight": 0,
         "tool_calls": [{"id": "c1", "type": "function", "index": 0,
                         "function": {"name": "f", "arguments": "{}", "strict": True}}],
         "token_ids": [1, 2], "logprobs": {"content": [{"logprob": -0.5}]}},
        {"role": "tool", "content": "ok", "tool_call_id": "c1",
         "control_plane_step": {"step": 0, "reward": 0.25, "terminated": True,
                                "termination_reason": "control_plane_signal"}},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "input_metadata": {"row_id": "r", "completion_params": {"model": "m"}, "dataset_info": {"a": 1},
                       "session_data": {"mode": "pointwise"}, "mine": [1, None]},
    "rollout_status": {"code": 4, "message": "late", "details": [{"reason": "EXTRA_INFO"}], "n": 1},
    "ground_truth": {"deep": [True, 1, 1.5, None, "x"]},
    "evaluation_result": {"score": 0.5, "reason": "half", "mine": 1, "metrics": {
        "m": {"score": 1.0, "reason": "", "is_score_valid": False, "data": {"k": 1}, "extra": 2}},
        "step_outputs": [{"step_index": "a", "base_reward": 0.5, "other": 1}]},
    "execution_metadata": {"rollout_id": "x", "extra": {"prompt_ids": [1, 2]}, "usage": {
        "completion_tokens": 1, "prompt_tokens": 2, "total_tokens": 3, "cached": 1}, "new": "f"},
    "created_at": "2026-11-15T06:09:32.163575Z",
    "eval_metadata": {"name": "n", "num_runs": 1, "aggregation_method": "mean", "mine": 1},
    "pid": 7,
    "unknown": {"column": [1, 2]},
}  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
