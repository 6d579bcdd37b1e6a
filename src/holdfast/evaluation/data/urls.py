"""Data sets behind an address: fetched whole when their rows are wanted, and kept nowhere.

What changed there since is noticed like a changed file: the rows are others, and so is the run.
"""

import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.evaluation.data.files import Found, read
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError

SECONDS = 60.0
"""Without a byte."""
TRIES = 3


def is_url(source: object) -> bool:
    return str(source).startswith(("http://", "https://"))


def fetched(url: str) -> list[Found]:
    """Its records. Blocks: it is called in a thread."""
    name = Path(unquote(urlsplit(url).path)).name or "rows.jsonl"
    with tempfile.TemporaryDirectory(prefix="holdfast-data-") as folder:
        file = Path(folder) / (name if Path(name).suffix else f"{name}.jsonl")
        _download(url, file)
        try:
            records = list(read(file))
        except UsageError as error:
            raise UsageError(_told(str(error), file, url)) from error
        return [Found(_told(one.where, file, url), one.fields) for one in records]


def _told(text: str, file: Path, url: str) -> str:
    """With its address, not with where it lay for a moment."""
    return text.replace(str(file), redact(url))


def _download(url: str, file: Path) -> None:
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as body, file.open("wb") as whole:  # noqa: S310 - http or https, by `is_url`
                shutil.copyfileobj(body, whole)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 or not left:
                raise _unreachable(url, f"it answers {error.code} {error.reason}") from error
        except (OSError, ValueError) as error:
            if not left:
                raise _unreachable(url, str(error)) from error


def _unreachable(url: str, why: str) -> UsageError:
    return UsageError(
        redact(f"data set {url} cannot be fetched: {why}; download it, and give its path")
    )
