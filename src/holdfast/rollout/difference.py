"""Divergence in words: what is recorded, what the rollout asks for now, and where they part."""

import difflib
from collections.abc import Sequence

from holdfast.policy.renderer import Renderer
from holdfast.records.sampling import Sampling
from holdfast.records.step import EnvironmentStepped, Generated, Step, ToolIntent, ValueRecorded
from holdfast.records.tokens import unpack_ids
from holdfast.rollout.prompt import Prompt

SHOWN = 600


def of_generate(recorded: Step, prompt: Prompt, sampling: Sampling, renderer: Renderer) -> str:
    if not isinstance(recorded, Generated):
        return f"recorded {name_of(recorded)}, now a generation"
    if recorded.sampling != sampling:
        return f"sampling: recorded {recorded.sampling}, now {sampling}"
    then, now = _text(unpack_ids(recorded.delta), renderer), _text(prompt.delta, renderer)
    if (recorded.base, recorded.keep) != (prompt.base, prompt.keep) and then == now:
        return (
            f"the prompt: recorded {recorded.keep} tokens kept of step {recorded.base or 'none'}, "
            f"now {prompt.keep} of {prompt.base or 'none'}"
        )
    return "the prompt: " + _diff(then, now)


def of_tool(recorded: Step, name: str, arguments: str) -> str:
    if not isinstance(recorded, ToolIntent):
        return f"recorded {name_of(recorded)}, now tool {name}({arguments})"
    then = f"{recorded.name}({recorded.arguments})"
    return f"the tool call: {_diff(then, f'{name}({arguments})')}"


def of_value(recorded: Step, name: str) -> str:
    return f"recorded {name_of(recorded)}, now value {name!r}"


def of_environment(recorded: Step, now: str) -> str:
    if not isinstance(recorded, EnvironmentStepped):
        return f"recorded {name_of(recorded)}, now {now}"
    return f"recorded {name_of(recorded)} of the environment at {recorded.environment}, now {now}"


def of_observations(recorded: str, now: str) -> str:
    return _diff(recorded, now)


def name_of(step: Step) -> str:
    match step:
        case Generated():
            return "a generation"
        case ToolIntent():
            return f"tool {step.name}({step.arguments})"
        case ValueRecorded():
            return f"value {step.name!r}"
        case EnvironmentStepped():
            return f"environment action {step.action!r}"


def _text(ids: Sequence[int], renderer: Renderer) -> str:
    return renderer.decode(ids)


def _diff(then: str, now: str) -> str:
    if then == now:
        return "the texts are equal, the tools or tokens are not"
    lines = difflib.unified_diff(
        then.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=1
    )
    return "\n".join(lines)[:SHOWN]
