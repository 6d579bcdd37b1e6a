"""Tokens of servers at loopback: who finds them."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.server_tokens import LoopbackToken, known_token

_SERVER = """
import sys
from holdfast.server_tokens import LoopbackToken
token = LoopbackToken(int(sys.argv[1]))
print(token.value, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_the_token_of_a_port_is_found_by_its_address(port: int) -> None:
    with LoopbackToken(port) as token:
        assert known_token(f"http://127.0.0.1:{port}/v1") == token.value
        assert known_token(f"http://engine.example:{port}") is None


def test_an_address_with_credentials_of_its_own_needs_no_token(port: int) -> None:
    with LoopbackToken(port):
        assert known_token(f"http://me:secret@127.0.0.1:{port}") is None


def test_the_token_of_a_server_that_stopped_is_not_sent_and_the_next_one_has_it(port: int) -> None:
    with LoopbackToken(port) as token:
        pass
    assert known_token(f"http://127.0.0.1:{port}") is None
    with LoopbackToken(port) as next_token, LoopbackToken(port):
        assert next_token.value == token.value
    assert known_token(f"http://127.0.0.1:{port}") is None


def test_the_token_of_a_killed_server_is_not_sent(port: int) -> None:
    command = [sys.executable, "-c", _SERVER, str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        token = server.stdout.readline().strip()
        assert known_token(f"http://127.0.0.1:{port}") == token
        server.kill()
    assert known_token(f"http://127.0.0.1:{port}") is None
