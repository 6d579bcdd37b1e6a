"""Arithmetic tasks for an agent with a calculator: questions, their answers, and the calculator.

Every task comes from a seed: the same `(seed, count)` gives the same tasks, on every machine.
Questions are split by a checksum of their text into two parts that never meet: `tasks` gives only
questions of the held-out part, the demonstrations of `demonstrations.py` only the others.
"""

import ast
import operator
import random
import re
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

HELD_OUT_OF = 8
"""One question in this many is held out of the training data."""

MAX_DIGITS = 12
"""A result with more digits than this is refused by the calculator."""

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
}
_NODES: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
}

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas")
THINGS = ("apples", "books", "cards", "eggs", "marbles", "pens", "shells", "stamps")

CALCULATOR: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an expression of integers with + - * // and parentheses.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}
"""The calculator as it is shown to the model."""


class Operation(NamedTuple):
    """`left symbol right`, where an operand is a number or another operation."""

    left: "int | Operation"
    symbol: str
    right: "int | Operation"


class Question(NamedTuple):
    prompt: str
    operation: Operation


class CalculatorError(ValueError):
    """The expression cannot be evaluated; its text is for the model."""


def calculator(expression: str) -> str:
    """Evaluates an expression of integers with + - * // and parentheses."""
    try:
        result = _evaluate(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise CalculatorError(f"cannot evaluate {expression[:80]!r}") from error
    return str(result)


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _NODES:
        apply = OPERATIONS[_NODES[type(node.op)]]
        return _bounded(apply(_evaluate(node.left), _evaluate(node.right)))
    raise ValueError("only integers, + - * // and parentheses")


def _bounded(value: int) -> int:
    if abs(value) >= 10**MAX_DIGITS:
        raise ValueError("the number is too large")
    return value


def value(operand: int | Operation) -> int:
    if isinstance(operand, int):
        return operand
    return OPERATIONS[operand.symbol](value(operand.left), value(operand.right))


def text(operand: int | Operation, *, spaces: bool = True) -> str:
    """The operation as Python writes it, with the parentheses that it needs and no others."""
    if isinstance(operand, int):
        return str(operand)
    left, right = text(operand.left, spaces=spaces), text(operand.right, spaces=spaces)
    if isinstance(operand.left, Operation) and _binds(operand.left) < _binds(operand):
        left = f"({left})"
    if isinstance(operand.right, Operation) and _binds(operand.right) <= _binds(operand):
        right = f"({right})"
    gap = " " if spaces else ""
    return f"{left}{gap}{operand.symbol}{gap}{right}"


def _binds(operation: Operation) -> int:
    return 1 if operation.symbol in "+-" else 2


def is_right(answer: str, ground_truth: str) -> bool:
    """Whether the last integer that the answer names is the ground truth."""
    numbers = re.findall(r"-?\d+", answer)
    return bool(numbers) and numbers[-1] == ground_truth


def tasks(seed: int, count: int) -> Iterator[dict[str, str]]:
    """`count` held-out tasks: `id`, `prompt`, `ground_truth`; no two with the same prompt."""
    stream = questions(seed, held_out=True)
    seen: set[str] = set()
    while len(seen) < count:
        question = next(stream)
        if question.prompt in seen:
            continue
        seen.add(question.prompt)
        yield {
            "id": f"arithmetic-{seed}-{len(seen) - 1}",
            "prompt": question.prompt,
            "ground_truth": str(value(question.operation)),
        }


def questions(seed: int, *, held_out: bool) -> Iterator[Question]:
    """An endless stream of questions from one side of the split."""
    random_ = random.Random(f"questions {seed} {held_out}")
    while True:
        question = ask(random_)
        if is_held_out(question.prompt) == held_out:
            yield question


def is_held_out(prompt: str) -> bool:
    return zlib.crc32(prompt.encode()) % HELD_OUT_OF == 0


def ask(random_: random.Random) -> Question:
    """One question of any kind: a formula, a formula in words, or a little story."""
    kind = random_.choices((_formula, _in_words, _story), (50, 25, 25))[0]
    while True:
        question = kind(random_)
        if _never_negative(question.operation):
            return question


def _never_negative(operand: int | Operation) -> bool:
    if isinstance(operand, int):
        return True
    parts = _never_negative(operand.left) and _never_negative(operand.right)
    return parts and value(operand) >= 0


_FORMULAS = (
    "What is {}?",
    "Compute {}.",
    "Calculate {}.",
    "How much is {}?",
    "{} = ?",
    "Please work out {}.",
    "What does {} equal?",
    "Evaluate {}",
)


def _formula(random_: random.Random) -> Question:
    operation = random_operation(random_, random_.choices((1, 2, 3), (40, 45, 15))[0])
    spaces = random_.random() < 0.85
    return Question(random_.choice(_FORMULAS).format(text(operation, spaces=spaces)), operation)


def random_operation(random_: random.Random, size: int) -> Operation:
    """An operation with `size` operators whose divisions leave no remainder."""
    symbol = random_.choices(("+", "-", "*", "//"), (40, 25, 28, 7))[0]
    if symbol == "//":
        return _division(random_)
    if size == 1:
        return Operation(number(random_, symbol), symbol, number(random_, symbol))
    inner = random_operation(random_, size - 1)
    other = number(random_, symbol)
    if random_.random() < 0.7:
        return Operation(inner, symbol, other)
    return Operation(other, symbol, inner)


def _division(random_: random.Random) -> Operation:
    divisor = random_.randint(2, 20)
    return Operation(divisor * random_.randint(2, 40), "//", divisor)


def number(random_: random.Random, symbol: str) -> int:
    """Factors are smaller than summands, as they are when people ask."""
    digits = random_.choices((1, 2, 3), (45, 50, 5) if symbol == "*" else (10, 55, 35))[0]
    return random_.randint(2 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


_WORDS: tuple[tuple[str, str], ...] = (
    ("What is the sum of {a} and {b}?", "a+b"),
    ("What is {a} plus {b}?", "a+b"),
    ("Add {b} to {a}.", "a+b"),
    ("What is the difference of {a} and {b}?", "a-b"),
    ("What is {a} minus {b}?", "a-b"),
    ("Subtract {b} from {a}.", "a-b"),
    ("What is the product of {a} and {b}?", "a*b"),
    ("What is {a} times {b}?", "a*b"),
    ("Multiply {a} by {b}.", "a*b"),
    ("Add {a} and {b}, then multiply by {c}.", "(a+b)*c"),
    ("Multiply {a} by {b}, then add {c}.", "a*b+c"),
    ("Multiply {a} by {b}, then subtract {c}.", "a*b-c"),
    ("Subtract {b} from {a}, then multiply by {c}.", "(a-b)*c"),
    ("What is {a} plus {b} minus {c}?", "a+b-c"),
)
_STORIES: tuple[tuple[str, str], ...] = (
    ("{n} has {a} {t} and buys {b} more. How many {t} does {n} have now?", "a+b"),
    ("{n} has {a} {t} and {m} has {b}. How many {t} do they have together?", "a+b"),
    ("{n} had {a} {t} and gave {b} to {m}. How many {t} does {n} have left?", "a-b"),
    ("A box holds {a} {t}. How many {t} are in {b} boxes?", "a*b"),
    ("{n} buys {a} bags with {b} {t} each. How many {t} is that?", "a*b"),
    ("{n} has {a} boxes of {b} {t} and {c} more {t}. How many {t} does {n} have?", "a*b+c"),
    ("{n} has {c} {t}. {m} brings {a} bags of {b} {t}. How many {t} are there?", "a*b+c"),
    ("{n} packs {a} boxes of {b} {t}. Then {c} {t} break. How many {t} are left?", "a*b-c"),
    ("{n} finds {a} {t} and {m} finds {b}. They lose {c}. How many {t} are left?", "a+b-c"),
    (
        "{n} sells {a} {t} on Monday and {b} on Friday, for {c} coins each. How many coins?",
        "(a+b)*c",
    ),
)


def _in_words(random_: random.Random) -> Question:
    return _fill(random_, *random_.choice(_WORDS))


def _story(random_: random.Random) -> Question:
    return _fill(random_, *random_.choice(_STORIES))


def _fill(random_: random.Random, sentence: str, formula: str) -> Question:
    n, m = random_.sample(NAMES, 2)
    symbols = [symbol for symbol in formula if symbol in "+-*"]
    a, b = number(random_, symbols[0]), number(random_, symbols[0])
    operation = Operation(a, symbols[0], b)
    c = 0
    if len(symbols) == 2:
        c = number(random_, symbols[1])
        operation = Operation(operation, symbols[1], c)
    prompt = sentence.format(a=a, b=b, c=c, n=n, m=m, t=random_.choice(THINGS))
    return Question(prompt, operation)
