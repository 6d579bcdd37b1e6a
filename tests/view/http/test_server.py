"""Who may ask the server of pages, for what, and what an error looks like."""

import asyncio
import os
import shutil

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from holdfast.cli.main import main
from holdfast.server_tokens import known_token
from holdfast.view.pages.context import CONTEXT, Context
from holdfast.view.pages.search import search_page
from holdfast.view.reading.columns import Columns
from holdfast.view.reading.digest import RunDigest
from holdfast.view.reading.digests import Digests
from holdfast.view.source import ShownJournal
from support.journal import postgres_server
from support.records import sql
from support.view import rich_journal, viewing

PAGES = [
    "/",
    "/run/rich",
    "/run/rich?state=failed&order=slowest&text=e&low=0&high=1&least_turns=1&least_tokens=1",
    "/run/rich/0/0",
    "/run/rich/0/0?as=tokens",
    "/run/rich/0/2?as=events",
    "/run/rich/0/0?as=records",
    "/run/rich/0/0/token?step=5&at=3",
    "/run/rich/search?q=alga",
    "/compare?a=wide&b=other",
    "/compare/task?a=wide&b=other&task=task-3",
    "/find?name=rich/kelp/1",
    "/run/trained/training",
    "/run/trained/step/1",
]
MAX_PART = 200_000


@pytest.fixture(scope="module")
def viewed(tmp_path_factory):
    path = rich_journal(tmp_path_factory.mktemp("view") / "rich.db")
    with viewing(path) as server:
        server.journal = path
        yield server


def alert(page: str) -> str:
    return page.partition('role="alert">')[2].partition("</p>")[0]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_and_small(viewed, path):
    status, page = viewed.get(path)
    assert status == 200, alert(page)
    assert page.rstrip().endswith("</html>")
    assert len(page) < MAX_PART


@pytest.mark.parametrize("sample", [0, 1, 2])
@pytest.mark.parametrize("way", ["conversation", "tokens", "records"])
def test_a_long_trajectory_opens_in_small_parts(viewed, sample, way):
    path = f"/run/rich/3/{sample}?as={way}"
    for part in (0, 1, 999):
        status, page = viewed.get(f"{path}&part={part}")
        assert status == 200
        assert len(page.encode()) < MAX_PART


def test_the_pieces_of_a_long_text_are_the_whole_text(viewed):
    _, page = viewed.get("/run/rich/3/0")
    length, links = 4_000, 0
    while 'class="more"' in page and links < 100:
        href = page.partition('class="more" href="')[2].partition('"')[0].replace("&amp;", "&")
        _, page = viewed.get(href)
        length += page.count("x" * 1000) * 1000
        links += 1
    assert length == 2_000_000


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("/nothing", "there is no such page"),
        ("/run/none", "there is no run &#39;none&#39; in the journal"),
        ("/run/rich/9/0", "run &#39;rich&#39; has no trajectory 9/0"),
        ("/run/rich/0/9", "run &#39;rich&#39; has no trajectory 0/9"),
        ("/run/rich/0/0?tab=77", "no branch that ends at step"),
        ("/run/rich/0/0/token?step=0&at=99", "no token 99 of a reply at step"),
        ("/run/rich/0/0/text?item=99", "there is no such text"),
        ("/run/rich?low=much", "low is a number, not &#39;much&#39;"),
        ("/run/rich?page=-1", "page is a whole number"),
        ("/run/rich/training", "is no training"),
        ("/compare?a=rich", "a comparison names two runs"),
        ("/find?name=rich/none/0", "run &#39;rich&#39; has no trajectory &#39;none/0&#39;"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(viewed, path, line):
    status, page = viewed.get(path)
    assert status == 404
    assert line in alert(page)


def test_a_page_asks_nobody_else_and_runs_nothing_of_its_own(viewed):
    import urllib.request

    with urllib.request.urlopen(viewed.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
        page = answer.read().decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "style=" not in page
    assert "://" not in page.replace("http-equiv", ""), "no address of another server"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "localhost:1"}, 200),
    ],
)
def test_pages_of_other_origins_and_foreign_names_read_nothing(viewed, headers, status):
    answered, page = viewed.get("/run/rich", **headers)
    assert answered == status
    assert ("kelp" in page) == (status == 200)


def test_a_tag_needs_the_token_and_a_body_of_json(viewed):
    token = {"Authorization": f"Bearer {known_token(viewed.url)}"}
    path, body = "/run/wide/tags", {"add": "chosen", "remove": "baseline"}
    assert viewed.post(path, body)[0] == 401
    assert viewed.post(path, body, Authorization="Bearer wrong")[0] == 401
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert viewed.post(path, b"add=chosen", **form, **token)[0] == 415
    assert viewed.post(path, {"add": 3}, **token)[0] == 400
    assert viewed.post(path, body, Origin="http://evil.example", **token)[0] == 403
    assert "baseline" in viewed.get("/run/wide")[1]
    assert viewed.post(path, body, **token) == (200, '{"tags": ["chosen"]}')
    assert 'class="tag">chosen<' in viewed.get("/run/wide")[1]
    assert viewed.post(path, {"remove": "chosen", "add": "baseline"}, **token)[0] == 200


@pytest.mark.skipif(not postgres_server.is_available(), reason="needs a PostgreSQL server")
def test_a_journal_on_postgresql_shows_the_same_and_is_tagged(viewed):
    url = postgres_server.new_database(ready=False)
    try:
        assert main(["journal", "copy", str(viewed.journal), url, "wide", "trained"]) == 0
        with viewing(url) as server:
            for path in ("/run/wide/3/1", "/run/trained/0/0/token?step=0&at=1"):
                shown, expected = (main_of(each.get(path)[1]) for each in (server, viewed))
                assert shown == expected
            token = {"Authorization": f"Bearer {known_token(server.url)}"}
            assert server.post("/run/wide/tags", {"add": "kept"}, **token)[0] == 200
            assert "kept" in server.get("/")[1]
    finally:
        postgres_server.drop_database(url)


def test_a_search_does_not_end_before_the_run_is_read(viewed):
    class Unread(Digests):
        async def read(self, journal, run):
            return RunDigest()

    async def searched():
        source, app = ShownJournal(str(viewed.journal)), web.Application()
        app[CONTEXT] = Context(source, Unread(), Columns())
        path, run = "/run/wide/search?q=reply", {"run": "wide"}
        try:
            return await search_page(make_mocked_request("GET", path, match_info=run, app=app))
        finally:
            await source.close()

    page = asyncio.run(searched())
    assert 'id="next-part"' in page
    assert "last part" not in page


def main_of(page: str) -> str:
    return page.partition("<main")[2].partition("</main>")[0]


def test_a_journal_that_is_deleted_or_newer_is_said_and_a_new_one_is_shown(tmp_path, viewed):
    path = tmp_path / "copy.db"
    shutil.copy(viewed.journal, path)
    with viewing(path) as server:
        assert server.get("/run/wide")[0] == 200
        os.unlink(path)
        status, page = server.get("/run/wide")
        assert (status, "there is no journal at" in alert(page)) == (503, True)
        shutil.copy(viewed.journal, path)
        assert server.get("/run/wide")[0] == 200
        sql(path, "PRAGMA user_version=999")
        other = tmp_path / "other.db"
        shutil.move(path, other)
        shutil.copy(other, path)
        status, page = server.get("/run/wide")
        assert (status, "written by a newer Holdfast" in alert(page)) == (503, True)
