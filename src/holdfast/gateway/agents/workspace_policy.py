"""What an agent finds around it when it is started again.

Its calls are replayed in any case. What it did outside of the gateway is not recorded: a world says
whether that is done again, or is there already. Tools that are called through the gateway (see
`tools`) are recorded in any world.
"""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from holdfast.environments.workspace import Workspace
from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.rollout.processors.agent import task_function


class Restore(StrEnum):
    """What a workspace is when its agent is started again."""

    START = "start"
    """As it was in the beginning. For agents that start over: while their calls are
    replayed, they do by themselves what they did before."""
    LATEST = "latest"
    """As it was when the last call came. For agents that keep where they are in their home, and
    can go on from there."""


class FreshWorld(Struct, frozen=True):
    """An empty folder, at the same path in each attempt of a trajectory, in which the agent runs
    its tools again. The default."""

    confined: bool = True
    """Whether the agent is kept from reading the variables and the memory of other processes (see
    `confinement`). Where it needs what that takes from it, such as `sudo`: False."""

    @property
    def identity(self) -> str:
        return ""


class WorkspaceWorld(Struct, frozen=True):
    """A workspace is the agent's home and working folder.

    What is in it at the end is durable, and can be judged (`finish`). With `restore="latest"` it
    is made durable each time that the agent asks for something new, where it has changed.
    """

    workspace: Callable[[Task], Workspace]
    """Makes a task's workspace, a new one for each attempt."""
    restore: Restore | str = Restore.START

    def __post_init__(self) -> None:
        task_function(self.workspace, what="workspace", makes="a Workspace")
        if self.restore not in list(Restore):
            known = " and ".join(Restore)
            raise UsageError(f"restore={self.restore!r}: there are {known}")

    @property
    def identity(self) -> str:
        return f"workspace {Restore(self.restore)}"


World = FreshWorld | WorkspaceWorld
FRESH = FreshWorld()
