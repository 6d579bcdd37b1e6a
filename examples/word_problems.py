"""A GSM8K-style agent: word problems, a calculator, and `(turns_used, reward)` at the end.

holdfast run examples/word_problems.py --tasks examples/arithmetic.jsonl --samples 4 --run gsm
"""

import re

from calculator import calculator

import holdfast


async def solve(t: holdfast.Rollout) -> tuple[int, float]:
    t.limit(turns=6, tokens=1_000)
    t.add(*t.task.messages)
    while (reply := await t.generate(tools=[calculator], max_tokens=160)).tool_calls:
        await t.tools(reply.tool_calls, calculator)
    return t.spent.turns, float(last_number(reply.text) == t.task.ground_truth)


def last_number(text: str) -> str | None:
    """GSM8K's own rule: the last number that is said is the answer."""
    numbers: list[str] = re.findall(r"-?\d+", text.replace(",", ""))
    return numbers[-1] if numbers else None
