"""A trial: whether an endpoint that answers can sample, too."""

from array import array
from collections.abc import Awaitable, Callable

from holdfast.policy.dialect import Ask, Dialect
from holdfast.policy.policy import Request
from holdfast.policy.reaching import UNREACHABLE, say
from holdfast.records.errors import BadRequest, EngineUnavailable, PolicyRefused, Truncated
from holdfast.records.message import user
from holdfast.records.sampling import Sampling

Post = Callable[[str, str, object], Awaitable[bytes]]


async def why_it_cannot_sample(post: Post, dialect: Dialect, model: str) -> str | None:
    """Asks for a single token. One that takes its time over it, or objects, is at work."""
    prompt = array("i", [1])
    request = Request(prompt, Sampling(1), None, "trial", messages=(user("Hello."),))
    ask = Ask(request, model, prompt, max_tokens=1, seed=None, stream=False)
    try:
        await post("POST", dialect.path, dialect.body(ask))
    except (TimeoutError, BadRequest, Truncated, PolicyRefused):
        return None
    except UNREACHABLE as error:
        is_busy = isinstance(error, EngineUnavailable) and error.is_busy
        return None if is_busy else say(error)
    return None
