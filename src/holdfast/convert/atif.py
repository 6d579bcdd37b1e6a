"""Writes ATIF (Agent Trajectory Interchange Format, version 1.8), one document for each trajectory.

The main conversation is the document. Every other branch and sub-rollout is embedded in it. If an
embedded conversation repeats a step of an earlier conversation, that step is marked as copied. So
each sampled token is in exactly one step that is not a copy. Times are left out, as in every
export.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.convert.checks import views_for
from holdfast.convert.provenance import Fields
from holdfast.records.conversation import ReferencedMessage, main_end, referenced
from holdfast.records.encoding.tokens import count, unpack_ids, unpack_logprobs
from holdfast.records.history import History, stream_of
from holdfast.records.message import Message, Role, ToolCall
from holdfast.records.samples.summary import last_failure
from holdfast.records.step import EnvironmentStepped, Generated
from holdfast.records.view import TrajectoryView
from holdfast.version import installed_version

SCHEMA = "ATIF-v1.8"
_REPLY = "reply:"
_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_NOTHING_SAID: Fields = {"source": "system", "message": ""}
"""The only step of a conversation without messages. The format requires at least one step."""
_SOURCES = {Role.SYSTEM: "system", Role.DEVELOPER: "system", Role.ASSISTANT: "agent"}


def to_atif(trajectories: Iterable[TrajectoryView]) -> list[Fields]:
    """Returns one document for each trajectory, in order. No trajectory is left out."""
    return [atif_document(view) for view in views_for("to_atif", trajectories)]


def atif_document(view: TrajectoryView) -> Fields:
    """Returns the trajectory as an ATIF document. If the trajectory has no reply, the document has
    the messages of the task."""
    emitted: set[str] = set()
    document = _document(view, str(view.key), referenced(view.history, view.task), emitted)
    others = [
        _document(view, f"{view.key}#{at}", referenced(view.history, view.task, end), emitted)
        for at, end in enumerate(_other_ends(view.history), 1)
    ]
    document |= {"final_metrics": _totals(view.history), "extra": _extra(view)}
    return document | ({"subagent_trajectories": others} if others else {})


def _document(
    view: TrajectoryView, name: str, conversation: Sequence[ReferencedMessage], emitted: set[str]
) -> Fields:
    steps = list(_steps(view, conversation, emitted)) or [_NOTHING_SAID]
    agent: Fields = {"name": "holdfast", "version": installed_version()}
    if view.history.generations:
        agent["model_name"] = view.history.generations[0].model
    if view.tools:
        agent["tool_definitions"] = view.tools
    return {
        "schema_version": SCHEMA,
        "session_id": view.key.run,
        "trajectory_id": name,
        "agent": agent,
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
    }


def _other_ends(history: History) -> list[Generated]:
    """Returns the last generation of each conversation except the main one, in the order of their
    paths."""
    bases = {step.base for step in history.generations}
    main = main_end(history)
    return [step for step in history.generations if step.path not in bases and step is not main]


def _steps(
    view: TrajectoryView, conversation: Sequence[ReferencedMessage], emitted: set[str]
) -> Iterator[Fields]:
    """Yields the steps of a conversation. A tool's results belong to the step that called the tool;
    every other message is its own step."""
    step: Fields | None = None
    for message, reference in conversation:
        if message.role is Role.TOOL and step is not None:
            _add_result(step, message)
            continue
        if step is not None:
            yield step
        step = _step(view.history, message, reference, emitted)
    if step is not None:
        yield step


def _step(history: History, message: Message, reference: str, emitted: set[str]) -> Fields:
    source = _SOURCES.get(message.role, "user")
    step: Fields = {"source": source, "message": _content(message)}
    if source == "agent":
        step |= _spoken(history, message, reference)
    recorded = history.steps.get(reference.partition(":")[2])
    if isinstance(recorded, EnvironmentStepped):
        step["extra"] = {"environment_reward": recorded.reward, "done": recorded.done}
    if reference.startswith(_REPLY):
        if reference in emitted:
            step["is_copied_context"] = True
        emitted.add(reference)
    return step


def _spoken(history: History, message: Message, reference: str) -> Fields:
    """Returns the fields of an agent's step besides its text. A message that was not sampled has no
    metrics."""
    fields: Fields = {"llm_call_count": 0}
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    generated = history.steps.get(reference.removeprefix(_REPLY))
    if not reference.startswith(_REPLY) or not isinstance(generated, Generated):
        return fields
    fields |= {
        "llm_call_count": 1,
        "model_name": generated.model,
        "metrics": _metrics(history, generated),
    }
    return fields | ({"reasoning_content": message.reasoning} if message.reasoning else {})


def _metrics(history: History, step: Generated) -> Fields:
    counted = step.counted
    fields: Fields = {
        "prompt_tokens": counted.prompt_tokens,
        "completion_tokens": counted.completion_tokens,
        "extra": {
            "step": step.path,
            "finish_reason": step.finish_reason,
            "trainable": step.trainable,
            "logprobs_mode": step.logprobs_mode.name.lower(),
            "versions": [msgspec.to_builtins(span) for span in step.versions],
        },
    }
    if step.ids:
        stream = stream_of(history, step.path)
        fields["prompt_token_ids"] = stream[: len(stream) - count(step.ids)].tolist()
        fields["completion_token_ids"] = unpack_ids(step.ids).tolist()
        fields["logprobs"] = unpack_logprobs(step.logprobs).tolist()
    return fields


def _call(call: ToolCall) -> Fields:
    """Returns a tool call. Arguments that are not a JSON object are kept as text in `extra`."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        arguments = None
    fields: Fields = {"tool_call_id": call.id, "function_name": call.name}
    if isinstance(arguments, dict):
        return fields | {"arguments": arguments}
    return fields | {"arguments": {}, "extra": {"raw_arguments": call.arguments}}


def _add_result(step: Fields, message: Message) -> None:
    """Adds a tool's result to the step that called the tool. Leaves out the call's id if the step
    did not make this call."""
    calls = step.get("tool_calls")
    ids = [call["tool_call_id"] for call in calls] if isinstance(calls, list) else []
    result: Fields = {"content": _content(message)}
    if message.tool_call_id in ids:
        result["source_call_id"] = message.tool_call_id
    observation = step.setdefault("observation", {"results": []})
    assert isinstance(observation, dict), "it is set here alone"
    observation["results"].append(result)


def _content(message: Message) -> str | list[Fields]:
    if not message.images:
        return message.text
    assert isinstance(message.content, list), "images are parts"
    return [_part(message, part) for part in message.content]


def _part(message: Message, part: dict[str, object]) -> Fields:
    single = Message(message.role, [part])
    if not single.images:
        return {"type": "text", "text": single.text}
    url = single.images[0]
    head = url.removeprefix("data:").partition(";")[0] if url.startswith("data:") else ""
    ending = "image/" + url.partition("?")[0].rpartition(".")[2].lower().replace("jpg", "jpeg")
    media = next((kind for kind in (head, ending) if kind in _MEDIA), None)
    if media is None:  # ATIF names four kinds of images.
        return {"type": "text", "text": single.readable}
    return {"type": "image", "source": {"media_type": media, "path": url}}


def _totals(history: History) -> Fields:
    counted = [step.counted for step in history.generations]
    return {
        "total_prompt_tokens": sum(usage.prompt_tokens for usage in counted),
        "total_completion_tokens": sum(usage.completion_tokens for usage in counted),
    }


def _extra(view: TrajectoryView) -> Fields:
    scored, failure = view.history.scored, last_failure(view.history)
    fields: Fields = {
        "task": view.key.task,
        "sample": view.key.sample,
        "status": view.status.name,
        "reason": view.reason,
        "reward": view.reward,
        "metrics": dict(scored.metrics) if scored else {},
    }
    if failure is not None and not view.status.is_outcome:
        fields["failure"] = failure.text
    return fields
