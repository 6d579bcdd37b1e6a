"""EPParameters holds the arguments of an `@evaluation_test`, for trainers that look them up.

They are at `test.__ep_params__`, under eval-protocol's names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict


class EPParameters(BaseModel):
    """The decorator's arguments as they were given."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    completion_params: Any = None
    input_messages: Any = None
    input_dataset: Any = None
    input_rows: Any = None
    data_loaders: Any = None
    dataset_adapter: Callable[..., Any] | None = None
    rollout_processor: Any = None
    rollout_processor_kwargs: dict[str, Any] | None = None
    evaluation_test_kwargs: Any = None
    aggregation_method: Any = "mean"
    passed_threshold: Any = None
    disable_browser_open: bool = False
    num_runs: int = 1
    filtered_row_ids: Sequence[str] | None = None
    max_dataset_rows: int | None = None
    mcp_config_path: str | None = None
    max_concurrent_rollouts: int = 8
    max_concurrent_evaluations: int = 64
    server_script_path: str | None = None
    steps: int = 30
    mode: Any = "pointwise"
    combine_datasets: bool = True
    preprocess_fn: Callable[..., Any] | None = None
    logger: Any = None
    exception_handler_config: Any = None


def parameters_of(arguments: Mapping[str, Any]) -> EPParameters:
    """Returns the decorator's arguments by name. An argument that is None counts as not given."""
    known = {
        name: value
        for name, value in arguments.items()
        if name in EPParameters.model_fields and value is not None
    }
    if known.get("input_dataset") is None and arguments.get("dataset") is not None:
        known["input_dataset"] = arguments["dataset"]
    # Not validated here: the code that reads an argument reports what is wrong with it.
    return EPParameters.model_construct(**known)
