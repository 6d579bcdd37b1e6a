"""An agent with a calculator: turns until it stops calling the tool, six at the most."""

import ast
import operator
import re

import holdfast

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


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
    t.add(*t.task.messages)
    for _turn in range(6):
        reply = await t.generate(tools=[calculator], max_tokens=160)
        if not reply.tool_calls:
            return
        for call in reply.tool_calls:
            await t.tool(call, calculator)
    t.truncate("max_turns")


def score(trajectory: holdfast.TrajectoryView) -> float:
    """Whether the last number of the last reply is the answer."""
    numbers = re.findall(r"-?\d+", trajectory.reply.replace(",", ""))
    return float(bool(numbers) and numbers[-1] == str(trajectory.task.ground_truth))
