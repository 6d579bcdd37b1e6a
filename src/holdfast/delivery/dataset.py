"""Offers a `Delivery` as an `IterableDataset` of PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.delivery.delivery import DeliveredBatch, Delivery
from holdfast.extras import needed_by
from holdfast.records.errors import UsageError

with needed_by("DeliveryDataset", extra="local"):
    from torch.utils.data import IterableDataset, get_worker_info


class DeliveryDataset(IterableDataset[Any]):
    """An iterable whose items are the batches of steps, converted by `convert`, for example
    `holdfast.convert.to_verl`.

    Read it with a `DataLoader` that has `batch_size=None` and `num_workers=0`: the ledger makes the
    batches, and a second process would be a second consumer. `step` is the step of the last item.
    """

    def __init__(
        self, delivery: Delivery, convert: Callable[[DeliveredBatch], Any] = lambda batch: batch
    ):
        self._delivery = delivery
        self._convert = convert
        self.step: int | None = None

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise UsageError(
                "a DeliveryDataset is read in the process that commits: give its DataLoader "
                "num_workers=0"
            )
        for step, batch in self._delivery:
            self.step = step
            yield self._convert(batch)
