"""eval-protocol's unit tests whose subject Holdfast has under the same name, and where it differs.

The differences are those of docs/evaluations.md ("How do I move a test from eval-protocol?").
"""

FILES = (
    *("test_exception_config.py", "test_exceptions.py", "test_human_id.py"),
    *("test_message_field_filtering.py", "test_models.py", "test_models_rl.py"),
    *("test_openai_rft_integration.py", "test_quickstart_utils.py", "test_retry_mechanism.py"),
    *("test_rollout_logprobs.py", "test_litellm_event_loop_compatibility.py"),
    *("test_status_migration_changes.py", "test_status_migration_integration.py"),
    *("test_status_model.py", "test_training_utils.py", "test_evaluation_postprocess.py"),
)
"""Rewards are here because they are given our rows and messages."""
REWARDS = (
    *("test_accuracy.py", "test_accuracy_length.py", "test_format.py", "test_function_calling.py"),
    *("test_json_schema.py", "test_language_consistency.py", "test_length.py"),
    *("test_list_comparison_math_reward.py", "test_math.py", "test_multiple_choice_math_reward.py"),
    *("test_reasoning_steps.py", "test_repetition.py", "test_tag_count.py"),
    *("test_typed_interface.py", "test_typed_interface_rl.py", "test_reward_function.py"),
)
DIFFERENT: dict[str, str] = {}
"""By the beginning of a test's id: why it does not hold here."""
