"""Reads and checks the decorator's arguments. Each error names the argument."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from holdfast.engine import options
from holdfast.engine.option_kinds import Whole
from holdfast.evaluation.data.dataset import Dataset, datasets_of
from holdfast.evaluation.definition.definition import Definition, Mode
from holdfast.evaluation.eval_protocol.basic import SingleTurnRolloutProcessor
from holdfast.evaluation.eval_protocol.dataset_logger import DatasetLogger
from holdfast.evaluation.eval_protocol.retries import retrying_of
from holdfast.evaluation.eval_protocol.row_processor import row_processor
from holdfast.evaluation.rows.completion_params import setting_of
from holdfast.evaluation.stats.verdict import Aggregation, Threshold
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError
from holdfast.rollout.processors.processor import RolloutProcessor, as_processor

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
Params = Mapping[str, object]
Member = TypeVar("Member", bound=StrEnum)


def definition_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Definition:
    """Returns the definition of an evaluation: the decorated function, and the decorator's
    arguments."""
    check_numbers(arguments)
    mode = member(Mode, arguments["mode"], name="mode")
    fields = _fields(arguments)
    check_function(function, mode)
    return Definition(
        function=function,
        mode=mode,
        datasets=datasets(function, arguments),
        keywords=keywords(arguments["evaluation_test_kwargs"], function, mode),
        **fields,
    )


_UNCHANGED = (
    "num_runs",
    "samples",
    "seed",
    "max_concurrent_rollouts",
    "max_concurrent_evaluations",
    "scorer_tries",
)
_OF_PROCESSOR = ("mcp_config_path", "server_script_path", "steps", "rollout_processor_kwargs")


def _fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the decorator's arguments, and returns the fields of a `Definition` that do not depend
    on the decorated function."""
    settings = listed(arguments["completion_params"])
    check_settings(settings, arguments["samples"])
    made = configured(
        processor(arguments["rollout_processor"]),
        **{name: arguments[name] for name in _OF_PROCESSOR},
    )
    return {
        **{name: arguments[name] for name in _UNCHANGED},
        "completion_params": settings,
        "processor": made,
        "aggregation": member(
            Aggregation, arguments["aggregation_method"], name="aggregation_method"
        ),
        "threshold": threshold(arguments["passed_threshold"]),
        "scorer_timeout": float(arguments["scorer_timeout"]),
        "retrying": retrying_of(arguments["exception_handler_config"]),
        "policy": addresses(arguments["policy"]),
        "logger": logger(arguments["logger"]),
    }


def member(kind: type[Member], value: object, *, name: str) -> Member:
    try:
        return kind(str(value))
    except ValueError:
        raise UsageError(f"{name}={value!r} is none of {', '.join(kind)}") from None


_NUMBERS = {
    "num_runs": Whole(1),
    "samples": options.SAMPLES.kind,
    "seed": Whole(0),
    "max_dataset_rows": Whole(0),
    "max_concurrent_rollouts": options.CONCURRENCY.kind,
    "max_concurrent_evaluations": options.SCORER_CONCURRENCY.kind,
    "scorer_tries": options.SCORER_TRIES.kind,
    "scorer_timeout": options.SCORER_TIMEOUT.kind,
}
_BOUNDS = ("standard_error", "clustered_standard_error")


def threshold(value: Any) -> Threshold | None:
    """Reads a number, `{"success": …, "standard_error": …}`, or an EvaluationThreshold."""
    if value is None:
        return None
    if isinstance(value, Threshold):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Threshold(float(value))
    members = (
        value if isinstance(value, Mapping) else vars(value) if hasattr(value, "__dict__") else {}
    )
    success = members.get("success")
    known = not isinstance(value, Mapping) or value.keys() <= {"success", *_BOUNDS}
    if not known or not isinstance(success, int | float) or isinstance(success, bool):
        raise UsageError(
            "passed_threshold wants a number, or success (and standard_error, "
            f"clustered_standard_error) as an EvaluationThreshold or a dict, not {value!r:.200}"
        )
    bounds = (members.get(name) for name in _BOUNDS)
    return Threshold(float(success), *(None if bound is None else float(bound) for bound in bounds))


def listed(params: Any) -> tuple[Params | None, ...]:
    if params is None:
        return ()
    if isinstance(params, Mapping):
        return (params,)
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise UsageError(f"completion_params wants a list of objects, not {params!r:.200}")
    if not params:
        raise UsageError("completion_params is an empty list: there would be nothing to run")
    return tuple(params)


def check_settings(settings: Sequence[Params | None], samples: int | None) -> None:
    """Raises `UsageError` if a setting cannot be read, or if it contradicts `samples`."""
    for setting in settings:
        own = setting_of(setting).samples
        if own is not None and samples is not None and own != samples:
            raise UsageError(
                f"samples={samples} contradicts n={own} of the completion_params; give one"
            )


def check_names(decorator: Callable[..., Any], bare: object, unknown: Params) -> None:
    """Raises `UsageError` unless the decorator is called with known, named arguments only."""
    if bare is not None:
        raise UsageError("evaluation_test wants named arguments: write @evaluation_test(dataset=…)")
    for name in sorted(unknown):
        near = nearest(name, inspect.signature(decorator).parameters)
        meant = f"; is {near!r} meant?" if near else "; docs/evaluations.md has all of them"
        raise UsageError(f"evaluation_test has no argument {name!r}{meant}")


def names(argument: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    listed = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    texts = tuple(value) if listed else ()
    if not texts or not all(isinstance(name, str) for name in texts):
        raise UsageError(f"{argument} wants a list of strings, not {value!r:.200}")
    return texts


def addresses(policy: Any) -> tuple[str, ...] | None:
    """Returns the addresses of the replicas of one engine. Raises `UsageError` for a policy
    object."""
    if callable(getattr(policy, "sample", None)):
        raise UsageError(
            "policy wants the engine's address here; give a policy of your own where the "
            "evaluation is begun: test.evaluate(policy=…)"
        )
    return names("policy", [policy] if isinstance(policy, str) else policy)


def processor(value: object) -> RolloutProcessor:
    if value is None:
        return SingleTurnRolloutProcessor()
    try:
        rollout_processor = row_processor(value) or as_processor(value)
    except UsageError as error:
        raise UsageError(f"rollout_processor: {error}") from None
    return row_processor(rollout_processor) or rollout_processor


def logger(value: Any) -> DatasetLogger | None:
    """Returns the user's logger, or None for the default logger. The default logger would write
    rows to the journal, which has them anyway."""
    if value is None or getattr(value, "is_journal", False):
        return None
    if not callable(getattr(value, "log", None)):
        raise UsageError(f"logger wants a DatasetLogger, with `log(row)`, not {value!r:.200}")
    dataset_logger: DatasetLogger = value
    return dataset_logger


def configured(processor: RolloutProcessor, **arguments: object) -> RolloutProcessor:
    """Returns the processor with the extra arguments that were given. Raises `UsageError` if the
    processor takes no such arguments."""
    named = {name: value for name, value in arguments.items() if value is not None and value != {}}
    if not named:
        return processor
    configured = getattr(processor, "configured", None)
    if configured is None:
        raise UsageError(
            f"{min(named)} means nothing to {type(processor).__name__}; leave it out, or "
            "give its values to the processor itself"
        )
    rollout_processor = configured(**named)
    assert isinstance(rollout_processor, RolloutProcessor), "configured returns a processor"
    return rollout_processor


_SOURCES = ("input_dataset", "input_messages", "input_rows", "data_loaders")
_READING = ("columns", "dataset_adapter", "preprocess_fn", "max_dataset_rows", "combine_datasets")


def datasets(function: Callable[..., Any], params: Params) -> tuple[Dataset, ...]:
    named = [name for name in ("dataset", *_SOURCES) if params[name] is not None]
    arguments: dict[str, Any] = {name: params[name] for name in (*_SOURCES, *_READING)}
    arguments["filtered_row_ids"] = names("filtered_row_ids", params["filtered_row_ids"])
    own = params["dataset"]
    if isinstance(own, list | tuple) and not own:
        raise UsageError("dataset is empty: there would be nothing to evaluate")
    if not named:
        return ()
    if len(named) > 1:
        raise UsageError(f"rows come from one place; given are {' and '.join(named)}")
    if own is not None:
        arguments["input_dataset"] = own
    if arguments["data_loaders"] is not None and arguments["preprocess_fn"] is not None:
        raise UsageError("preprocess_fn goes to the data loader where data_loaders are given")
    return tuple(datasets_of(**arguments, beside=folder(function)))


def folder(function: Callable[..., Any]) -> Path | None:
    try:
        return Path(inspect.getfile(function)).absolute().parent
    except TypeError:
        return None


def keywords(value: Any, function: Callable[..., Any], mode: Mode) -> tuple[Params, ...]:
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise UsageError(f"evaluation_test_kwargs wants a list of objects, not {value!r:.200}")
    parameters = inspect.signature(function).parameters
    takes_any = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    for name in sorted({name for parameter in value for name in parameter or {}}):
        if name == mode.argument or (name not in parameters and not takes_any):
            raise UsageError(f"evaluation_test_kwargs: {function.__name__} takes no {name!r}")
    return tuple(parameter or {} for parameter in value)


def check_numbers(arguments: Params) -> None:
    """Checks each number against its bounds. None means that the number was not given."""
    for name, kind in _NUMBERS.items():
        if arguments[name] is not None:
            kind.check(name, arguments[name])


# --- the function that judges


def called_by(function: object) -> str:
    """Returns the function's file and name, as pytest writes them, for example
    `test_sums.py::test_sums`."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    name = name.rpartition("<locals>.")[2].replace(".", "::")
    return name if code is None else f"{Path(code.co_filename).name}::{name}"


@contextmanager
def naming(function: object) -> Iterator[None]:
    """Puts the evaluation's file and name before the message of a `UsageError` that the body
    raises."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{called_by(function)}: {error}") from None


def check_function(function: Callable[..., Any], mode: Mode) -> None:
    if not inspect.isfunction(function):
        raise UsageError(f"@evaluation_test decorates a function, not {function!r:.200}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function.__name__} yields; an evaluation returns its result")
    parameters = inspect.signature(function).parameters
    if mode.argument not in parameters:
        raise UsageError(
            f"in {mode} mode {function.__name__} wants a parameter named {mode.argument!r}; it "
            f"has ({', '.join(parameters)})"
        )
    kind = parameters[mode.argument].kind
    if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise UsageError(f"{function.__name__}: {mode.argument!r} is a parameter of its own")


def never_returns(function: Callable[..., Any]) -> bool:
    """Returns whether no `return` statement of the function has a value. Returns False if the
    source cannot be read."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        (parsed,) = ast.parse(source).body
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    if not isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    waiting: list[ast.AST] = [*parsed.body]
    while waiting:  # A long chain of `elif` is a deep tree.
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return False
        if not isinstance(node, _NESTED):
            waiting += ast.iter_child_nodes(node)
    return True
