"""`@evaluation_test`: an evaluation, written as a function that judges a row.

The decorator checks its arguments at once. The decorated function is a pytest test. When it is
called with a row, it judges that row, and its `evaluate` runs the whole evaluation without pytest.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.engine import options
from holdfast.evaluation.data.dataset import Adapter, Preprocess
from holdfast.evaluation.definition import validate
from holdfast.evaluation.definition.definition import Definition
from holdfast.evaluation.definition.parameters import parameters_of
from holdfast.evaluation.definition.validate import naming
from holdfast.evaluation.running.call import Evaluation
from holdfast.tasks.columns import Columns

Function = TypeVar("Function", bound=Callable[..., Any])
Params = Mapping[str, object]


def evaluation_test(
    bare: object = None,
    /,
    *,
    completion_params: "Sequence[Params | None] | Params | None" = None,
    dataset: object = None,
    input_messages: object = None,
    input_dataset: object = None,
    input_rows: object = None,
    data_loaders: object = None,
    columns: Columns | None = None,
    dataset_adapter: Adapter | None = None,
    rollout_processor: object = None,
    evaluation_test_kwargs: "Sequence[Params | None] | None" = None,
    rollout_processor_kwargs: Params | None = None,
    aggregation_method: str = "mean",
    passed_threshold: object = None,
    num_runs: int = 1,
    samples: int | None = None,
    seed: int | None = None,
    policy: str | Sequence[str] | None = None,
    filtered_row_ids: Sequence[str] | None = None,
    max_dataset_rows: int | None = None,
    mcp_config_path: str | None = None,
    max_concurrent_rollouts: int = options.CONCURRENCY.default,
    max_concurrent_evaluations: int = options.SCORER_CONCURRENCY.default,
    scorer_timeout: float = options.SCORER_TIMEOUT.default,
    scorer_tries: int = 1,
    server_script_path: str | None = None,
    steps: int | None = None,
    mode: str = "pointwise",
    combine_datasets: bool = True,
    preprocess_fn: Preprocess | None = None,
    logger: object = None,
    exception_handler_config: object = None,
    disable_browser_open: bool = False,
    **unknown: object,
) -> Callable[[Function], Function]:
    """Turns the decorated function into an evaluation. Takes the parameters of eval-protocol under
    their names, and a few more (docs/evaluations.md).

    `logger` receives every row that was judged, in addition to the journal. `disable_browser_open`
    is accepted and has no effect, because a browser is never opened.
    """
    arguments = dict(locals())
    if inspect.isfunction(bare):
        with naming(bare):
            validate.check_names(evaluation_test, bare, unknown)

    def decorate(function: Function) -> Function:
        with naming(function):  # Errors name the function, so nothing is checked before this.
            validate.check_names(evaluation_test, bare, unknown)
            definition = validate.definition_of(function, arguments)
        test = _wrapped(function, definition)
        test.__ep_params__ = parameters_of(arguments)  # type: ignore[attr-defined]
        return test  # type: ignore[return-value]

    return decorate


def _wrapped(function: Callable[..., Any], definition: Definition) -> Callable[..., object]:
    """Returns a plain function, as pytest wants its tests. Its signature has the arguments that
    pytest fills in. These are all arguments of the user's function except its rows."""

    @functools.wraps(function)
    def test(*positional: object, **named: object) -> object:
        return evaluation(*positional, **named)

    evaluation = Evaluation(definition)
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        list(definition.arguments)
    )
    test.__holdfast__ = definition  # type: ignore[attr-defined]
    test.evaluate = evaluation.evaluate  # type: ignore[attr-defined]
    test.evaluate_async = evaluation.evaluate_async  # type: ignore[attr-defined]
    test.place_as = function  # type: ignore[attr-defined]  # Where pytest says that it stands.
    # Tools of eval-protocol look for this attribute.
    test._origin_func = function  # type: ignore[attr-defined]  # noqa: SLF001
    del test.__wrapped__  # pytest must not see its signature.
    return test
