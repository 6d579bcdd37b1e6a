"""A folder per trajectory with a shell: for coding tasks (see docs/workspace.md)."""

from holdfast.environments.workspace.limits import ResourceLimits, WorkspaceLimit
from holdfast.environments.workspace.workspace import Workspace

__all__ = ["ResourceLimits", "Workspace", "WorkspaceLimit"]
