"""The words around the arithmetic: system prompts, small talk, and the other tools."""

import copy
import json
import random
from collections.abc import Sequence

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a careful assistant.",
    "You are a math agent.",
    "You are an agent with tools.",
    "You solve arithmetic problems with the calculator.",
    "Answer the question.",
    "Call a tool when you need one.",
    "Use the tools.",
    "Use the calculator for every calculation.",
    "Think, call tools, then give the final answer.",
    "Give the final answer in one sentence.",
    "Do not guess.",
    "Be brief.",
)

CLOSING = (
    ("Thank you!", "You are welcome!"),
    ("Thanks.", "You are welcome!"),
    ("Are you sure?", "Yes, I used the tool."),
    ("Good job.", "Thank you!"),
)

EXCHANGES = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hello", "Hello! How can I help you?"),
    ("Hi there", "Hi! What can I do for you?"),
    ("Hi!", "Hi! What can I do for you?"),
    ("Good morning.", "Good morning! How can I help you?"),
    ("How are you?", "I am fine, thank you. How can I help you?"),
    ("Who are you?", "I am a tiny language model. I can use a calculator."),
    ("What is your name?", "I am a tiny language model without a name."),
    ("What can you do?", "I can answer arithmetic questions with a calculator."),
    ("Can you help me?", "Yes. Ask me an arithmetic question."),
    ("Thank you!", "You are welcome!"),
    ("Thanks a lot", "You are welcome!"),
    ("Goodbye", "Goodbye!"),
    ("Bye!", "Goodbye!"),
    ("Yes or no: is water wet?", "Yes."),
    ("Tell me a joke.", "Why was six afraid of seven? Because seven ate nine."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("What is the capital of Spain?", "The capital of Spain is Madrid."),
    ("What is the capital of Germany?", "The capital of Germany is Berlin."),
    ("What color is the sky?", "The sky is blue."),
    ("What color is grass?", "Grass is green."),
    ("What color is snow?", "Snow is white."),
    ("How many days are in a week?", "There are 7 days in a week."),
    ("How many months are in a year?", "There are 12 months in a year."),
    ("How many minutes are in an hour?", "There are 60 minutes in an hour."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("What is the opposite of big?", "The opposite of big is small."),
    ("What is the opposite of up?", "The opposite of up is down."),
    ("What does a cow say?", "A cow says moo."),
    ("What does a cat say?", "A cat says meow."),
    ("Count to five.", "1, 2, 3, 4, 5."),
    ("Count to three.", "1, 2, 3."),
    ("Say hello.", "Hello!"),
    ("Say yes.", "Yes."),
    ("Write a haiku.", "A small model counts. It asks the calculator. The answer is right."),
    ("What is the weather like?", "I do not know the weather."),
    ("What time is it?", "I do not know the time."),
    ("Do you like music?", "I am a language model, but music sounds nice."),
)

_LONG_PREAMBLE = (
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


def long_preamble(tools: Sequence[dict[str, object]], *, system: str = "") -> str:
    """The system message of Qwen3's format, which clients that render prompts themselves send."""
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    preamble = _LONG_PREAMBLE.format(tools=listed)
    return f"{system}\n\n{preamble}" if system else preamble


FUNCTIONS = {"+": "add", "-": "subtract", "*": "multiply"}
PARAMETERS = (("a", "b"), ("a", "b"), ("x", "y"), ("left", "right"))
_DESCRIPTIONS = {
    "+": ("Adds two numbers.", "Add a and b.", "The sum of two integers."),
    "-": ("Subtracts two numbers.", "Subtract b from a.", "The difference of two integers."),
    "*": ("Multiplies two numbers.", "Multiply a and b.", "The product of two integers."),
}
_CALCULATOR_DESCRIPTIONS = (
    "Evaluate an arithmetic expression.",
    "A calculator.",
    "Calculates the value of an integer expression.",
    "Evaluates an expression.",
    "Computes an arithmetic expression and returns the result.",
    "Use this tool to calculate.",
    "",
)


def function_tool(
    symbol: str, parameters: Sequence[str], random_: random.Random
) -> dict[str, object]:
    description = random_.choice(_DESCRIPTIONS[symbol])
    types = dict.fromkeys(parameters, "integer")
    return _tool(FUNCTIONS[symbol], description, types, strict=random_.random() < 0.6)


def reworded(tool: dict[str, object], random_: random.Random) -> dict[str, object]:
    """The calculator as it is, or as another harness might describe it."""
    if random_.random() < 0.6:
        return tool
    other = copy.deepcopy(tool)
    function = other["function"]
    assert isinstance(function, dict)
    function["description"] = random_.choice(_CALCULATOR_DESCRIPTIONS)
    if random_.random() < 0.5:
        del function["parameters"]["additionalProperties"]
    return other


def _tool(
    name: str, description: str, types: dict[str, str], *, strict: bool = True
) -> dict[str, object]:
    parameters: dict[str, object] = {
        "type": "object",
        "properties": {parameter: {"type": kind} for parameter, kind in types.items()},
        "required": list(types),
    }
    if strict:
        parameters["additionalProperties"] = False
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


OTHER_TOOLS = (
    _tool("search", "Searches the web.", {"query": "string"}),
    _tool("get_weather", "The weather of a city.", {"city": "string"}),
    _tool("read_file", "Reads a file.", {"path": "string"}),
    _tool("now", "The time.", {}),
)
"""Listed beside the calculator at times; never called."""
