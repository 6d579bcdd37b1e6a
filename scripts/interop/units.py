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
REWARDS = (
    *("test_accuracy.py", "test_accuracy_length.py", "test_format.py", "test_function_calling.py"),
    *("test_json_schema.py", "test_language_consistency.py", "test_length.py"),
    *("test_list_comparison_math_reward.py", "test_multiple_choice_math_reward.py"),
    *("test_reasoning_steps.py", "test_repetition.py", "test_tag_count.py"),
    "test_reward_function.py",
)
"""Its reward functions, which are given our messages."""
RESULTS = ("EvaluateResult", "MetricResult", "StepOutput", "reward_function")

_NO_DECORATOR = "retries are the run's, from its journal: there is no decorator that makes them"
_BY_CAUSE = "what is tried again is decided by the cause of a failure; its list is not ours"
_OTHER_WORDS = "ids are as readable, of other words"
_IN_AN_EVALUATION = (
    "a processor of Holdfast's takes rows within an evaluation, where it has a journal, and asks "
    "the run's policy, not litellm"
)
_OWN_MESSAGE = (
    "it wants its own Message: the rows of an evaluation have such; one that is made by hand is "
    "eval-protocol's or Holdfast's"
)
_PRIVATE = "a private method"
DIFFERENT = {
    "test_exception_config::test_backoff_config_": _NO_DECORATOR,
    "test_exception_config::test_exception_handler_config_get_backoff_decorator": _NO_DECORATOR,
    "test_exception_config::test_exception_handler_config_": _BY_CAUSE,
    "test_exceptions::test_integration_with_retry_logic": _BY_CAUSE,
    "test_function_calling.TestExactToolMatchReward::test_message_object_input": _OWN_MESSAGE,
    "test_human_id::test_generate_id_": _OTHER_WORDS,
    "test_litellm_event_loop_compatibility::test_single_turn_": _IN_AN_EVALUATION,
    "test_rollout_logprobs::test_single_turn_": _IN_AN_EVALUATION,
    "test_models::test_stable_json": _PRIVATE,
    "test_models::test_stable_hash_json_representation": _PRIVATE,
    "test_models::test_message_creation_requires_role": "the same error, in pydantic's words",
    "test_models_rl.TestRLDataStructures::test_step_data_": _OWN_MESSAGE,
    "test_quickstart_utils.TestAssistantToGroundTruth::test_fails_when_last": (
        "the same error, as a UsageError that names the row"
    ),
    "test_retry_mechanism::test_retry_mechanism_mock_verification": (
        "rows are rolled out one by one, as the run has room for them, and not in one call for all"
    ),
    "test_retry_mechanism::test_fail_fast": (
        "an error of the code is tried once more, to tell a flake from a bug"
    ),
    "test_retry_mechanism::test_": ("a row that failed for good fails the test, and is not judged"),
}
"""By the beginning of a test's name: why it does not hold here."""
