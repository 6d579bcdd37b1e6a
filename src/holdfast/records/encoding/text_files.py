"""Reads users' text files, which must be UTF-8. An error names the first bad byte."""

from pathlib import Path

from holdfast.records.errors import UsageError


def read_text_file(path: Path, what: str = "") -> str:
    """Returns the text of a file. Errors call the file `what`. Raises `UsageError`."""
    what = what or str(path)
    try:
        return decode_text(path.read_bytes(), where=what)
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}") from None


def decode_text(data: bytes, *, where: str) -> str:
    """Decodes text and removes a byte order mark. Raises `UsageError`, with the line number if
    there are several lines. `where` names a file or one of its lines."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UsageError(f"{where} is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        at = f"{where}:{line}" if b"\n" in data.rstrip() else where
        byte = f"byte 0x{data[error.start]:02x}"
        raise UsageError(f"{at}: {byte} is not UTF-8; save the file as UTF-8") from None
