"""Says how each setting of NeMo-RL is treated when recorded groups go into its buffer.

NeMo trains recorded groups like its own, with the same baseline, the same filters of overlong
answers and the same loss. NeMo itself samples only for its validation.
"""

from typing import Any

from msgspec import Struct

from holdfast.delivery.framework_arguments import ArgumentTable, Refused, names
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.errors import UsageError

SECTIONS = ("grpo", "policy.generation", "reward_penalties")
_SHAPED = Refused(
    "the reward of a recorded group is what its scorer gave, and NeMo-RL changes it in its own "
    "rollouts alone: leave it out, and let the scorer do it"
)
_CUT = Refused(
    "NeMo-RL would compute logprobs of the tokens that it keeps, and the recorded ones are of all: "
    "leave it out",
    unless=(1.0, -1, 0),
)
NEMO = ArgumentTable(
    "NeMo-RL",
    followed=names(
        """
        grpo.num_prompts_per_step grpo.num_generations_per_prompt
        grpo.async_grpo.max_trajectory_age_steps policy.generation.temperature
        """
    ),
    refused={
        "grpo.use_dynamic_sampling": Refused(
            "a step is the groups that the ledger has for it, whatever their rewards: leave it out"
        ),
        "grpo.reward_scaling.enabled": _SHAPED,
        "grpo.reward_shaping.enabled": _SHAPED,
        "reward_penalties.penalize_duplicated_reasoning": _SHAPED,
        "reward_penalties.penalize_empty_final_answer": _SHAPED,
        "reward_penalties.penalize_unwanted_tokens": _SHAPED,
        "reward_penalties.penalize_malformed_think_tag": _SHAPED,
        "grpo.invalid_tool_call_advantage": Refused(
            "recorded groups do not say which tool calls were invalid: leave it out"
        ),
        "grpo.malformed_thinking_advantage": Refused(
            "recorded groups do not say where reasoning is malformed: leave it out"
        ),
        "policy.generation.top_p": _CUT,
        "policy.generation.top_k": _CUT,
    },
    irrelevant=names(
        """
        grpo.max_num_epochs grpo.max_num_steps grpo.max_rollout_turns grpo.normalize_rewards
        grpo.advantage_clip_low grpo.advantage_clip_high grpo.use_leave_one_out_baseline
        grpo.val_period grpo.val_start_at grpo.val_batch_size grpo.val_at_start grpo.val_at_end
        grpo.max_val_samples grpo.val_num_generations_per_prompt grpo.stop_at_validation_metric
        grpo.stop_at_validation_threshold grpo.skip_reference_policy_logprobs_calculation grpo.seed
        grpo.async_grpo.enabled grpo.async_grpo.max_generation_failures
        grpo.async_grpo.in_flight_weight_updates
        grpo.async_grpo.recompute_kv_cache_after_weight_updates grpo.overlong_filtering
        grpo.dynamic_sampling_max_gen_batches grpo.batch_multiplier
        grpo.reward_scaling.source_min grpo.reward_scaling.source_max
        grpo.reward_scaling.target_min grpo.reward_scaling.target_max
        grpo.reward_shaping.overlong_buffer_length grpo.reward_shaping.overlong_buffer_penalty
        grpo.reward_shaping.max_response_length grpo.reward_shaping.stop_properly_penalty_coef
        grpo.calculate_advantages_on_gpu grpo.seq_logprob_error_threshold grpo.adv_estimator
        grpo.deduplicate_multimodal_data grpo.debug_payload_metrics reward_penalties.token_ids
        policy.generation.backend policy.generation.max_new_tokens
        policy.generation.val_temperature policy.generation.val_top_p policy.generation.val_top_k
        policy.generation.model_name policy.generation.stop_token_ids
        policy.generation.stop_strings policy.generation.bad_words policy.generation.colocated
        policy.generation.port_range_low policy.generation.port_range_high
        policy.generation.use_async_rollouts policy.generation.vllm_cfg
        policy.generation.vllm_kwargs policy.generation.sglang_cfg
        policy.generation.mcore_generation_config policy.generation.trtllm_cfg
        policy.generation.dynamo_cfg
        """
    ),
)


class NemoSettings(Struct, frozen=True):
    """The settings of NeMo that a `BufferFeed` follows."""

    prompts: int
    generations: int
    max_age: int
    temperature: float


def settings_of(config: Any) -> NemoSettings:
    """Reads NeMo's settings. `config` is NeMo's `MasterConfig` or a mapping of the same shape.
    Raises `UsageError` for a setting that Holdfast cannot follow."""
    plain = config.model_dump() if hasattr(config, "model_dump") else config
    values = {name: value for part in SECTIONS for name, value in NEMO.section(plain, part).items()}
    NEMO.check(values, {})
    steps, generations, age = (
        _whole(values, name)
        for name in (
            "grpo.num_prompts_per_step",
            "grpo.num_generations_per_prompt",
            "grpo.async_grpo.max_trajectory_age_steps",
        )
    )
    temperature = values.get("policy.generation.temperature")
    if not isinstance(temperature, int | float):
        raise UsageError(
            f"policy.generation.temperature must be a number, not {temperature!r:.100}"
        )
    return NemoSettings(steps, generations, age, float(temperature))


def _whole(values: dict[str, object], name: str) -> int:
    value = values.get(name)
    check_whole(name, value, least=0)
    assert isinstance(value, int), "it was just checked"
    return value
