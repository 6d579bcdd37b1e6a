"""Data loaders make rows when a test runs. They have eval-protocol's names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.evaluation.data.dataset import as_row, check_callable, returned_rows
from holdfast.evaluation.rows.row import EvaluationRow, Message
from holdfast.records.encoding.declared import function_name
from holdfast.records.errors import UsageError

Rows = list[EvaluationRow]


@dataclass(kw_only=True)
class DataLoaderResult:
    """The rows of one variant."""

    rows: Rows
    type: str
    variant_id: str
    variant_description: str | None = None
    preprocessed: bool = False


@dataclass(kw_only=True)
class EvaluationDataLoader:
    """A base class. Override `variants`, which returns a list of functions. Each function returns
    the rows of one variant."""

    preprocess_fn: Callable[[Rows], Rows] | None = None

    def __post_init__(self) -> None:
        if self.preprocess_fn is not None:
            check_callable("preprocess_fn", self.preprocess_fn, "the list of rows")

    def variants(self) -> Sequence[Callable[[], DataLoaderResult]]:
        raise UsageError(f"{type(self).__name__} defines no `variants`")

    def load(self) -> list[DataLoaderResult]:
        """Loads all variants. `dataset_info` of a row names its variant."""
        return [self._process(variant()) for variant in self.variants()]

    def _process(self, result: DataLoaderResult) -> DataLoaderResult:
        before = len(result.rows)
        if self.preprocess_fn is not None:
            processed = self.preprocess_fn(result.rows)
            result.rows = _rows(processed, "preprocess_fn", self.preprocess_fn)
            result.preprocessed = True
        info = {
            f"data_loader_{name}": value for name, value in vars(result).items() if name != "rows"
        }
        info["data_loader_num_rows"] = before
        info["data_loader_num_rows_after_preprocessing"] = len(result.rows)
        for index, row in enumerate(result.rows):
            known = row.input_metadata.dataset_info or {}
            row.input_metadata.dataset_info = known | info | {"data_loader_row_idx": index}
        return result


@dataclass(kw_only=True)
class InlineDataLoader(EvaluationDataLoader):
    """Rows or conversations from the code."""

    rows: Rows | None = None
    messages: Sequence[list[Message]] | None = None
    id: str = "inline"
    description: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows is None and self.messages is None:
            raise UsageError("InlineDataLoader wants rows or messages")

    def variants(self) -> Sequence[Callable[[], DataLoaderResult]]:
        return [self._load_inline]

    def _load_inline(self) -> DataLoaderResult:
        return DataLoaderResult(
            rows=[as_row(row) for row in (*(self.rows or ()), *(self.messages or ()))],
            type=type(self).__name__,
            variant_id=self.id,
            variant_description=self.description,
        )


@dataclass(kw_only=True)
class DynamicDataLoader(EvaluationDataLoader):
    """Rows made by functions."""

    generators: Sequence[Callable[[], Rows]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for generator in self.generators:
            check_callable("generator", generator)

    def variants(self) -> Sequence[Callable[[], DataLoaderResult]]:
        return [self._variant(generator) for generator in self.generators]

    def _variant(self, generator: Callable[[], Rows]) -> Callable[[], DataLoaderResult]:
        return lambda: DataLoaderResult(
            rows=_rows(generator(), "generator", generator),
            type=type(self).__name__,
            variant_id=function_name(generator),
            variant_description=generator.__doc__,
        )


def _rows(loaded: object, argument: str, function: object) -> Rows:
    return [as_row(row) for row in returned_rows(loaded, argument, function)]
