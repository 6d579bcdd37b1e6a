"""Says how each argument of slime and each field of its evaluations is treated."""

from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Any

from holdfast.delivery.framework_arguments import ArgumentTable, Refused, names
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError

OWN = names(
    "holdfast_rollout holdfast_scorer holdfast_journal holdfast_run holdfast_policy "
    "holdfast_renderer"
)
_SCORED = Refused("the scorer of the rollouts gives the reward (holdfast_scorer): leave it out")
_ROLLED_OUT = Refused("the rollout decides what is sampled (holdfast_rollout): leave it out")
_KEPT = Refused(
    "a rollout is the groups of its tasks, whatever their rewards, so that it can be repeated: "
    "leave it out"
)
_ONE_REWARD = Refused(
    "it picks one of several rewards, and a scorer gives one: leave it out, and let the scorer "
    "return that one"
)
_CUT = Refused(
    "logprobs would be of the tokens that it keeps, and slime is not told which: leave it out",
    unless=(0,),
)
_TEXT_ONLY = Refused("rollouts are of text alone: leave it out")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


SLIME = ArgumentTable(
    "slime",
    followed=names(
        """
        hf_checkpoint prompt_data input_key label_key apply_chat_template_kwargs
        rollout_batch_size n_samples_per_prompt rollout_temperature
        rollout_max_prompt_len rollout_max_context_len rollout_max_response_len rollout_stop
        rollout_stop_token_ids rollout_shuffle rollout_seed save use_rollout_routing_replay
        advantage_estimator rewards_normalization grpo_std_normalization
        custom_reward_post_process_path custom_convert_samples_to_train_data_path
        eval_prompt_data eval_config eval_input_key eval_label_key n_samples_per_eval_prompt
        eval_temperature eval_top_p eval_top_k eval_max_response_len eval_max_prompt_len
        custom_config_path
        """
    ),
    refused={
        "rollout_top_p": _CUT,
        "rollout_top_k": _CUT,
        "rollout_global_dataset": Refused(
            "with --disable-rollout-global-dataset slime never calls save and load of its data "
            "source, so that nothing would ever be committed: leave it out"
        ),
        "partial_rollout": Refused(
            "it puts unfinished samples back as prompts; with Holdfast, unfinished rollouts go on "
            "from the journal by themselves: leave it out"
        ),
        "mask_offpolicy_in_partial_rollout": Refused("there are no partial rollouts: leave it out"),
        "over_sampling_batch_size": _KEPT,
        "dynamic_sampling_filter_path": _KEPT,
        "buffer_filter_path": _KEPT,
        "rollout_sample_filter_path": _KEPT,
        "rollout_all_samples_process_path": _KEPT,
        "rollout_sample_hook_path": _ROLLED_OUT,
        "custom_generate_function_path": _ROLLED_OUT,
        "multimodal_keys": _TEXT_ONLY,
        "eval_min_new_tokens": Refused(
            "an evaluation has no least length: leave it out, or let the rollout ask for it "
            "(Sampling(extra_body=…))"
        ),
        "rm_type": _SCORED,
        "rm_url": _SCORED,
        "custom_rm_path": _SCORED,
        "group_rm": _SCORED,
        "reward_key": _ONE_REWARD,
        "eval_reward_key": _ONE_REWARD,
        "opd_type": Refused(
            "rollouts have no logprobs of a teacher: leave it out, or let slime compute them "
            "(--opd-type megatron)",
            unless=("megatron",),
        ),
    },
    # slime's optimizer, engines, logs, and other rollout functions. `apply_chat_template`: rollouts
    # have messages and always render them. `tool_key`, `metadata_key`: a rollout finds all columns
    # in its task. `rollout_skip_special_tokens`: text is decoded from tokens here.
    irrelevant=names(
        """
        actor_num_nodes actor_num_gpus_per_node rollout_num_gpus rollout_num_gpus_per_engine
        num_gpus_per_node colocate offload offload_train offload_rollout distributed_backend
        distributed_timeout_minutes qwen_gdn_backend train_env_vars update_weight_mode
        update_weight_transport release_train update_weight_disk_dir update_weight_disk_keep_files
        update_weight_delta_encoding update_weight_delta_checksum
        custom_update_weight_post_write_path update_weight_local_checkpoint_dir
        custom_model_provider_path recompute_loss_function log_probs_chunk_size
        only_train_params_name_list freeze_params_name_list freeze_indexer allgather_cp
        model_name rollout_function_path rollout_skip_special_tokens
        custom_rollout_log_function_path custom_eval_rollout_log_function_path
        update_weight_buffer_size update_weights_interval keep_old_actor
        rollout_data_postprocess_path rollout_data_transport rollout_external_engine_addrs
        use_fault_tolerance rollout_health_check_interval rollout_health_check_timeout
        rollout_health_check_first_wait
        num_rollout num_epoch data_source_path apply_chat_template metadata_key tool_key
        start_rollout_id global_batch_size num_steps_per_rollout micro_batch_size balance_data
        balance_by_flops use_dynamic_batch_size max_tokens_per_gpu log_probs_max_tokens_per_gpu
        eval_function_path eval_interval skip_eval_before_train eval_tool_key eval_max_context_len
        ref_load ref_ckpt_step load save_interval async_save no_save_optim save_hf seed clip_grad
        calculate_per_token_loss lr num_critic_only_steps megatron_config_path eps_clip
        eps_clip_high eps_clip_c value_clip kl_coef loss_type custom_loss_function_path
        kl_loss_type compute_advantages_and_returns custom_advantage_function_path use_kl_loss
        kl_loss_coef use_unbiased_kl ref_update_interval entropy_coef gamma lambd
        normalize_advantages use_rollout_entropy get_mismatch_metrics reset_optimizer_states
        use_stateless_adam use_rollout_logprobs use_tis tis_clip tis_clip_low
        custom_tis_function_path custom_pg_loss_reducer_function_path use_routing_replay use_opsm
        opsm_delta use_opd opd_kl_coef opd_teacher_load opd_teacher_ckpt_step
        use_wandb wandb_mode wandb_dir wandb_key wandb_host wandb_team wandb_group wandb_project
        wandb_random_suffix wandb_always_use_train_step log_multi_turn log_passrate
        log_reward_category log_correct_samples wandb_run_id use_tensorboard tb_project_name
        tb_experiment_name
        save_debug_rollout_data load_forge_rollout_data load_debug_rollout_data
        load_debug_rollout_data_subsample save_debug_train_data dump_details memory_snapshot_dir
        memory_snapshot_num_steps profile_target memory_recorder record_memory_history
        check_weight_update_equal train_backend debug_rollout_only debug_train_only
        http_proxy use_distributed_post
        rollout_buffer_url fetch_trajectory_retry_times min_batch_collection_ratio
        rollout_task_type loss_mask_type data_pad_size_multiplier
        custom_megatron_init_path custom_megatron_before_log_prob_hook_path
        custom_megatron_before_train_step_hook_path megatron_deepgemm_forward_layers
        megatron_deepgemm_forward_modules megatron_deepgemm_moe_forward_layers
        megatron_deepgemm_moe_forward_modules mtp_num_layers mtp_loss_scaling_factor
        enable_mtp_training ci_test ci_disable_kl_checker
        ci_train_rollout_logprob_abs_diff_threshold ci_save_grad_norm ci_load_grad_norm
        padded_vocab_size
        """
    ),
    as_written=_option,
)

EVALUATION = ArgumentTable(
    "slime's evaluations",
    followed=names(
        """
        name path input_key label_key apply_chat_template_kwargs n_samples_per_eval_prompt
        temperature top_p top_k max_response_len stop stop_token_ids repetition_penalty
        """
    ),
    refused={
        "rm_type": _SCORED,
        "custom_rm_path": _SCORED,
        "reward_model": _SCORED,
        "custom_generate_function_path": _ROLLED_OUT,
        "app_service": _ROLLED_OUT,
        "message_processor": _ROLLED_OUT,
        "remote_environment": _ROLLED_OUT,
        "multimodal_keys": _TEXT_ONLY,
        "min_new_tokens": SLIME.refused["eval_min_new_tokens"],
        "min_eval_samples": Refused("an evaluation rolls out each of its tasks: leave it out"),
        "eval_early_stop_remaining": Refused("an evaluation waits for all: leave it out"),
        "eval_early_stop_idle_timeout": Refused("an evaluation waits for all: leave it out"),
        "eval_task_timeout": Refused("give the rollout a deadline (Settings): leave it out"),
        "metadata_overrides": Refused("a rollout has the columns of its row alone: leave it out"),
    },
    irrelevant=names("apply_chat_template tool_key metadata_key skip_special_tokens no_stop_trim"),
    as_written=lambda name: f"{name} of an evaluation (--eval-config)",
)


def check_arguments(args: Any) -> None:
    """Raises `UsageError` for an argument that Holdfast cannot follow, before anything is
    sampled."""
    values = vars(args)
    for name in values:
        if name.startswith("holdfast_") and name not in OWN:
            near = nearest(name, sorted(OWN), alike=0.6)
            meant = f"; is {near} meant?" if near else ""
            raise UsageError(f"{name} is not an argument of holdfast.slime{meant}")
    defaults = _defaults()
    # If the user does not set it, slime fills it in.
    defaults["over_sampling_batch_size"] = values.get("rollout_batch_size")
    SLIME.check({name: values[name] for name in defaults if name in values}, defaults)
    for dataset in evaluations_of(args):
        EVALUATION.check(vars(dataset), {})


def _defaults() -> dict[str, object]:
    """Returns the defaults of slime's own arguments, from slime's parser. The arguments of Megatron
    and SGLang are not included."""
    from slime.utils.arguments import get_slime_extra_args_provider

    parser = get_slime_extra_args_provider()(ArgumentParser(add_help=False, allow_abbrev=False))
    # argparse has no other list of its arguments.
    return {action.dest: action.default for action in parser._actions}  # noqa: SLF001


def evaluations_of(args: Any) -> Iterable[Any]:
    """Returns slime's `EvalDatasetConfig`s, in which slime combines all of its arguments about
    evaluations."""
    return getattr(args, "eval_datasets", None) or ()
