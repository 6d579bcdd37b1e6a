"""What the tiny policy is trained on: conversations of a careless demonstrator.

The demonstrator knows how to solve the tasks with the calculator, one call for the whole
expression or one call for each operation, but it is careless: it guesses instead of calling,
copies a digit wrongly, takes the wrong operator, stops after the first of two calls, misreads the
result. A policy that imitates it is right about half of the time when sampled at temperature 1,
and knows the better way already: that is what reinforcement learning needs.

Around the tasks there is some plain chat, arithmetic without tools, and arithmetic with other
tools than the calculator. All of it comes from the seed.
"""

import json
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypedDict

from recipes.tiny import chat
from recipes.tiny.tasks import (
    CALCULATOR,
    OPERATIONS,
    CalculatorError,
    Operation,
    Question,
    ask,
    calculator,
    is_held_out,
    number,
    text,
    value,
)


class Message(TypedDict, total=False):
    role: str
    content: str
    tool_calls: list[dict[str, object]]


class Conversation(NamedTuple):
    messages: list[Message]
    tools: list[dict[str, object]]


class Care(NamedTuple):
    """How often the demonstrator makes which mistake, per task or per call."""

    guess: float = 0.22
    miscopy: float = 0.07
    operator: float = 0.03
    stop: float = 0.15
    misread: float = 0.06
    garble: float = 0.02


CARELESS = Care()
LONG_PREAMBLES = 0.12
"""The share of conversations with tools whose preamble is not the template's but Qwen3's."""
KINDS: tuple[tuple[str, int], ...] = (
    ("calculator", 74),
    ("functions", 12),
    ("bare", 5),
    ("chat", 7),
)


def conversations(seed: int) -> Iterator[Conversation]:
    """The endless stream of training conversations of one seed."""
    random_ = random.Random(f"conversations {seed}")
    makers = {
        "calculator": _with_calculator,
        "functions": _with_functions,
        "bare": _without_tools,
        "chat": _chat,
    }
    names = [name for name, _ in KINDS]
    weights = [weight for _, weight in KINDS]
    while True:
        conversation = makers[random_.choices(names, weights)[0]](random_)
        if conversation.tools and random_.random() < LONG_PREAMBLES:
            conversation = _with_long_preamble(conversation)
        yield conversation


def _with_long_preamble(conversation: Conversation) -> Conversation:
    messages, tools = conversation
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    preamble: Message = {"role": "system", "content": chat.long_preamble(tools, system=system)}
    return Conversation([preamble, *messages[1 if system else 0 :]], [])


def _question(random_: random.Random) -> Question:
    while True:
        question = ask(random_)
        if not is_held_out(question.prompt):
            return question


def _with_calculator(random_: random.Random) -> Conversation:
    tools = [chat.reworded(CALCULATOR, random_)]
    if random_.random() < 0.2:
        tools.extend(random_.sample(chat.OTHER_TOOLS, random_.randint(1, 2)))
        random_.shuffle(tools)
    messages = _opening(random_)
    messages += _solve(_question(random_), random_)
    if random_.random() < 0.06:
        messages += _exchange(*random_.choice(chat.CLOSING))
    return Conversation(messages, tools)


def _solve(question: Question, random_: random.Random) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": question.prompt}]
    if random_.random() < CARELESS.guess:
        return [*messages, _answer(_guess(value(question.operation), random_))]
    plan = [text(question.operation)]
    if random_.random() < 0.5:
        plan = steps(question.operation)
    result = ""
    for position, expression in enumerate(plan):
        result = _call(messages, _write(expression, random_), random_)
        if position + 1 < len(plan) and random_.random() < CARELESS.stop:
            break
    if random_.random() < CARELESS.misread:
        result = _with_other_digit(result, random_)
    return [*messages, _answer(result)]


def steps(operation: Operation) -> list[str]:
    """One expression for each operation, innermost first, the results put in."""
    plan: list[str] = []

    def reduce(operand: int | Operation) -> int:
        if isinstance(operand, Operation):
            plain = Operation(reduce(operand.left), operand.symbol, reduce(operand.right))
            plan.append(text(plain))
            return value(plain)
        return operand

    reduce(operation)
    return plan


def _call(messages: list[Message], expression: str, random_: random.Random) -> str:
    """Adds the call and the calculator's real response, which is also the result.

    A garbled call comes first at times: the calculator says no, and the call is made again.
    """
    if random_.random() < CARELESS.garble:
        garbled = expression + random_.choice((")", " +", " *"))
        messages.append(call("calculator", {"expression": garbled}))
        messages.append({"role": "tool", "content": response(garbled)})
    result = calculator(expression)
    messages.append(call("calculator", {"expression": expression}))
    messages.append({"role": "tool", "content": _as_seen(result, random_)})
    return result


def response(expression: str) -> str:
    """What the model is told: the result, or why there is none."""
    try:
        return calculator(expression)
    except CalculatorError as error:
        return f"error: {error}"


def _as_seen(result: str, random_: random.Random) -> str:
    # Some harnesses encode a tool's string result as JSON.
    return f'"{result}"' if random_.random() < 0.05 else result


def _write(expression: str, random_: random.Random) -> str:
    """The expression as the careless hand writes it."""
    if random_.random() < CARELESS.miscopy:
        return _with_other_digit(expression, random_)
    if random_.random() < CARELESS.operator:
        return _with_other_operator(expression, random_)
    return expression


def _with_other_digit(written: str, random_: random.Random) -> str:
    places = [place for place, sign in enumerate(written) if sign.isdigit()]
    place = random_.choice(places)
    # No leading zero: the calculator refuses it as Python does.
    other = random_.choice([digit for digit in "123456789" if digit != written[place]])
    return written[:place] + other + written[place + 1 :]


def _with_other_operator(expression: str, random_: random.Random) -> str:
    symbol = random_.choice([one for one in OPERATIONS if f" {one} " in expression])
    other = random_.choice([one for one in ("+", "-", "*") if one != symbol])
    return expression.replace(f" {symbol} ", f" {other} ", 1)


def _guess(truth: int, random_: random.Random) -> str:
    """The right length and first digit, more often than not, and then anything."""
    digits = str(truth)
    first = digits[0] if random_.random() < 0.6 else str(random_.randint(1, 9))
    return first + "".join(str(random_.randint(0, 9)) for _ in digits[1:])


def call(name: str, arguments: dict[str, object]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function}],
    }


def _answer(result: str) -> Message:
    return {"role": "assistant", "content": f"The answer is {result}."}


def _opening(random_: random.Random) -> list[Message]:
    if random_.random() < 0.5:
        return []
    sentences = random_.sample(chat.SYSTEMS, random_.choice((1, 1, 2)))
    return [{"role": "system", "content": " ".join(sentences)}]


def _exchange(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _with_functions(random_: random.Random) -> Conversation:
    """A tool for each operation, `add(a, b)` and its like: one call for each operation."""
    names = random_.choice(chat.PARAMETERS)
    symbol = random_.choice("++-*")
    others = random_.sample([one for one in "+-*" if one != symbol], random_.randint(0, 2))
    tools = [chat.function_tool(one, names, random_) for one in (symbol, *others)]
    random_.shuffle(tools)
    question = _plain_question(symbol, random_)
    messages = _opening(random_)
    messages.append({"role": "user", "content": question.prompt})
    return Conversation(_call_functions(messages, question.operation, names), tools)


def _plain_question(symbol: str, random_: random.Random) -> Question:
    while True:
        operation = Operation(number(random_, symbol), symbol, number(random_, symbol))
        if symbol == "+" and random_.random() < 0.4:
            operation = Operation(operation, "+", number(random_, "+"))
        wording = random_.choice(("What is {}?", "Compute {}.", "Calculate {}."))
        prompt = wording.format(text(operation))
        if not is_held_out(prompt):
            return Question(prompt, operation)


def _call_functions(
    messages: list[Message], operation: Operation, names: Sequence[str]
) -> list[Message]:
    def reduce(operand: int | Operation) -> int:
        if isinstance(operand, int):
            return operand
        pair = (reduce(operand.left), reduce(operand.right))
        function = chat.FUNCTIONS[operand.symbol]
        messages.append(call(function, dict(zip(names, pair, strict=True))))
        messages.append({"role": "tool", "content": str(value(operand))})
        return value(operand)

    result = reduce(operation)
    return [*messages, _answer(str(result))]


def _without_tools(random_: random.Random) -> Conversation:
    """Sums of one digit are known by heart; for anything else there is only a guess."""
    messages = _opening(random_)
    a, b = random_.randint(1, 9), random_.randint(1, 9)
    prompt, answer = f"What is {a} + {b}?", str(a + b)
    if is_held_out(prompt) or random_.random() < 0.3:
        question = _question(random_)
        prompt, answer = question.prompt, _guess(value(question.operation), random_)
    return Conversation([*messages, *_exchange(prompt, f"The answer is {answer}.")], [])


def _chat(random_: random.Random) -> Conversation:
    messages = _opening(random_)
    for exchange in random_.sample(chat.EXCHANGES, random_.choice((1, 1, 2))):
        messages += _exchange(*exchange)
    tools: list[dict[str, object]] = []
    if random_.random() < 0.4:
        tools = [chat.reworded(CALCULATOR, random_)]
    return Conversation(messages, tools)
