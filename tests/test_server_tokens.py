"""Tokens of servers at loopback: who finds them."""

import socket

from holdfast.server_tokens import known_token, loopback_token


def test_the_token_of_a_port_is_found_by_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        token = loopback_token(port)
        assert known_token(f"http://127.0.0.1:{port}/v1") == token
        assert known_token(f"http://engine.example:{port}") is None


def test_an_address_with_credentials_of_its_own_needs_no_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        loopback_token(port)
        assert known_token(f"http://me:secret@127.0.0.1:{port}") is None
