"""Arithmetic with a tool: an agent that may calculate, at most six turns. Learns within minutes.

    holdfast run examples/calculator.py --tasks examples/arithmetic.jsonl --samples 4
    holdfast train examples/calculator.py --tasks examples/train.jsonl \\
        --eval-tasks examples/held_out.jsonl --run sums --out runs/sums

docs/learning-curve.svg shows its training.
"""

import ast
import operator

import holdfast

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
score = holdfast.scorers.Numeric()


@holdfast.tool(contract="idempotent")
def calculator(expression: str) -> str:
    """Evaluates an expression of integers with + - * // and parentheses."""
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        raise holdfast.ToolSaysNo(f"error: cannot evaluate {expression[:80]!r}") from None


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)) if abs(number) < 10**12:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return int(OPERATIONS[type(op)](_value(left), _value(right)))
    raise ValueError("only integers, + - * // and parentheses")


async def solve(t: holdfast.Rollout) -> None:
    t.limit(turns=6)
    t.add(*t.task.messages)
    while (reply := await t.generate(tools=[calculator], max_tokens=160)).tool_calls:
        await t.tools(reply.tool_calls, calculator)
