"""How long the prompt of a request would be: counted, not sampled, and nothing of it recorded."""

import hashlib

import msgspec

from holdfast.gateway import canonical
from holdfast.gateway.exchange import Ask, Refused
from holdfast.gateway.trajectory import AgentTrajectory
from holdfast.gateway.tree import Tree
from holdfast.policy.messages_only import MessagesOnly


def prompt_tokens(trajectory: AgentTrajectory, ask: Ask) -> int:
    """Of the prompt that would be sent now: what was sampled before is counted as it was sampled,
    and only what is new is rendered."""
    session = trajectory.session
    renderer = session.voice.renderer
    if isinstance(renderer, MessagesOnly):
        raise Refused(400, "the engine takes messages and tells no tokens: they cannot be counted")
    digests = canonical.digests(ask.messages)
    # As blobs are named, though this one is not stored.
    shown = hashlib.sha256(msgspec.json.encode(ask.tools)).digest() if ask.tools else b""
    tree = Tree(session.history, session.task)
    place = tree.place(ask.messages, digests, tools=ask.tools, tools_digest=shown)
    prompt = place.stream.next_prompt(
        place.messages, ask.tools, renderer=renderer, sampling=session.sampling
    )
    return prompt.keep + len(prompt.delta)
