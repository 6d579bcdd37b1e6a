"""A Definition holds the arguments of one `@evaluation_test`, read and checked when the decorator
is applied.

A definition is a plain value. Making one opens and loads nothing. A *variant* is one choice of data
set, setting and keyword arguments. Each variant is its own experiment. In a groupwise evaluation,
all settings are members of one group, and so belong to one experiment.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from holdfast.engine import options as run_options
from holdfast.evaluation.data.dataset import Dataset
from holdfast.evaluation.definition.options import Options
from holdfast.evaluation.eval_protocol.dataset_logger import DatasetLogger
from holdfast.evaluation.eval_protocol.retries import Retrying
from holdfast.evaluation.rows.completion_params import Setting, ids_of, setting_of
from holdfast.evaluation.stats.verdict import Aggregation, Threshold
from holdfast.records.errors import UsageError
from holdfast.records.run import Code
from holdfast.rollout.code.fingerprint import fingerprinted, noting
from holdfast.rollout.processors.processor import RolloutProcessor


class Mode(StrEnum):
    POINTWISE = "pointwise"
    """The function judges one row."""
    GROUPWISE = "groupwise"
    """The function judges every sample of one row, in every setting, at once."""
    ALL = "all"
    """The function judges the whole data set at once."""

    @property
    def argument(self) -> str:
        return "row" if self is Mode.POINTWISE else "rows"


class Definition(Struct, frozen=True, dict=True):
    """The arguments of one decorator, and its function."""

    function: Callable[..., Any]
    mode: Mode
    datasets: tuple[Dataset, ...]
    completion_params: tuple[Mapping[str, object] | None, ...]
    keywords: tuple[Mapping[str, object], ...]
    processor: RolloutProcessor
    aggregation: Aggregation = Aggregation.MEAN
    threshold: Threshold | None = None
    num_runs: int = 1
    samples: int | None = None
    seed: int | None = None
    max_concurrent_rollouts: int = run_options.CONCURRENCY.default
    max_concurrent_evaluations: int = run_options.SCORER_CONCURRENCY.default
    scorer_timeout: float = run_options.SCORER_TIMEOUT.default
    scorer_tries: int = 1
    retrying: Retrying = Retrying()
    policy: tuple[str, ...] | None = None
    """The addresses of the engine's replicas."""
    logger: DatasetLogger | None = None
    """Receives every row that was judged."""

    @functools.cached_property
    def rollout(self) -> tuple[str, Code]:
        """The fingerprint of the code that makes the rollouts, and the code that the fingerprint
        covers."""
        return fingerprinted(self.processor)

    @functools.cached_property
    def scorer_code(self) -> Code:
        """The code of the judging function."""
        with noting(self.function) as parts:
            parts.add(self.function, decorated=False)
        return parts.code

    def read_code(self) -> None:
        """Computes both fingerprints. It is called after all modules are imported and before any
        test runs, so that a value that code changes later, such as a cache, does not change the
        fingerprints."""
        _ = self.rollout, self.scorer_code

    @property
    def name(self) -> str:
        """`module.Class.function`, without the names of enclosing functions."""
        qualified = self.function.__qualname__.rpartition("<locals>.")[2]
        return f"{self.function.__module__}.{qualified}"

    @property
    def arguments(self) -> tuple[inspect.Parameter, ...]:
        """The function's arguments besides its rows: fixtures, parameters, `self`."""
        keywords_ = {name for keywords in self.keywords for name in keywords}
        return tuple(
            parameter
            for name, parameter in inspect.signature(self.function).parameters.items()
            if name != self.mode.argument and name not in keywords_
        )


class Variant(Struct, frozen=True):
    """The data set, the settings and the keyword arguments of one experiment."""

    id: str
    """The variant's name, or "" for the only variant."""
    dataset: Dataset
    settings: tuple[Setting, ...]
    """The settings. Only groupwise mode has several."""
    keywords: Mapping[str, object]


def variants_of(definition: Definition, options: Options | None = None) -> list[Variant]:
    """Returns all variants of the definition. The session's options are applied first."""
    options = options or Options()
    sets = tuple(options.completion_params or definition.completion_params) or (None,)
    settings = [setting_of(params, options.overrides) for params in sets]
    if definition.mode is Mode.GROUPWISE:
        choices = [("", tuple(settings))]
    else:
        choices = [
            (name, (params,)) for name, params in zip(ids_of(settings), settings, strict=True)
        ]
    datasets = _datasets(definition, options)
    keywords = definition.keywords or ({},)
    return [
        Variant(
            id="-".join(
                part
                for part, several in (
                    (name, len(choices) > 1),
                    (label, len(datasets) > 1),
                    (f"kwargs{number}", len(keywords) > 1),
                )
                if several
            ),
            dataset=dataset,
            settings=chosen,
            keywords=keyword_arguments,
        )
        for label, dataset in zip(_labels(datasets), datasets, strict=True)
        for name, chosen in choices
        for number, keyword_arguments in enumerate(keywords)
    ]


def _datasets(definition: Definition, options: Options) -> list[Dataset]:
    datasets = list(definition.datasets)
    if options.jsonl_path is not None:
        # Other rows, read in the same way as the evaluation's own rows.
        own = datasets[0] if datasets else Dataset(())
        datasets = [dataclasses.replace(own, sources=(options.jsonl_path,))]
    if not datasets:
        raise UsageError(
            "it has no rows: give @evaluation_test dataset=…, input_dataset=…, "
            "input_messages=…, input_rows=… or data_loaders=…"
        )
    if options.max_rows is None:
        return datasets
    limit = None if options.max_rows < 0 else options.max_rows
    return [dataclasses.replace(dataset, limit=limit) for dataset in datasets]


def _labels(datasets: Sequence[Dataset]) -> list[str]:
    names = [dataset.name or "rows" for dataset in datasets]
    return [
        name if names.count(name) == 1 else f"{name}{number}" for number, name in enumerate(names)
    ]


def with_setting(variant: Variant, params: Mapping[str, object], options: Options) -> Variant:
    """Returns the variant with `params` as its only setting. pytest parametrizes the test by these
    params."""
    return structs.replace(variant, settings=(setting_of(params, options.overrides),))


# --- what makes two scorers the same


def scorer_fingerprint(
    definition: Definition,
    variant: Variant,
    arguments: Mapping[str, object] | None = None,
    *,
    judges: Sequence[str] = (),
    tasks: str = "",
) -> tuple[str, Code]:
    """Returns `name@digest` for the judging function, and the code that the digest covers.
    Decorators and other evaluations are not part of the digest. `arguments` are `self` and the
    values of the function's parameters, except the variant's own keywords. `judges` are the
    identities of the judges that the function is given, and `tasks` is the digest of all rows."""
    values = dict(arguments or {})
    instance = values.pop("self", None)
    with noting(definition.function) as parts:
        parts.include(definition.scorer_code)
        if instance is not None:  # The subclass may be in another file.
            parts.add(type(instance))
        parts.add_values({**variant.keywords, **values})
        parts.put("mode", definition.mode)
        if judges:
            parts.put("judges", repr(sorted(judges)))
        if definition.mode is Mode.GROUPWISE and len(variant.settings) > 1:
            # The rows that a row is compared with are part of how it is judged.
            parts.add_values({"settings": [setting.params for setting in variant.settings]})
        elif definition.mode is Mode.ALL:
            parts.put("tasks", tasks)
    return f"{definition.function.__name__}@{parts.digest}", parts.code
