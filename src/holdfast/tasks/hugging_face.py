"""Reads data sets by their name on the Hugging Face hub: `hf:NAME[/CONFIG][:SPLIT]`.

The package `datasets` fetches them, and keeps them in its own cache. A change on the hub has the
same effect as a changed file: a command with other rows begins another run. Folders that `datasets`
saved are read by `files`, without that package.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.extras import needed_by
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.tasks.files import FileRecord, table_record

PREFIX = "hf:"
FORM = "hf:NAME, hf:NAME:SPLIT or hf:NAME/CONFIG:SPLIT"


class HubName(NamedTuple):
    """A data set on the hub, or in a folder (`hf:./folder`)."""

    path: str
    config: str | None
    split: str | None


def is_hub_name(source: object) -> bool:
    return isinstance(source, str) and source.startswith(PREFIX)


def parse_name(source: str) -> HubName:
    """Parses a name such as `hf:openai/gsm8k/main:test`.

    A name on the hub has at most one slash. If there is a second slash, the text after it is the
    configuration.
    """
    rest = source.removeprefix(PREFIX)
    name, colon, split = rest.partition(":")
    if not name or (colon and not split) or name.startswith("//"):
        raise UsageError(f"{source!r} names no data set; write {FORM}")
    if name.startswith((".", "/", "~")):
        if not Path(name).expanduser().is_dir():
            raise UsageError(f"{source}: folder {name} does not exist")
        return HubName(str(Path(name).expanduser()), None, split or None)
    parts = name.split("/")
    if len(parts) > 3 or not all(parts):
        raise UsageError(f"{source!r} names no data set; write {FORM}")
    config = parts[2] if len(parts) == 3 else None
    return HubName("/".join(parts[:2]), config, split or None)


def load_hub(source: str) -> Iterator[FileRecord]:
    """Yields the rows of a data set. Raises `UsageError`, with the reason, if it cannot be loaded.

    Fetching the data set blocks, so call this in a thread.
    """
    named = parse_name(source)
    table = one_split(_load(source, named), source)
    for number, row in enumerate(table, 1):
        where = f"{source}, row {number}"
        yield table_record(row, where)


def one_split(splits: Any, name: str) -> Any:
    """Returns the only split of a data set. Raises `UsageError` if it has several."""
    if not isinstance(splits, Mapping):
        return splits
    if len(splits) != 1:
        first = next(iter(splits), "SPLIT")
        form = f"{name}:{first}" if name.startswith(PREFIX) else f"tasks=data[{first!r}]"
        what = name if name.startswith(PREFIX) else "the data set"
        raise UsageError(f"{what} has several splits ({', '.join(splits)}); name one, as in {form}")
    return next(iter(splits.values()))


def _load(source: str, named: HubName) -> Any:
    with needed_by(source, extra="datasets"):
        import datasets
    try:
        return datasets.load_dataset(named.path, named.config, split=named.split)
    except Exception as error:  # The library raises errors of many kinds.
        raise UsageError(redact(f"{source} cannot be loaded: {_reason(error)}")) from error


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConnectionError) or "offline" in text.lower():
        text = f"{text:.200}; without a network, save it first (save_to_disk), and name the folder"
    return f"{text:.300}"
