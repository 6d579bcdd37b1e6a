"""`@evaluation_test`: an evaluation, written as a function that judges a row.

Everything it says is checked where it stands. The decorated function is a pytest test; called with
a row it judges that row; and `evaluate` runs the whole evaluation without pytest.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.engine import options
from holdfast.evaluation.data.dataset import Adapter, Preprocess
from holdfast.evaluation.definition import validate
from holdfast.evaluation.definition.definition import Definition, check_function
from holdfast.evaluation.definition.parameters import parameters_of
from holdfast.evaluation.definition.retries import retrying_of
from holdfast.evaluation.running.call import Evaluation
from holdfast.rollout.processors.processor import fingerprinted

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
    """The parameters of eval-protocol under their names, and a few of ours (docs/evaluations.md).

    `logger` is given every row that was judged, beside the journal. `disable_browser_open` is
    accepted and changes nothing: no browser is ever opened.
    """
    arguments = dict(locals())
    validate.check_names(evaluation_test, bare, unknown)
    validate.check_numbers(arguments)
    judged = validate.mode(mode)
    settings = validate.listed(completion_params)
    validate.check_settings(settings, samples)
    processor = validate.configured(
        validate.processor(rollout_processor),
        mcp_config_path=mcp_config_path,
        server_script_path=server_script_path,
        steps=steps,
        rollout_processor_kwargs=rollout_processor_kwargs,
    )

    code, rollout_code = fingerprinted(processor)

    def decorate(function: Function) -> Function:
        check_function(function, judged)
        definition = Definition(
            function=function,
            mode=judged,
            datasets=validate.datasets(
                function,
                dataset=dataset,
                input_dataset=input_dataset,
                input_messages=input_messages,
                input_rows=input_rows,
                data_loaders=data_loaders,
                dataset_adapter=dataset_adapter,
                preprocess_fn=preprocess_fn,
                filtered_row_ids=validate.names("filtered_row_ids", filtered_row_ids),
                max_dataset_rows=max_dataset_rows,
                combine_datasets=combine_datasets,
            ),
            completion_params=settings,
            keywords=validate.keywords(evaluation_test_kwargs, function, judged),
            processor=processor,
            rollout=code,
            rollout_code=rollout_code,
            aggregation=validate.aggregation(aggregation_method),
            threshold=validate.threshold(passed_threshold),
            num_runs=num_runs,
            samples=samples,
            seed=seed,
            max_concurrent_rollouts=max_concurrent_rollouts,
            max_concurrent_evaluations=max_concurrent_evaluations,
            scorer_timeout=float(scorer_timeout),
            scorer_tries=scorer_tries,
            retrying=retrying_of(exception_handler_config),
            policy=validate.addresses(policy),
            logger=validate.logger(logger),
        )
        test = _wrapped(function, definition)
        test.__ep_params__ = parameters_of(arguments)  # type: ignore[attr-defined]
        return test  # type: ignore[return-value]

    return decorate


def _wrapped(function: Callable[..., Any], definition: Definition) -> Callable[..., object]:
    """A plain function, as pytest wants its tests, which shows the arguments that pytest is to
    fill in: those of the user's function but for its rows."""

    @functools.wraps(function)
    def test(*given: object, **named: object) -> object:
        return evaluation(*given, **named)

    evaluation = Evaluation(definition)
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        list(definition.arguments)
    )
    test.__holdfast__ = definition  # type: ignore[attr-defined]
    test.evaluate = evaluation.evaluate  # type: ignore[attr-defined]
    test.evaluate_async = evaluation.evaluate_async  # type: ignore[attr-defined]
    test.place_as = function  # type: ignore[attr-defined]  # Where pytest says that it stands.
    # What eval-protocol's own tools look for.
    test._origin_func = function  # type: ignore[attr-defined]  # noqa: SLF001
    del test.__wrapped__  # Its signature is not the one that pytest is to see.
    return test
