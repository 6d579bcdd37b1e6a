"""Says how each argument of TRL's `GRPOConfig` and `AsyncGRPOConfig` is treated.

Arguments inherited from transformers' `TrainingArguments` are not checked: they are about
optimizers, checkpoints and logs.
"""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from transformers import TrainingArguments

from holdfast.delivery.framework_arguments import ArgumentTable, Refused, names

_ROLLED_OUT = Refused("the rollout decides on turns and tools: leave it out")
_OWN_ENGINE = Refused(
    "TRL's own engine samples nothing: leave it out, and give it to the engines that are named by "
    "policy=…, or to sampling=…"
)
TRL = ArgumentTable(
    "TRL",
    followed=names(
        """
        num_generations num_generations_eval max_completion_length temperature top_p top_k min_p
        repetition_penalty chat_template_kwargs steps_per_generation num_iterations
        max_inflight_tasks weight_sync_steps token_budget
        """
    ),
    refused={
        "generation_kwargs": _OWN_ENGINE,
        "vllm_structured_outputs_regex": _OWN_ENGINE,
        "vllm_max_model_length": _OWN_ENGINE,
        "max_tool_calling_iterations": _ROLLED_OUT,
        "fork_threshold_tokens": Refused(
            "a rollout that leaves its conversation is always a branch of its own: leave it out"
        ),
    },
    # Arguments of TRL's training, and of serving a model that does not sample here. `use_vllm`
    # switches TRL's correction on, which uses the logprobs of rollouts.
    irrelevant=names(
        """
        learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout
        cast_lm_head_to_fp32 remove_unused_columns ds3_gather_for_generation shuffle_dataset
        pad_to_multiple_of generation_batch_size cache_implementation use_vllm vllm_mode
        vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host
        vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
        vllm_tensor_parallel_size beta epsilon delta epsilon_high sapo_temperature_neg
        sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
        importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type
        mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
        top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max
        entropy_coef_delta entropy_target vllm_importance_sampling_correction
        vllm_importance_sampling_mode vllm_importance_sampling_clip_max
        vllm_importance_sampling_clip_min off_policy_mask_threshold use_bias_correction_kl
        log_completions log_multimodal num_completions_to_print log_unique_prompts
        log_completions_hub_repo use_transformers_continuous_batching
        transformers_continuous_batching_config use_transformers_paged
        vllm_importance_sampling_cap dtype request_timeout weight_sync_timeout max_staleness
        queue_maxsize heartbeat_stale_after_s
        """
    ),
)


def check_arguments(args: Any) -> None:
    """Raises `UsageError` for an argument that Holdfast cannot follow, before anything is
    sampled."""
    inherited = {field.name for field in fields(TrainingArguments)}
    declared = fields(args) if is_dataclass(args) else ()
    own = [field for field in declared if field.name not in inherited]
    TRL.check(
        {field.name: getattr(args, field.name) for field in own},
        {field.name: None if field.default is MISSING else field.default for field in own},
    )
