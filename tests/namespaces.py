"""PID namespaces for tests, as containers have them; skipped where they cannot be made."""

import shutil
import subprocess

import pytest

IN_A_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Put before a command: it is process 1 there, with a /proc that shows it, and the host's name."""


def _can_be_made() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*IN_A_PID_NAMESPACE, "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _can_be_made(), reason="PID namespaces cannot be made here (unshare, as root)"
)
