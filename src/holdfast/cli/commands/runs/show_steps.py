"""Shows the steps of a trajectory as text: the main conversation first, then the other ones.

Each speaker is named: the policy is `assistant`, and other speakers have the name of their model.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.engine.report import many
from holdfast.records.message import Message, Role
from holdfast.records.sampling import changed_parameters
from holdfast.records.step import (
    EnvironmentStepped,
    Generated,
    Step,
    ToolIntent,
    ValueRecorded,
)
from holdfast.records.view import TrajectoryView, other_speakers, spoken_elsewhere


def step_lines(view: TrajectoryView) -> list[str]:
    """Returns the lines of all steps, conversation by conversation."""
    scopes: dict[str, list[Step]] = {}
    for path, step in view.history.steps.items():
        scopes.setdefault(path.rpartition(".")[0], []).append(step)
    prompts = {turn.step.path: turn.prompt for turn in view.turns}
    others = other_speakers(view)
    spoken = spoken_elsewhere(view, others)
    # Tools that are steps are listed with their results. An agent's own tools are only in prompts.
    has_tools = any(isinstance(step, ToolIntent) for step in view.history.steps.values())
    lines: list[str] = []
    for scope in sorted(scopes, key=lambda scope: scope != ""):
        if scope and len(scopes) > 1:
            lines += ["", _title(scope, scopes[scope], others)]
        sampled = ""
        for step in scopes[scope]:
            if isinstance(step, Generated) and (now := _sampling(step)) != sampled:
                lines.append(f"sampled with {now or 'the defaults'}:")
                sampled = now
            prompt = prompts.get(step.path, ())
            lines += _prompt(prompt, tools_are_steps=has_tools, spoken={} if scope else spoken)
            lines += _step(step, view, others=others)
        if not scope and (finished := view.history.finished) is not None:
            # References stand for the results of steps, which have lines of their own.
            added = [each for each in finished.added if isinstance(each, Message)]
            lines += _prompt(added, tools_are_steps=has_tools, spoken=spoken)
    return lines


def _sampling(step: Generated) -> str:
    """Returns the sampling parameters that differ from their defaults."""
    changed = changed_parameters(step.sampling)
    return ", ".join(
        f"{name} {msgspec.json.encode(value).decode()}" for name, value in changed.items()
    )


def _title(scope: str, steps: Sequence[Step], others: Collection[str]) -> str:
    replies = [step for step in steps if isinstance(step, Generated)]
    if not replies:
        return f"inside of {scope}:"
    speakers = ", ".join(dict.fromkeys(step.model for step in replies if step.path in others))
    who = f"of another speaker, {speakers}" if speakers else "of the policy"
    return f"conversation {scope}, {who}:"


def _prompt(
    messages: Sequence[Message], *, tools_are_steps: bool, spoken: Mapping[str, str]
) -> list[str]:
    """Returns the lines of `messages`, which the policy sees for the first time. In a branch, and
    after a prefix break, the messages are a whole conversation. With `tools_are_steps`, leaves out
    the results of tools up to the first reply, because they are shown as steps."""
    lines = []
    is_conversation = False
    for message in messages:
        if message.role is Role.TOOL and tools_are_steps and not is_conversation:
            continue
        is_conversation = is_conversation or message.role is Role.ASSISTANT
        speaker = spoken.get(message.text, "") if message.role is Role.USER else ""
        who = f"{message.role}, {speaker}" if speaker else f"{message.role}"
        lines.append(f"{who}: {message.readable}")
        lines += _calls(message)
    return lines


def _calls(message: Message) -> list[str]:
    return [f"    calls {call.name}({call.arguments})" for call in message.tool_calls]


def _step(step: Step, view: TrajectoryView, *, others: Collection[str]) -> list[str]:
    path = step.path
    match step:
        case Generated():
            broken = f", PREFIX BREAK: {step.prefix_break}" if step.prefix_break else ""
            if step.seams:
                broken = f", went on at token {', '.join(map(str, step.seams))}{broken}"
            who = step.model if path in others else "assistant"
            return [
                (
                    f"[{path}] {who} ({_tokens(step)}, {step.finish_reason}{_versions(step)}, "
                    f"{many(step.tries, 'try')}{broken}): {step.message.text}"
                ),
                *_calls(step.message),
            ]
        case ToolIntent():
            result = view.history.results.get(path)
            outcome = "no result yet" if result is None else result.error or "ok"
            content = "" if result is None else result.content
            return [f"[{path}] tool {step.name}({step.arguments}) {outcome}: {content}"]
        case ValueRecorded():
            return [f"[{path}] value {step.name}: {msgspec.msgpack.decode(step.value)!r}"]
        case EnvironmentStepped() if step.is_opening:
            return [f"[{path}] environment opened with seed {step.action}: {step.observation}"]
        case EnvironmentStepped():
            outcome = f"{step.error}: " if step.error else ""
            ends = ", done" if step.done else ", truncated" if step.truncated else ""
            answer = f"{outcome}{step.observation} (reward {step.reward:g}{ends})"
            return [f"[{path}] environment {step.action!r}: {answer}"]


def _tokens(step: Generated) -> str:
    if not (step.ids or step.usage or step.trainable):
        return "tokens not counted by the engine"
    counted, used = step.counted, step.billed
    cached = f" ({used.cached_tokens:,} cached)" if used.cached_tokens else ""
    reasoning = f" ({used.reasoning_tokens:,} reasoning)" if used.reasoning_tokens else ""
    return (
        f"{many(counted.completion_tokens, 'token')}{reasoning} after a prompt of "
        f"{counted.prompt_tokens:,}{cached}"
    )


def _versions(step: Generated) -> str:
    """Returns text that names the weight versions of a reply's tokens, or "" for a reply without
    tokens."""
    if not step.versions:
        return ""
    if len(step.versions) == 1:
        return f", version {step.versions[0].version or 'unknown'}"
    spans = (f"{span.version or 'unknown'} {span.start}–{span.end}" for span in step.versions)
    return f", versions {', '.join(spans)}"
