"""What a call comes to, as its agent is told: the answer, or why there is none."""

import asyncio
import logging
import traceback

import msgspec

from holdfast.gateway.exchange import Answer, Refused
from holdfast.gateway.hearing import Hearing
from holdfast.records.errors import (
    BadRequest,
    ContextOverflow,
    HoldfastError,
    RunStopped,
    Truncated,
)
from holdfast.records.redaction import redact
from holdfast.rollout.session import Session

END_SECONDS = 60.0
"""For the end of a trajectory to become durable."""
_log = logging.getLogger("holdfast.gateway")


async def answered(hearing: Hearing, trajectory: str) -> Answer:
    """The answer, or `Refused`; nothing else, but for a cancellation of whoever waits."""
    try:
        return await hearing.answer()
    except Refused:
        raise
    except ContextOverflow as limit:
        raise Refused(400, str(limit), code="context_length_exceeded") from limit
    except Truncated as limit:
        raise Refused(400, str(limit), code=limit.reason) from limit
    except BadRequest as error:
        raise Refused(400, redact(str(error))) from error
    except RunStopped as error:
        raise Refused(503, str(error), code="stopping") from error
    except HoldfastError as error:
        _log.warning("a call could not be answered: %s", redact(str(error)))
        raise Refused(503, redact(str(error)), code="engine") from error
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise attempt_over() from None
    except Exception as error:
        raise unforeseen(error, trajectory) from error


def attempt_over() -> Refused:
    return Refused(409, "the attempt that this key belongs to is over", code="attempt_over")


def unforeseen(error: Exception, trajectory: str) -> Refused:
    """What a client is told of an error of ours, which is logged here: where it was and what kind
    it is, without its words, since they may be the client's."""
    where = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error).__name__
    _log.error("a request of %r failed: %s\n%s", trajectory or "nobody", kind, where)
    return Refused(500, "the gateway failed; its log says where", code="internal_error")


async def until_durable(session: Session) -> None:
    """Waits for the attempt's last record. `Refused` if it is not the end of the trajectory."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await session.concluded.wait()
    except TimeoutError:
        raise Refused(503, "the end is not durable yet; say it again", code="busy") from None
    if session.history.finished is None:
        raise attempt_over()


def completed(reward: float | None) -> bytes:
    """What an agent that is done is told."""
    return msgspec.json.encode({"completed": True, "reward": reward})


def reward_of(body: bytes) -> float | None:
    """What an agent that is done says of itself."""
    if not body.strip():
        return None
    try:
        found = msgspec.json.decode(body, type=dict[str, float | None])
    except (ValueError, RecursionError) as error:
        raise Refused(400, f'it wants {{"reward": number}}: {error}') from error
    if unknown := sorted(found.keys() - {"reward"}):
        words = f'unknown field {unknown[0][:200]!r}; it wants {{"reward": number}}, or nothing'
        raise Refused(400, words, param=unknown[0][:200])
    return found.get("reward")
