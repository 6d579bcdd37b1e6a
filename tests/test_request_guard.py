"""No web page of another origin can do anything with a server on this machine."""

import asyncio
import gzip
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.embedded import EmbeddedEngine
from holdfast.environments.http.server import EnvironmentServer
from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.request_body import MAX_BODY_BYTES
from holdfast.server_tokens import known_token
from support.environments.http_worlds import Ledger
from support.examples.studio import CHROMIUM, needs_chromium

PAGE_HEADERS = {
    "another origin": {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    "another port": {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    "a sandboxed frame": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    "an old browser": {"Origin": "http://evil.example"},
    "an image, or a link": {"Sec-Fetch-Site": "cross-site"},
    "a rebound name": {"Host": "evil.example:8000", "Sec-Fetch-Site": "same-origin"},
    "a rebound name and its origin": {"Host": "evil.example", "Origin": "http://evil.example"},
}
TYPES = ("application/json", "text/plain", "application/x-www-form-urlencoded", "")
ROUTES = {
    "gateway": (
        ("POST", "/trajectories", {}),
        ("POST", "/hold", {"seconds": 60}),
        ("POST", "/release", {}),
        ("GET", "/metrics", None),
    ),
    "engine": (
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 1}),
        ("POST", "/pause?mode=abort", None),
        ("POST", "/update_weights_from_disk", {"path": "/tmp", "version": "v"}),
        ("GET", "/metrics", None),
        ("GET", "/v1/models", None),
    ),
    "environment": (
        ("POST", "/sessions", {"session": "0123456789abcdef", "seed": 3}),
        ("GET", "/", None),
    ),
}
STATE = ("/trajectories", "/hold", "/release", "/pause", "/update_weights_from_disk", "/sessions")


@contextmanager
def in_a_loop(context: Any) -> Iterator[Any]:
    """An async context manager that is open in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    try:
        yield wait(context.__aenter__())
        wait(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """The address of each server of ours, as a user starts it without a token."""
    processor = ExternalRolloutProcessor()
    with (
        EmbeddedEngine() as engine,
        in_a_loop(EnvironmentServer(Ledger)) as environment,
        in_a_loop(processor.make_gateway()) as gateway,
    ):
        yield {"gateway": gateway.url, "engine": engine.url, "environment": environment.url}


def send(url: str, route: tuple[str, str, object], headers: dict[str, str]) -> tuple[int, Any]:
    method, path, content = route
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    try:
        body = content
        if content is not None and not isinstance(content, bytes):
            body = json.dumps(content).encode()
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        reply = connection.getresponse()
        raw = reply.read()
        assert reply.getheader("Access-Control-Allow-Origin") is None
        return reply.status, raw
    finally:
        connection.close()


def with_token(url: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {known_token(url)}", "Content-Type": "application/json"}


@pytest.mark.parametrize("page", PAGE_HEADERS)
@pytest.mark.parametrize("server", ROUTES)
def test_a_page_can_do_nothing_even_with_the_token(servers, server, page):
    for route in ROUTES[server]:
        for media in TYPES:
            headers = {**with_token(servers[server]), **PAGE_HEADERS[page], "Content-Type": media}
            assert send(servers[server], route, headers)[0] == 403, (route, media)


@pytest.mark.parametrize("media", TYPES[1:])
@pytest.mark.parametrize("server", ROUTES)
def test_a_body_of_another_type_is_refused(servers, server, media):
    for route in ROUTES[server]:
        if route[2] is not None:
            headers = {**with_token(servers[server]), "Content-Type": media}
            assert send(servers[server], route, headers)[0] == 415, route


@pytest.mark.parametrize("server", ROUTES)
def test_a_packed_body_is_bounded_by_every_server(servers, server):
    bomb = gzip.compress(b" " * (MAX_BODY_BYTES + 1), 1)
    headers = {**with_token(servers[server]), "Content-Encoding": "gzip"}
    assert send(servers[server], ("POST", ROUTES[server][0][1], bomb), headers)[0] == 413


@pytest.mark.parametrize("server", ROUTES)
def test_what_changes_state_wants_the_token_and_our_own_clients_find_it(servers, server):
    url = servers[server]
    for route in ROUTES[server]:
        if not route[1].startswith(STATE):
            continue
        for key in ("", "Bearer x"):
            headers = {"Authorization": key, "Content-Type": "application/json"}
            assert send(url, route, headers)[0] == 401, route
        assert send(url, route, with_token(url))[0] != 401, route
    if server == "engine":
        assert send(url, ("POST", "/resume", None), with_token(url))[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9999", "[::1]:1"])
def test_sampling_at_loopback_needs_no_key_and_takes_any(servers, host):
    """As the clients of OpenAI do it; a tunnel changes the port."""
    route = ROUTES["engine"][1]
    for key in ("Bearer sk-anything", ""):
        headers = {"Host": host, "Authorization": key, "Content-Type": "application/json"}
        assert send(servers["engine"], route, headers)[0] == 200


@pytest.mark.parametrize("server", ROUTES)
def test_a_user_may_look_at_a_server_in_the_browser(servers, server):
    own = {**with_token(servers[server]), "Sec-Fetch-Site": "none"}
    assert send(servers[server], ROUTES[server][-1], own)[0] == 200


@pytest.mark.parametrize("server", ROUTES)
@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key"])
def test_two_keys_in_one_request_are_refused(servers, server, name):
    url, (method, path, _) = servers[server], ROUTES[server][0]
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    connection.putrequest(method, path)
    for key in (f"Bearer {known_token(url)}", "Bearer another"):
        connection.putheader(name, key)
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


# --- a real browser

ATTACK = """
async ([urls, routes, types]) => {
  const results = [];
  for (const [server, url] of Object.entries(urls))
    for (const [method, path, content] of routes[server])
      for (const type of types)
        for (const mode of ["cors", "no-cors"]) {
          const options = {method, mode};
          if (content !== null) options.body = new Blob([JSON.stringify(content)], {type});
          try {
            const reply = await fetch(url + path, options);
            results.push([server, path, type, mode, reply.type, reply.status]);
          } catch (error) { results.push([server, path, type, mode, "error", 0]); }
        }
  for (const [server, url] of Object.entries(urls)) {
    const form = document.createElement("form");
    form.method = "post"; form.enctype = "text/plain"; form.target = "frame";
    form.action = url + routes[server][0][1];
    const field = document.createElement("input");
    field.name = '{"x": "'; field.value = '"}';
    form.append(field); document.body.append(form); form.submit();
  }
  return results;
}
"""
PAGE = b"<!doctype html><iframe name=frame></iframe>"


class _EvilPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def evil() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _EvilPage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://evil.example:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@needs_chromium
def test_a_page_in_chromium_reaches_nothing_also_under_a_name_that_leads_here(servers, evil):
    """The page's own name leads to 127.0.0.1 all the time, as after DNS rebinding."""
    from playwright.sync_api import sync_playwright

    before = sampled(servers["engine"])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--host-resolver-rules=MAP evil.example 127.0.0.1"]
        )
        page = browser.new_page()
        statuses: dict[str, int] = {}
        page.on("response", lambda reply: statuses.update({reply.url: reply.status}))
        page.goto(evil)
        rebound = {n: u.replace("127.0.0.1", "evil.example") for n, u in servers.items()}
        routes = {name: [list(route) for route in routes] for name, routes in ROUTES.items()}
        for urls in (servers, rebound):
            for *_, kind, status in page.evaluate(ATTACK, [urls, routes, list(TYPES)]):
                assert kind in ("error", "opaque"), (kind, status)
        for url in rebound.values():  # Here the page is of the server's own origin.
            page.goto(f"{url}/health")
            for method, path, content in (route for routes in ROUTES.values() for route in routes):
                options = {"method": method, "headers": {"Content-Type": "application/json"}}
                options |= {} if content is None else {"body": json.dumps(content)}
                script = "async ([u, o]) => (await fetch(u, o)).status"
                assert page.evaluate(script, [url + path, options]) in (403, 404, 405)
        browser.close()
    ports = tuple(str(urlsplit(url).port) for url in servers.values())
    ours = [status for url, status in statuses.items() if str(urlsplit(url).port) in ports]
    assert ours
    assert set(ours) <= {403, 404, 405}
    assert sampled(servers["engine"]) == before
    url = servers["engine"]
    assert b"false" in send(url, ("GET", "/is_paused", None), {})[1]


def sampled(url: str) -> bytes:
    lines: list[bytes] = send(url, ("GET", "/metrics", None), {})[1].splitlines()
    return next(line for line in lines if line.startswith(b"holdfast_generation_tokens_total"))


def test_the_file_of_a_token_is_its_users_alone(servers):
    from holdfast.server_tokens import token_file

    path: Path = token_file(urlsplit(servers["gateway"]).port)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
