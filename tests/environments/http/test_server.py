"""The wire as docs/reference/http-protocol.md describes it, and what a server does with the rest."""

import asyncio
import json
import sys

import aiohttp
import pytest

from holdfast.environments.http.environment import EnvironmentEndpoint
from holdfast.environments.http.server import EnvironmentServer
from holdfast.environments.serving import main
from holdfast.records.errors import UsageError
from holdfast.server_tokens import known_token
from support.environments.http_servers import WORLDS, ServerProcess, serving
from support.environments.http_worlds import AsyncLedger, KeptLedger, Ledger

ID = "0123456789abcdef"
TOKEN = "token-of-tests"


class Client:
    """A client that knows nothing of Holdfast."""

    def __init__(self, url: str, client: aiohttp.ClientSession):
        self.url = url
        self._client = client

    async def ask(self, method: str, path: str, body=None, **headers: str):
        """(status, the answer)"""
        headers.setdefault("Authorization", f"Bearer {known_token(self.url)}")
        options = {"json": body} if not isinstance(body, bytes) else {"data": body}
        if isinstance(body, bytes):
            headers.setdefault("Content-Type", "application/json")
        async with self._client.request(
            method, self.url + path, headers=headers, **(options if body is not None else {})
        ) as response:
            self.headers = response.headers
            raw = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(raw) if is_json else raw


def asking(scenario, make=Ledger, **options):
    async def with_client(server):
        async with aiohttp.ClientSession() as client:
            return await scenario(Client(server.url, client))

    return serving(with_client, make, **options)


def test_a_whole_session_by_hand():
    async def scenario(client):
        return [
            await client.ask("POST", "/sessions", {"session": ID, "seed": 3, "task": None}),
            await client.ask("POST", f"/sessions/{ID}/step", {"index": 0, "action": "add 1"}),
            await client.ask("POST", f"/sessions/{ID}/step", {"index": 1, "action": "no way"}),
            await client.ask(
                "POST",
                f"/sessions/{ID}/tool",
                {"index": 2, "name": "add", "arguments": {"amount": 2}},
            ),
            await client.ask("GET", f"/sessions/{ID}/snapshot"),
            await client.ask("DELETE", f"/sessions/{ID}"),
        ]

    still = {"done": False, "truncated": False}
    first = {"text": "total 3", "reward": 0.0, "info": {}, **still}
    info = {"total": 4, "words": ["add 1"]}
    seen = {"text": "total 4", "reward": 0.5, "info": info, **still}
    assert asking(scenario, KeptLedger) == [
        (200, {"session": ID, "observation": first, "recovery": "snapshot"}),
        (200, {"observation": seen}),
        (200, {"refused": "not way"}),
        (200, {"content": "total 6"}),
        (200, b"\xff6"),
        (200, {}),
    ]


def test_a_restored_session_begins_without_an_observation():
    async def scenario(client):
        return await client.ask("POST", "/sessions", {"session": ID, "restore": "/zc="})

    assert asking(scenario, KeptLedger) == (200, {"session": ID, "recovery": "snapshot"})


def test_what_is_served_is_described():
    status, message = asking(lambda client: client.ask("GET", "/"), KeptLedger)
    assert status == 200
    assert {key: message[key] for key in ("name", "recovery", "snapshots", "protocol")} == {
        "name": "KeptLedger",
        "recovery": "snapshot",
        "snapshots": True,
        "protocol": 1,
    }
    assert [tool["name"] for tool in message["tools"]] == ["add", "keyed"]


async def begun(client: Client, **more: object) -> None:
    assert (await client.ask("POST", "/sessions", {"session": ID, "seed": 0, **more}))[0] == 200


def act(client: Client, index: int, action: str):
    return client.ask("POST", f"/sessions/{ID}/step", {"index": index, "action": action})


def test_the_last_action_asked_again_gives_the_same_answer_and_any_other_is_refused():
    async def scenario(client):
        await begun(client)
        first, again = [await act(client, 0, "add 1") for _ in range(2)]
        assert first == again
        another = await act(client, 0, "add 2")
        early, negative = await act(client, 2, "add 1"), await act(client, -1, "add 1")
        assert (await act(client, 1, "add 1"))[1]["observation"]["text"] == "total 2"
        old = await act(client, 0, "add 1")
        return [
            (status, message["error"]["type"])
            for status, message in (another, early, negative, old)
        ]

    assert asking(scenario) == [(409, "WrongIndex")] * 4


def test_an_action_asked_again_while_it_runs_is_not_begun_again(tmp_path):
    log, hold = tmp_path / "log", tmp_path / "hold"
    hold.touch()

    async def scenario(client):
        await begun(client, task={"log": str(log)})
        pending = asyncio.create_task(act(client, 0, f"hold {hold}"))
        while f"step hold {hold}" not in log.read_text():
            await asyncio.sleep(0.01)
        two = asyncio.create_task(act(client, 0, f"hold {hold}"))
        next_one = await act(client, 1, "add 1")
        snapshot = await client.ask("GET", f"/sessions/{ID}/snapshot")
        assert not pending.done()
        assert not two.done()
        hold.unlink()
        assert await pending == await two
        return next_one, snapshot

    for status, message in asking(scenario, KeptLedger):
        assert (status, message["error"]["type"]) == (409, "Busy")
    assert log.read_text().splitlines() == ["reset 0", f"step hold {hold}", "close"]


def test_a_session_asked_for_again_is_the_same_one(tmp_path):
    log = tmp_path / "log"

    async def scenario(client):
        request = {"session": ID, "seed": 4, "task": {"log": str(log)}}
        return [await client.ask("POST", "/sessions", request) for _ in range(3)]

    first, *others = asking(scenario)
    assert others == [first, first]
    assert log.read_text().splitlines() == ["reset 4", "close"]


def test_too_many_sessions_are_told_to_come_again():
    async def scenario(client):
        await begun(client)
        status, message = await client.ask("POST", "/sessions", {"session": ID[::-1], "seed": 0})
        return status, message["error"]["type"], client.headers["Retry-After"]

    assert asking(scenario, max_sessions=1) == (429, "TooManySessions", "1")


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe{}",
        b'{"session": "0123456789abcdef\xff"}',
        b"{",
        b"[]",
        b"null",
        b"",
        b"[" * 100_000,
        b'{"session": "short"}',
        b'{"session": "../../../../etc/passwd"}',
        b'{"session": "0123456789abcdef", "seed": 1.5}',
        b'{"session": "0123456789abcdef", "restore": "%%%"}',
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body):
    async def scenario(client):
        refused = await client.ask("POST", "/sessions", body)
        await begun(client)
        step = await client.ask("POST", f"/sessions/{ID}/step", body)
        assert (await act(client, 0, "add 1"))[0] == 200
        return [(status, message["error"]["type"]) for status, message in (refused, step)]

    assert asking(scenario) == [(400, "BadRequest")] * 2


@pytest.mark.parametrize("arguments", ["null", "[]", '"x"', '{"amount": "x"}', '{"other": 1}'])
def test_arguments_that_do_not_fit_are_told_to_the_policy(arguments):
    async def scenario(client):
        await begun(client)
        body = f'{{"index": 0, "name": "add", "arguments": {arguments}}}'.encode()
        return await client.ask("POST", f"/sessions/{ID}/tool", body)

    status, message = asking(scenario)
    assert status == 200
    assert "invalid arguments for add" in message["refused"]


def test_a_tool_that_is_not_there_is_told_to_the_policy():
    async def scenario(client):
        await begun(client)
        return await client.ask("POST", f"/sessions/{ID}/tool", {"index": 0, "name": "rm"})

    assert asking(scenario)[1]["refused"] == "there is no tool 'rm'; the tools are: add, keyed"


def test_a_body_beyond_the_bound_is_refused():
    async def scenario(client):
        await begun(client)
        refused = await act(client, 0, "x" * 100_000)
        return refused[0], (await act(client, 0, "add 1"))[0]

    assert asking(scenario, max_body=10_000) == (413, 200)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/sessions/nobody-knows-this/snapshot", 404),
        ("DELETE", "/sessions/nobody-knows-this", 404),
        ("GET", "/elsewhere", 404),
        ("PUT", "/sessions", 405),
    ],
)
def test_what_is_not_there_is_told_in_one_shape(method, path, status):
    result, message = asking(lambda client: client.ask(method, path))
    assert result == status
    assert set(message["error"]) == {"type", "message"}


def test_a_page_in_a_browser_cannot_use_a_server_without_a_token():
    async def scenario(client):
        plain = await client.ask("POST", "/sessions", b"{}", **{"Content-Type": "text/plain"})
        rebound = await client.ask("GET", "/", Host="evil.example")
        return plain[0], rebound[0]

    assert asking(scenario) == (415, 403)


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer x", TOKEN, "Bearer tök\udc80n"])
def test_every_path_wants_the_token(header):
    async def scenario(client):
        paths = [("GET", "/"), ("POST", "/sessions"), ("DELETE", f"/sessions/{ID}")]
        answers = [await client.ask(*request, Authorization=header) for request in paths]
        good = await client.ask("GET", "/", Authorization=f"Bearer {TOKEN}")
        assert TOKEN not in str(answers)
        return {status for status, _ in answers}, good[0]

    assert asking(scenario, token=TOKEN) == ({401}, 200)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_it_is_not_opened_to_others_without_a_token(host):
    with pytest.raises(UsageError, match="can be reached from other machines"):
        EnvironmentServer(Ledger, host=host)
    EnvironmentServer(Ledger, host=host, token=TOKEN)


@pytest.mark.parametrize("token", ["", "short", "with space", "with\nline", "ümlaut-token"])
def test_what_cannot_be_a_token_is_refused_and_not_shown(token):
    with pytest.raises(UsageError, match="not shown here") as refused:
        EnvironmentServer(Ledger, token=token)
    assert not token or token not in str(refused.value)


def test_what_cannot_be_made_without_a_task_is_described_by_an_example():
    def make(task):
        return KeptLedger(task) if task["kept"] else Ledger(task)

    with pytest.raises(UsageError, match=r"made with the task None, TypeError.*`example=`"):
        EnvironmentServer(make)

    async def scenario(client):
        good = await client.ask("POST", "/sessions", {"session": ID, "task": {"kept": True}})
        other = await client.ask("POST", "/sessions", {"session": ID[::-1], "task": {"kept": 0}})
        return good[0], other[0], other[1]["error"]["message"]

    *statuses, message = asking(scenario, make, example={"kept": True})
    assert statuses == [200, 500]
    assert "serve each kind by itself" in message


def test_stopping_the_server_closes_what_is_open_and_waits_for_no_one(tmp_path):
    made = []

    def make(task):
        made.append(AsyncLedger(task))
        return made[-1]

    async def scenario(client):
        await begun(client)
        step = asyncio.create_task(act(client, 0, "600"))
        while not made[-1].began:
            await asyncio.sleep(0.01)
        return step

    async def run():
        async with aiohttp.ClientSession() as session:
            async with EnvironmentServer(make) as server:
                step = await scenario(Client(server.url, session))
            status, message = await step
            return status, message["error"]["message"]

    assert asyncio.run(run()) == (500, "the session was closed during step")
    assert (made[-1].cancelled, made[-1].closed) == (True, 1)


def test_the_server_as_a_process_wants_its_token_and_ends_when_told():
    with ServerProcess("Ledger", "--token-env", "MINE", env={"MINE": TOKEN}) as server:
        endpoint = asyncio.run(EnvironmentEndpoint.describe(server.url, token=TOKEN))
        with pytest.raises(UsageError):
            asyncio.run(EnvironmentEndpoint.describe(server.url))
        assert server.stop() == 0
    assert endpoint.description.name == "Ledger"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.py:make"], "nothing.py does not exist"),
        ([f"{WORLDS.parent}:make"], "is not a file"),
        ([str(WORLDS)], "names no function of a file"),
        ([f"{WORLDS}:nothing"], "has no function 'nothing'"),
        ([f"{WORLDS}:Ledger", "--host", "0.0.0.0"], "can be reached from other machines"),
        ([f"{WORLDS}:Ledger", "--token-env", "NOT_SET"], "NOT_SET: this environment variable"),
        ([f"{WORLDS}:Ledger", "--example", "{"], "--example"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


def test_a_snapshot_that_could_not_be_restored_is_refused_when_it_is_taken():
    class Heavy(KeptLedger):
        def snapshot(self):
            return bytes(6_000)

    async def scenario(client):
        await begun(client)
        status, message = await client.ask("GET", f"/sessions/{ID}/snapshot")
        return status, message["error"]["message"]

    status, text = asking(scenario, Heavy, max_body=10_000)
    assert status == 500
    assert "could not be restored" in text


@pytest.mark.parametrize("thing", ["blobs", "instance"])
def test_what_a_served_environment_cannot_have_is_told(thing):
    only = []

    class Greedy(Ledger):
        async def reset(self, *, seed):
            return (await self.blobs.put_blob(b"")).hex()

    def make(task):
        if thing == "blobs" or not only:
            only.append(Greedy(task) if thing == "blobs" else Ledger(task))
        return only[-1]

    async def scenario(client):
        requests = [{"session": ID, "seed": 0}, {"session": ID[::-1], "seed": 0}]
        return [await client.ask("POST", "/sessions", request) for request in requests]

    _, (status, message) = asking(scenario, make)
    assert status == 500
    arguments = {"blobs": "has no `blobs`", "instance": "a new instance for each session"}
    assert arguments[thing] in message["error"]["message"]
