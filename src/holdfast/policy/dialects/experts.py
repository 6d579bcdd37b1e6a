"""Reads routed experts as engines write them.

vLLM sends a NumPy file, and SGLang flat 32-bit numbers, both in base64. Reading them does not need
NumPy.
"""

import base64
import binascii
import re

from holdfast.policy.dialects.dialect import InvalidAnswer
from holdfast.records.samples.experts import ExpertRows, shrunk

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '(\|u1|<u2|<i4)', 'fortran_order': False, 'shape': \((\d+), (\d+), (\d+)\), \}\s*"
)
_SIZES = {b"|u1": 1, b"<u2": 2, b"<i4": 4}


def npy_experts(text: str) -> ExpertRows:
    """Reads a NumPy file of shape (tokens, layers, experts of a layer)."""
    body = _decoded(text)
    begin = len(_MAGIC) + 2
    end = begin + int.from_bytes(body[len(_MAGIC) : begin], "little")
    header = _HEADER.fullmatch(body, begin, end)
    if not body.startswith(_MAGIC) or header is None:
        raise InvalidAnswer(
            "its routed_experts are not a NumPy file of whole numbers in three axes"
        )
    rows, layers, top_k = (int(number) for number in header.groups()[1:])
    size, data = _SIZES[header[1]], body[end:]
    if len(data) != rows * layers * top_k * size or not layers * top_k:
        raise InvalidAnswer(f"its routed_experts have {len(data)} bytes for {rows} tokens")
    if size == 4:
        size, data = shrunk(data)
    return ExpertRows(layers * top_k, layers, size, data)


def flat_experts(text: str) -> ExpertRows:
    """Reads all experts of one reply as if they belonged to one token. `fitted` divides them among
    the tokens."""
    body = _decoded(text)
    if len(body) % 4:
        raise InvalidAnswer("its routed_experts are no 32-bit numbers")
    size, data = shrunk(body)
    return ExpertRows(0, 0, size, data)


def fitted(experts: ExpertRows, rows: int) -> ExpertRows:
    """Returns the experts, divided among `rows` tokens. Raises `InvalidAnswer` if their number does
    not fit."""
    if not experts.width:
        count = len(experts.data) // experts.size
        if rows < 1 or not count or count % rows:
            raise InvalidAnswer(f"it has {count} routed experts for {rows} tokens")
        return ExpertRows(count // rows, 0, experts.size, experts.data)
    if experts.rows != rows:
        raise InvalidAnswer(f"it has routed experts of {experts.rows} tokens, not of {rows}")
    return experts


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidAnswer(f"its routed_experts are not base64 ({error})") from error
