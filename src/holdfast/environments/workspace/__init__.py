"""The environment of coding tasks: a folder with a shell for each trajectory (see
docs/workspace.md).

- `workspace`: `Workspace`, the environment and its tools.
- `source`: the files that a workspace begins with.
- `files`: reads and writes files within the folder only.
- `scoring`: runs hidden tests on a copy of the folder.
- `snapshots`: lists, stores and restores the files.
- `folder`: creates, locks and removes the folders of workspaces.
- `sandbox`: runs commands.
- `threads`: runs blocking work off the event loop.
- `limits`: `ResourceLimits` and `WorkspaceLimit`.
"""

from holdfast.environments.workspace.limits import ResourceLimits, WorkspaceLimit
from holdfast.environments.workspace.workspace import Workspace

__all__ = ["ResourceLimits", "Workspace", "WorkspaceLimit"]
