"""The outcome of a call for its agent: the answer, or a rejection that says why there is none."""

import asyncio
import logging
import traceback

import msgspec

from holdfast.gateway.calls.call import CallSubscription
from holdfast.gateway.protocol.messages import AgentFailed, Answer, RequestRejected, shorten
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import (
    BadRequest,
    ContextOverflow,
    HoldfastError,
    RunStopped,
    Truncated,
)
from holdfast.records.trajectory import Status
from holdfast.rollout.replay.session import Session

NO_ANSWER = "the engine gave no answer that could be used; the log of the run says why"
"""The reason itself names the engine's address, which no agent should know."""
END_SECONDS = 60.0
"""For the end of a trajectory to become durable."""
_log = logging.getLogger("holdfast.gateway")


async def wait_for_answer(subscription: CallSubscription, trajectory: str) -> Answer:
    """Returns the answer, or raises `RequestRejected`, which is durable; nothing else, but for a
    cancellation of the waiting caller."""
    try:
        return await _wait_for_answer(subscription, trajectory)
    except RequestRejected as rejection:
        await subscription.on_rejected(rejection)
        raise


async def _wait_for_answer(subscription: CallSubscription, trajectory: str) -> Answer:
    try:
        return await subscription.answer()
    except RequestRejected:
        raise
    except ContextOverflow as limit:
        raise RequestRejected(400, str(limit), code="context_length_exceeded") from limit
    except Truncated as limit:
        raise RequestRejected(400, str(limit), code=limit.reason) from limit
    except BadRequest as error:
        raise RequestRejected(400, redact(error.said)) from error
    except RunStopped as error:
        raise RequestRejected(503, str(error), code="stopping") from error
    except HoldfastError as error:
        _log.warning("a call could not be answered: %s", redact(str(error)))
        raise RequestRejected(503, NO_ANSWER, code="engine") from error
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise attempt_over() from None
    except Exception as error:
        raise internal_error(error, trajectory) from error


def attempt_over(why: BaseException | None = None) -> RequestRejected:
    message = "the attempt that this key belongs to is over"
    # Of all reasons, the agent gets those that are its own doing.
    message += f": {why}" if isinstance(why, AgentFailed) else ""
    return RequestRejected(409, message, code="attempt_over")


def internal_error(error: Exception, trajectory: str) -> RequestRejected:
    """The response to an error of the gateway's own. It is logged here by its type and place,
    without its message, which may hold the client's text."""
    where = "".join(traceback.format_tb(error.__traceback__))
    kind = type(error).__name__
    _log.error("a request of %r failed: %s\n%s", trajectory or "nobody", kind, where)
    return gateway_failed()


def gateway_failed() -> RequestRejected:
    return RequestRejected(500, "the gateway failed; its log says where", code="internal_error")


async def until_durable(session: Session) -> None:
    """Waits for the attempt's last record. Raises `RequestRejected` if it is no outcome."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await session.state.concluded.wait()
    except TimeoutError:
        raise RequestRejected(
            503, "the end is not durable yet; say it again", code="busy"
        ) from None
    finished = session.history.finished
    if finished is None or finished.status is Status.FAILED:
        raise attempt_over(session.state.broken)


def completed(reward: float | None) -> bytes:
    """The body of the response to `/complete`."""
    return msgspec.json.encode({"completed": True, "reward": reward})


def parse_reward(body: bytes) -> float | None:
    """The reward in the body of `/complete`."""
    if not body.strip():
        return None
    try:
        found = msgspec.json.decode(body, type=dict[str, float | None])
    except (ValueError, RecursionError) as error:
        raise RequestRejected(400, f'it wants {{"reward": 0.5}}, or nothing: {error}') from error
    if unknown := sorted(found.keys() - {"reward"}):
        message = (
            f'unknown field {shorten(unknown[0])!r}; it wants {{"reward": number}}, or nothing'
        )
        raise RequestRejected(400, message, param=unknown[0])
    return found.get("reward")
