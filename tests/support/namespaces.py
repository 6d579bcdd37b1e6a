"""PID namespaces for tests, as containers have them; skipped where they cannot be made."""

import shutil
import subprocess

import pytest

IN_A_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Put before a command: it is process 1 there, with a /proc that shows it, and the host's name."""


IN_A_TIME_NAMESPACE = ("unshare", "--time", "--boottime", "1000000", "--fork")
"""Put before a command: for it, the machine has been up for longer."""


def _can_be_made(*command: str) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _can_be_made(*IN_A_PID_NAMESPACE), reason="PID namespaces cannot be made (unshare, as root)"
)
needs_time_namespaces = pytest.mark.skipif(
    not _can_be_made(*IN_A_TIME_NAMESPACE),
    reason="time namespaces cannot be made (unshare, as root)",
)
