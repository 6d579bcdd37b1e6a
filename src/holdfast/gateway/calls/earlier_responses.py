"""Past: what a trajectory's agent was answered before, for requests that refer to it by its id.

Only the record counts: a response that was told is known to every later process, and one that is
history by now to none.
"""

from msgspec import Raw, Struct

from holdfast.gateway.calls.answer import answer_of, message_of
from holdfast.gateway.calls.digest_cache import Messages, Read, Remembered
from holdfast.gateway.protocol.messages import Ask, Past
from holdfast.records.conversation import conversation
from holdfast.records.step import Generated
from holdfast.rollout.replay.session import Session


class KnownPast(Struct, frozen=True):
    """What a wire may know of the trajectory whose call it reads."""

    session: Session
    remembered: Remembered

    def messages(self, sent: Raw, read: Read) -> Messages:
        return self.remembered.messages(sent, read)

    def answered(self, answer: str) -> Past | None:
        history = self.session.history
        called = next((one for one in history.calls.values() if one.answer == answer), None)
        step = None if called is None else history.steps.get(called.path)
        if called is None or not isinstance(step, Generated):
            return None
        said = conversation(history, self.session.task, step)
        # Results of tools that were run through the gateway may follow.
        end = max(at for at, one in enumerate(said) if one is step.message)
        told = answer_of(self.session, called, Ask(called.model, ()), bare=False)
        return Past(told, (*said[:end], message_of(step)), called.instructed)
