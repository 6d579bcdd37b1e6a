"""Says how each setting of verl that an agent loop meets is treated."""

from collections.abc import Mapping
from typing import Any

from holdfast.delivery.framework_arguments import ArgumentTable, Refused, names

SECTIONS = ("actor_rollout_ref.rollout", "data", "reward", "algorithm")
_ROLLOUT = "actor_rollout_ref.rollout"
_OWN_LOOPS = Refused(
    "it is for verl's own agent loops, and the rollout decides on turns and tools: leave it out"
)
_SCORED = Refused("the scorer of the agent loop gives the reward: leave out one of the two")
_TEXT_ONLY = Refused("rollouts are of text alone: leave it out")


def _rollout(text: str) -> frozenset[str]:
    return frozenset(f"{_ROLLOUT}.{name}" for name in text.split())


VERL = ArgumentTable(
    "verl",
    followed=_rollout(
        """
        temperature top_p top_k prompt_length response_length val_kwargs.temperature
        val_kwargs.top_p val_kwargs.top_k logprobs_mode full_determinism
        """
    )
    | {"data.apply_chat_template_kwargs"},
    refused={
        f"{_ROLLOUT}.enable_rollout_routing_replay": Refused(
            "this plug-in passes on no routes of experts: leave it out"
        ),
        f"{_ROLLOUT}.multi_turn.max_assistant_turns": _OWN_LOOPS,
        f"{_ROLLOUT}.multi_turn.max_user_turns": _OWN_LOOPS,
        f"{_ROLLOUT}.multi_turn.tool_config_path": _OWN_LOOPS,
        f"{_ROLLOUT}.multi_turn.function_tool_path": _OWN_LOOPS,
        f"{_ROLLOUT}.limit_images": _TEXT_ONLY,
        "data.mm_processor_kwargs": _TEXT_ONLY,
        "reward.custom_reward_function.path": _SCORED,
        "reward.reward_manager.module.path": _SCORED,
        "reward.reward_model.enable": _SCORED,
        "reward.sandbox_fusion.url": _SCORED,
    },
    # Arguments of verl's data set, engines and trainer. verl itself numbers the samples of a prompt
    # (`n`) and filters groups, and its agent loops ignore `do_sample` and `repetition_penalty`.
    # `seed`, `ignore_eos`: its servers have them. `calculate_log_probs`: rollouts always request
    # logprobs.
    irrelevant=_rollout(
        """
        name mode nnodes n_gpus_per_node do_sample n repetition_penalty seed over_sample_rate
        val_kwargs.do_sample val_kwargs.n dtype gpu_memory_utilization
        standalone_gpu_memory_utilization ignore_eos enforce_eager cudagraph_capture_sizes
        free_cache_engine data_parallel_size expert_parallel_size tensor_model_parallel_size
        pipeline_model_parallel_size moe_tensor_parallel_size max_num_batched_tokens
        scheduling_policy max_model_len max_num_seqs log_prob_micro_batch_size
        log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
        disable_log_stats multi_stage_wake_up engine_kwargs calculate_log_probs agent trace
        multi_turn.enable multi_turn.max_parallel_calls multi_turn.max_tool_response_length
        multi_turn.tool_response_truncate_side multi_turn.use_inference_chat_template
        multi_turn.tokenization_sanity_check_mode multi_turn.format multi_turn.num_repeat_rollouts
        server prometheus custom checkpoint_manager_class checkpoint_engine profiler
        enable_chunked_prefill enable_prefix_caching load_format layered_summon layer_name_map
        sglang_engine_mode skip_tokenizer_init quantization quantization_config_file
        moe_load_balance_metrics_interval enable_sleep_mode mtp qat disaggregation
        router_config_path
        """
    )
    | names(
        """
        data.tokenizer data.use_shm data.train_files data.val_files data.train_max_samples
        data.val_max_samples data.prompt_key data.reward_fn_key data.max_prompt_length
        data.max_response_length data.train_batch_size data.gen_batch_size data.val_batch_size
        data.tool_config_path data.function_tool_path data.return_raw_input_ids
        data.return_raw_chat data.return_full_prompt data.shuffle data.seed
        data.dataloader_num_workers data.image_patch_size data.validation_shuffle
        data.filter_overlong_prompts data.filter_overlong_prompts_workers data.truncation
        data.image_key data.video_key data.audio_key data.trust_remote_code data.custom_cls
        data.return_multi_modal_inputs data.sampler data.datagen
        reward.num_workers reward.custom_reward_function.name
        reward.custom_reward_function.reward_kwargs reward.reward_manager.source
        reward.reward_manager.name reward.reward_manager.module.name
        reward.reward_model.enable_resource_pool reward.reward_model.n_gpus_per_node
        reward.reward_model.nnodes reward.reward_model.model_path reward.reward_model.rollout
        reward.reward_kwargs reward.sandbox_fusion.max_concurrent
        reward.sandbox_fusion.memory_limit_mb
        algorithm
        """
    ),
)


def check_arguments(config: Any, *, name: str, has_scorer: bool) -> None:
    """Raises `UsageError` for settings that Holdfast cannot follow. `name` is the name of the agent
    loop. If another agent loop is verl's default, settings for verl's own loops are allowed."""
    values = {key: value for part in SECTIONS for key, value in VERL.section(config, part).items()}
    agent = VERL.section(config, _ROLLOUT).get(f"{_ROLLOUT}.agent") or {}
    left_to_verl = [] if has_scorer else [_SCORED]
    if isinstance(agent, Mapping) and agent.get("default_agent_loop") != name:
        left_to_verl.append(_OWN_LOOPS)
    VERL.check(
        {
            key: value
            for key, value in values.items()
            if not any(VERL.refused.get(key) is reason for reason in left_to_verl)
        },
        {},
    )
