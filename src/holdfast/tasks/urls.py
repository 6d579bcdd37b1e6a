"""Downloads a data set from a URL, whole, when its rows are read. The data set is not cached.

A change at the URL has the same effect as a changed file: a command with other rows begins another
run.
"""

import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.tasks.files import FileRecord, read

TIMEOUT_SECONDS = 60.0
"""The most seconds to wait for more data from the server."""
ATTEMPTS = 3


def is_url(source: object) -> bool:
    return str(source).startswith(("http://", "https://"))


def fetch(url: str) -> list[FileRecord]:
    """Downloads the URL and returns its records. Blocks: call it in a thread."""
    name = Path(unquote(urlsplit(url).path)).name or "rows.jsonl"
    with tempfile.TemporaryDirectory(prefix="holdfast-data-") as folder:
        file = Path(folder) / (name if Path(name).suffix else f"{name}.jsonl")
        _download(url, file)
        try:
            records = list(read(file))
        except UsageError as error:
            raise UsageError(_with_url(str(error), file, url)) from error
        return [record._replace(where=_with_url(record.where, file, url)) for record in records]


def _with_url(text: str, file: Path, url: str) -> str:
    """Returns the text with the URL in place of the temporary file's path."""
    return text.replace(str(file), redact(url))


def _download(url: str, file: Path) -> None:
    for left in reversed(range(ATTEMPTS)):
        try:
            # `is_url` lets only http and https through.
            response = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)  # noqa: S310
            with response, file.open("wb") as copy:
                shutil.copyfileobj(response, copy)
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
        redact(f"data set {url} cannot be fetched: {why}; download it, and pass its path")
    )
