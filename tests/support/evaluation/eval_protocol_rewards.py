"""Every reward function of the eval-protocol that is installed, on its own messages and on ours.

A program: `python their_rewards.py` ends with 1 where one of them says something else about ours.
"""

import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Or it asks the network, and waits.

from eval_protocol import rewards  # type: ignore[import-not-found]
from eval_protocol.models import Message as Theirs  # type: ignore[import-not-found]

from holdfast.evaluation.eval_protocol.class_checks import match_models
from holdfast.evaluation.models import Message as Ours

FUNCTION = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}
ANSWERS: list[dict[str, Any]] = [
    {"content": "<think>Step 1: six. Step 2: seven.</think><answer>\\boxed{42} (A)</answer>"},
    {"content": [{"type": "text", "text": "The answer is 42"}]},
    {"content": '```json\n{"a": 1, "b": "x"}\n```'},
    {"content": "```python\nprint(42)\n```"},
    {"content": "```lean\ntheorem x : 1 = 1 := by\n  rfl\n```"},
    {"content": "", "tool_calls": [CALL]},
    {"content": "The factors are \\boxed{1, 2, 3}"},
    {"role": "user", "content": "And then?"},
]
TRUTHS: list[Any] = [
    None,
    "42",
    "1, 2, 3",
    {"tool_calls": [{"type": "function", "function": FUNCTION}]},
    [{"role": "assistant", "content": "42"}],
]
SCHEMA = {"name": "get_weather", "arguments": {"city": {"type": "string"}}}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "json_schema_reward": {
        "expected_schema": {"type": "object", "properties": {"a": {"type": "number"}}}
    },
    "schema_jaccard_reward": {"expected_schema": SCHEMA},
    "composite_function_call_reward": {"expected_schema": SCHEMA},
    "tag_count_reward": {"required_tags": ["think", "answer"]},
    "language_consistency_reward": {"target_language": "en"},
}
ELSEWHERE = ("e2b", "cpp", "llm_judge", "bfcl", "match_function", "code_", "local_code")
"""They want a service, a compiler, or to run what the model wrote."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for result in pkgutil.iter_modules(rewards.__path__):
        try:
            module = importlib.import_module(f"eval_protocol.rewards.{result.name}")
        except ImportError:  # An extra of its own is not installed.
            continue
        for name, variable in vars(module).items():
            if inspect.isfunction(variable) and variable.__module__ == module.__name__:
                judges = "messages" in inspect.signature(variable).parameters
                if judges and not any(word in name for word in ELSEWHERE):
                    yield name, variable


def score_of(function: Callable[..., Any], kind: Any, answer: dict[str, Any], truth: Any) -> object:
    talk = [{"role": "user", "content": "What is 6 times 7?"}, {"role": "assistant"} | answer]
    arguments = dict(ARGUMENTS.get(function.__name__, {}))
    if "ground_truth" in inspect.signature(function).parameters:
        arguments["ground_truth"] = truth
    try:
        return function(
            messages=[kind.model_validate(item) for item in talk], **arguments
        ).model_dump()
    except Exception as error:  # It says no to both, or the two differ.
        return f"{type(error).__name__}: {error}"


def main() -> int:
    assert match_models(), "its models are imported"
    compared, different = 0, 0
    for name, function in functions():
        for answer in ANSWERS:
            for truth in TRUTHS:
                theirs, ours = (score_of(function, item, answer, truth) for item in (Theirs, Ours))
                compared += 1
                if theirs != ours:
                    different += 1
                    sys.stdout.write(f"{name} {answer} {truth}:\n  {theirs}\n  {ours}\n")
    sys.stdout.write(f"{compared} compared, {different} different\n")
    return 1 if different or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
