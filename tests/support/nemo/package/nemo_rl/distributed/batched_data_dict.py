"""A dict of columns."""

import torch


class BatchedDataDict(dict):
    @classmethod
    def from_batches(cls, batches):
        """Tensors are concatenated, lists are chained; every batch has every key."""
        result = cls()
        for key in batches[0]:
            values = [batch[key] for batch in batches]
            is_tensor = isinstance(values[0], torch.Tensor)
            result[key] = torch.cat(values) if is_tensor else [x for each in values for x in each]
        return result
