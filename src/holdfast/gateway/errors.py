"""What goes wrong with an agent itself."""

from holdfast.records.errors import Cause, HoldfastError


class AgentFailed(HoldfastError):
    """The agent's process ended without having done its task."""

    cause = Cause.CODE
    retryable = True
    arose_here = False


class AgentKilled(AgentFailed):
    """A signal ended the agent's process: rather the machine's doing than the agent's."""

    cause = Cause.ENVIRONMENT


class AgentSilent(HoldfastError):
    """The agent lives, but asks nothing any more."""

    cause = Cause.ENVIRONMENT
    retryable = True
    arose_here = False
