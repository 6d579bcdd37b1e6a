"""Failures of an agent itself."""

from holdfast.records.errors import Cause, HoldfastError


class AgentFailed(HoldfastError):
    """The agent's process ended without having done its task."""

    cause = Cause.CODE
    retryable = True
    arose_here = False


class AgentKilled(AgentFailed):
    """A signal ended the agent's process: more likely the machine's fault than the agent's."""

    cause = Cause.ENVIRONMENT


class RefusedCall(AgentFailed):
    """The agent ended as if its task was done, although one of its calls was rejected. It would be
    rejected again."""

    retryable = False


class UnansweredCall(AgentFailed):
    """The same of a call that the gateway could not answer."""

    cause = Cause.INFRASTRUCTURE


class AgentSilent(HoldfastError):
    """The agent lives, but makes no calls any more."""

    cause = Cause.ENVIRONMENT
    retryable = True
    arose_here = False
