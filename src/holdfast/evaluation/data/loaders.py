"""Data loaders: rows that are made when a test runs, under eval-protocol's names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.evaluation.data.dataset import as_row
from holdfast.evaluation.rows.row import EvaluationRow, Message
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
    """Override `variants`: functions that give the rows of each."""

    preprocess_fn: Callable[[Rows], Rows] | None = None

    def variants(self) -> Sequence[Callable[[], DataLoaderResult]]:
        raise UsageError(f"{type(self).__name__} defines no `variants`")

    def load(self) -> list[DataLoaderResult]:
        """All variants; their rows say where they come from."""
        return [self._processed(variant()) for variant in self.variants()]

    def _processed(self, result: DataLoaderResult) -> DataLoaderResult:
        before = len(result.rows)
        if self.preprocess_fn is not None:
            result.rows = self.preprocess_fn(result.rows)
            result.preprocessed = True
        told = {
            f"data_loader_{name}": value for name, value in vars(result).items() if name != "rows"
        }
        told["data_loader_num_rows"] = before
        told["data_loader_num_rows_after_preprocessing"] = len(result.rows)
        for index, row in enumerate(result.rows):
            known = row.input_metadata.dataset_info or {}
            row.input_metadata.dataset_info = known | told | {"data_loader_row_idx": index}
        return result


@dataclass(kw_only=True)
class InlineDataLoader(EvaluationDataLoader):
    """Rows or conversations that are written down."""

    rows: Rows | None = None
    messages: Sequence[list[Message]] | None = None
    id: str = "inline"
    description: str | None = None

    def __post_init__(self) -> None:
        if self.rows is None and self.messages is None:
            raise UsageError("InlineDataLoader wants rows or messages")

    def variants(self) -> Sequence[Callable[[], DataLoaderResult]]:
        return [self._inline]

    def _inline(self) -> DataLoaderResult:
        return DataLoaderResult(
            rows=[as_row(one) for one in (*(self.rows or ()), *(self.messages or ()))],
            type=type(self).__name__,
            variant_id=self.id,
            variant_description=self.description,
        )


@dataclass(kw_only=True)
class DynamicDataLoader(EvaluationDataLoader):
    """Rows that functions make."""

    generators: Sequence[Callable[[], Rows]]

    def variants(self) -> Sequence[Callable[[], DataLoaderResult]]:
        return [self._variant(one) for one in self.generators]

    def _variant(self, generator: Callable[[], Rows]) -> Callable[[], DataLoaderResult]:
        return lambda: DataLoaderResult(
            rows=[as_row(one) for one in generator()],
            type=type(self).__name__,
            variant_id=generator.__name__,
            variant_description=generator.__doc__,
        )
