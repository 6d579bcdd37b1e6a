"""What agents are told of where the gateway is: an address that others can reach, or a refusal."""

import os
import socket
import subprocess
import sys

import pytest

from holdfast.gateway import address
from holdfast.gateway.address import is_loopback, reachable_name
from holdfast.records.errors import UsageError

NAMES = {
    "localhost": "127.0.0.1",
    "box.debian.example": "127.0.1.1",
    "box.example": "203.0.113.7",
    "203.0.113.7": "203.0.113.7",
    "203.0.113.8": "203.0.113.8",
}


@pytest.fixture
def named(monkeypatch):
    """Lets the machine have a name, and an interface that leads to others, or none."""

    def choose(name: str, outward: str | None = "203.0.113.7") -> None:
        def resolve(host, _):
            return [(None, None, None, "", (NAMES[host], 0))]

        monkeypatch.setattr(socket, "getfqdn", lambda: name)
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        monkeypatch.setattr(address, "_outward_address", lambda host: outward)

    return choose


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [
        ("box.example", "0.0.0.0", "box.example"),
        ("box.example", "203.0.113.7", "box.example"),
        ("box.example", "203.0.113.8", "203.0.113.8"),
        ("localhost", "203.0.113.7", "203.0.113.7"),
        ("localhost", "0.0.0.0", "203.0.113.7"),
        ("box.debian.example", "0.0.0.0", "203.0.113.7"),
        ("box.example", "127.0.0.1", "127.0.0.1"),
        ("box.example", "localhost", "localhost"),
    ],
)
def test_it_is_one_that_others_can_reach(named, name, host, expected):
    named(name)
    assert reachable_name(host) == expected


def test_where_none_can_be_found_it_is_asked_for(named):
    named("localhost", outward=None)
    with pytest.raises(UsageError, match="--advertise HOST"):
        reachable_name("0.0.0.0")


def test_the_interface_of_this_machine_is_never_loopback():
    result = address._outward_address("0.0.0.0")
    assert result is None or not is_loopback(result)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_on_a_machine_without_a_network_the_command_asks_for_it_before_the_run_is_opened(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a", "prompt": "do a"}\n')
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", _WITHOUT_A_NAME, "gateway", "--tasks",
         str(tasks), "--run", "r", "--journal", str(tmp_path / "j.db"), "--host", "0.0.0.0",
         "--token-env", "A_TOKEN", "--policy", "http://127.0.0.1:9"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "A_TOKEN": "t" * 20},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "--advertise HOST" in done.stderr
    assert not (tmp_path / "j.db").exists()


_WITHOUT_A_NAME = """
import socket, sys
socket.getfqdn = lambda: "localhost"
from holdfast.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
