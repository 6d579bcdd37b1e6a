"""Bubblewrap: what a command cannot see, reach or leave behind."""

import asyncio
import os
import secrets
import socket
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.environments.workspace import ResourceLimits
from holdfast.environments.workspace.sandbox import sandbox
from support.environments.workspaces import needs_bwrap, opened, running, shell

SOURCE = str(Path(holdfast.__file__).parent.parent)
CONNECT = (
    "python -c 'import socket; print(socket.create_connection((\"127.0.0.1\", {}), 3).recv(9))'"
)


@pytest.fixture
def listening():
    """A server on this machine that says hello to everybody."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"hello")

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@needs_bwrap
def test_there_is_no_network(listening):
    output = shell(CONNECT.format(listening), sandbox="bwrap")
    assert "ConnectionRefusedError" in output


@needs_bwrap
def test_there_is_a_network_if_it_is_asked_for(listening):
    output = shell(CONNECT.format(listening), sandbox="bwrap", network=True)
    assert output == "b'hello'\n[exit code 0]"


def test_without_a_sandbox_the_network_is_there(listening):
    assert "hello" in shell(CONNECT.format(listening), sandbox="none")


@needs_bwrap
def test_a_command_can_serve_itself():
    output = shell(
        "python -m http.server 8000 > /dev/null 2>&1 & "
        "for i in $(seq 100); do sleep 0.1; python -c '"
        "import urllib.request; print(urllib.request.urlopen("
        '"http://127.0.0.1:8000/a").read())\' 2> /dev/null && break; done',
        files={"a": "served"},
        sandbox="bwrap",
    )
    assert output == "b'served'\n[exit code 0]"


@needs_bwrap
def test_nothing_of_the_driver_is_there(tmp_path):
    (tmp_path / "secret").write_text("x")
    places = f"{tmp_path} {SOURCE} {sys.prefix} /home /root /var /run /etc/shadow /sys /mnt /srv"
    look = f"ls -d {places} 2> /dev/null; ls /tmp; ls -d /workspace"
    assert shell(look, sandbox="bwrap", interpreter=False) == "/workspace\n[exit code 0]"


@needs_bwrap
def test_of_the_folders_around_an_interpreter_only_the_way_to_it_is_there(tmp_path, monkeypatch):
    """As with a virtual environment in a checkout, which may lie in /tmp itself."""
    environment = tmp_path / "checkout" / "venv"
    environment.mkdir(parents=True)
    (tmp_path / "checkout" / "secret").write_text("x")
    (tmp_path / "beside").mkdir()
    monkeypatch.setattr(sys, "prefix", str(environment))
    output = shell(f"ls -A {tmp_path} {tmp_path}/checkout; ls {SOURCE}/holdfast", sandbox="bwrap")
    assert output.startswith(f"{tmp_path}:\ncheckout\n\n{tmp_path}/checkout:\nvenv\nls: ")
    assert "No such file or directory" in output


@needs_bwrap
def test_what_is_named_is_there_and_cannot_be_changed(tmp_path):
    source = tmp_path / "given"
    source.mkdir()
    (source / "data").write_text("for you")
    os.symlink(source, tmp_path / "link")
    output = shell(
        f"cat {tmp_path}/link/data; echo; touch {source}/x; rm -f {source}/data",
        sandbox="bwrap",
        read_only=[str(tmp_path / "link")],
    )
    assert output.startswith("for you\n")
    assert output.count("Read-only file system") == 2
    assert (source / "data").exists()


@needs_bwrap
def test_only_the_workspace_and_temporary_folders_can_be_written_to():
    output = shell(
        "for d in / /usr /etc /dev /bin /proc /proc/sys/kernel /root /home "
        f"{sys.prefix} {sys.base_prefix}; do touch $d/x 2> /dev/null && echo $d; done; "
        "for d in /workspace /tmp /dev/shm; do touch $d/x && echo $d; done",
        sandbox="bwrap",
    )
    assert output == "/workspace\n/tmp\n/dev/shm\n[exit code 0]"


@needs_bwrap
def test_the_machine_s_settings_cannot_be_changed():
    """Each is tried with what it is already, so that a hole in the wall does no harm."""
    output = shell(
        "for s in vm/swappiness kernel/core_pattern kernel/hostname; do "
        "(cat /proc/sys/$s > /proc/sys/$s) 2> /dev/null && echo $s; done; "
        "for f in sysrq-trigger kcore mem; do test -w /proc/$f && echo $f; done; "
        "mount -t tmpfs x /tmp 2> /dev/null && echo mounted",
        sandbox="bwrap",
    )
    assert output == "[exit code 32]"


@needs_bwrap
def test_other_processes_are_not_there():
    output = shell("ls /proc | grep -c '^[0-9]'; kill -9 -1; kill -9 1", sandbox="bwrap")
    assert int(output.split()[0]) < 10
    assert not running("kill -9 -1")


@needs_bwrap
def test_secrets_of_the_driver_are_in_no_process_that_a_command_sees(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    output = shell("cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'", sandbox="bwrap")
    assert "HOME=/workspace" in output
    assert "sk-very-secret" not in output
    assert "holdfast-workspaces" not in output


@needs_bwrap
def test_a_fork_bomb_is_bounded_and_gone():
    mark = f"bomb{secrets.token_hex(6)}"
    output = shell(
        f": {mark}; f() {{ f | f & }}; f; sleep 1000",
        timeout=5,
        sandbox="bwrap",
        limits=ResourceLimits(processes=40),
    )
    assert "Resource temporarily unavailable" in output
    assert output.endswith("[timed out after 5 s]")
    assert not running(mark)


@needs_bwrap
def test_processes_are_counted_for_each_command_by_itself():
    fork = (
        "import os, time\nn = 0\n"
        "try:\n while n < 200:\n"
        "  if os.fork() == 0: time.sleep(100)\n"
        "  n += 1\n"
        "except OSError: pass\n"
        "time.sleep(1.5)\nprint(n)"
    )

    async def fork_in_workspace():
        limits = ResourceLimits(processes=60)
        async with opened({"f.py": fork}, sandbox="bwrap", limits=limits) as workspace:
            return await workspace.shell("python f.py")

    async def run():
        return await asyncio.gather(fork_in_workspace(), fork_in_workspace(), fork_in_workspace())

    for message in asyncio.run(run()):
        assert 50 <= int(message.split()[0]) < 60


@needs_bwrap
def test_temporary_folders_are_bounded():
    output = shell(
        "head -c 20M /dev/zero > /tmp/x; head -c 20M /dev/zero > /dev/shm/x; du -k /tmp/x",
        sandbox="bwrap",
        limits=ResourceLimits(temporary=1 << 20),
    )
    assert output.count("No space left on device") == 2
    assert output.splitlines()[-2].split() == ["1024", "/tmp/x"]


@needs_bwrap
def test_nobody_is_root_and_names_are_the_same_everywhere():
    output = shell("id; whoami; hostname; grep -E 'CapEff|NoNewPrivs' /proc/self/status")
    assert output.split() == [
        *("uid=1000(agent)", "gid=1000(agent)", "groups=1000(agent)", "agent", "workspace"),
        *("CapEff:", "0" * 16, "NoNewPrivs:", "1", "[exit", "code", "0]"),
    ]


@pytest.fixture(params=["by bubblewrap", "by a filter"])
def forbidding(request, monkeypatch):
    """Both ways to forbid user namespaces; an older bubblewrap knows only the second."""
    if request.param == "by a filter":
        monkeypatch.setattr(sandbox, "_can_disable_userns", lambda: False)


ESCAPE = """
import ctypes, platform, threading
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS = 0x10000000, 0x00020000
clone, clone3, unshare = (56, 435, 272) if platform.machine() == "x86_64" else (220, 435, 97)

def tried(*words):
    ctypes.set_errno(0)
    return libc.syscall(*words) == -1 and ctypes.get_errno() != 0

print(tried(unshare, NEWUSER), tried(unshare, NEWUSER | NEWNS), tried(clone, NEWUSER | 17, 0, 0, 0))
asked = (ctypes.c_uint64 * 8)(NEWUSER, 0, 0, 0, 17)
print(tried(clone3, ctypes.byref(asked), 64))
thread = threading.Thread(target=print, args=("threads work",))
thread.start()
thread.join()
"""


@needs_bwrap
def test_a_command_can_make_no_user_namespace_and_gets_neither_capabilities_nor_mounts(forbidding):
    output = shell(
        "unshare -Urm sh -c 'grep CapEff /proc/self/status; mount -t tmpfs -o size=2G x /tmp "
        "&& head -c 300M /dev/zero > /tmp/x && echo beyond' 2> /dev/null; "
        "bwrap --ro-bind / / echo nested 2> /dev/null; python escape.py; "
        "grep CapEff /proc/self/status | cut -f2",
        files={"escape.py": ESCAPE},
        sandbox="bwrap",
        limits=ResourceLimits(temporary=1 << 20),
    )
    assert output == f"True True True\nTrue\nthreads work\n{'0' * 16}\n[exit code 0]"


@needs_bwrap
def test_a_sandbox_that_cannot_forbid_user_namespaces_is_none(monkeypatch):
    monkeypatch.setattr(sandbox, "_can_disable_userns", lambda: False)
    monkeypatch.setattr(sandbox, "no_user_namespaces", lambda: None)
    assert "could make user namespaces" in sandbox.why_no_bwrap.__wrapped__()


@needs_bwrap
def test_a_command_that_kills_all_that_it_can_has_ended_and_broken_nothing():
    assert shell("kill -9 -1; echo here", "echo still here") == "still here\n[exit code 0]"


@needs_bwrap
def test_python_and_pytest_are_those_of_the_run():
    output = shell(
        "which python pytest; python -c 'import sys; print(sys.prefix)'", sandbox="bwrap"
    )
    bin_folder = f"{sys.prefix}/bin"
    assert output.split()[:3] == [f"{bin_folder}/python", f"{bin_folder}/pytest", sys.prefix]
    bare = shell(f"ls {sys.prefix}", sandbox="bwrap", interpreter=False)
    assert "No such file" in bare
