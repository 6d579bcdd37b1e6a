"""Turns users' ids into file names. Different ids have different names, and no name leads to
another folder."""

import hashlib
import string
import sys

LONGEST = 180
"""The maximum number of bytes of a name. File systems accept 255, and an ending is often added."""
DIGEST = 16
_UNSAFE = {"/", "\\", "%", "\x7f", *map(chr, range(32))}
_IS_FOLDED = sys.platform in ("darwin", "win32")
"""Whether the usual file system does not distinguish `a` from `A`, or two encodings of `é`."""
_SAFE_WHERE_FOLDED = {*string.ascii_lowercase, *string.digits, *" !#$&'()+,-.;=@[]^_`{}~"}


def file_name(text: str, *, is_folded: bool = _IS_FOLDED) -> str:
    """Returns `text` with unsafe characters written as in URLs (`a/b` as `a%2Fb`).

    A name that is too long is cut and ends with a digest of the whole text.
    """
    name = "".join(
        character
        if _is_safe(character, is_first=not place, is_folded=is_folded)
        else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
        for place, character in enumerate(text)
    )
    written = name.encode()
    # Only cut names have exactly this length, so no other name can look like one.
    if len(written) < LONGEST:
        return name or "%"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST]
    kept = written[: LONGEST - DIGEST - 1].decode("utf-8", "ignore")
    return f"{kept}{'~' * (LONGEST - DIGEST - len(kept.encode()))}{digest}"


def _is_safe(character: str, *, is_first: bool, is_folded: bool) -> bool:
    if is_first and character == ".":
        return False
    if is_folded:
        return character in _SAFE_WHERE_FOLDED
    return character not in _UNSAFE and not "\ud800" <= character <= "\udfff"
