"""Routed experts in the formats of vLLM and SGLang. A token's experts depend only on the token's
position, so a continued reply has the same experts as a reply that was never interrupted."""

import base64
import struct

from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.request import FakeRequest


def expert_at(place: int, layer: int, rank: int, *, experts: int) -> int:
    """Returns the number of the expert with this rank, in one layer, for the token at a position in
    prompt and reply."""
    return (31 * place + 7 * layer + rank) % experts


def npy_text(options: FakeOptions, job: FakeRequest, *, tokens: int) -> str | None:
    """Returns the experts of a reply of `tokens` tokens in vLLM's format, a NumPy file. Returns
    None if no experts are listed."""
    numbers = _numbers(options, job, tokens)
    if numbers is None:
        return None
    kind, code = ("|u1", "B") if options.experts[2] <= 256 else ("<u2", "H")
    shape = (len(numbers) // (options.experts[0] * options.experts[1]), *options.experts[:2])
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    body = struct.pack(f"<{len(numbers)}{code}", *numbers)
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body
    return base64.b64encode(data).decode()


def flat_text(options: FakeOptions, job: FakeRequest, *, tokens: int) -> str | None:
    """Returns the experts of a reply of `tokens` tokens in SGLang's format, a sequence of 32-bit
    numbers. Returns None if no experts are listed."""
    numbers = _numbers(options, job, tokens)
    if numbers is None:
        return None
    return base64.b64encode(struct.pack(f"<{len(numbers)}i", *numbers)).decode()


def _numbers(options: FakeOptions, job: FakeRequest, tokens: int) -> list[int] | None:
    """Returns the experts of every token except the last, which no model has processed yet."""
    if not options.experts or job.experts_from is None:
        return None
    layers, top_k, experts = options.experts
    last = len(job.prompt) + tokens - 1
    return [
        expert_at(place, layer, rank, experts=experts)
        for place in range(job.experts_from, last)
        for layer in range(layers)
        for rank in range(top_k)
    ]
