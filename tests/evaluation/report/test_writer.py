"""The report's file: whole, bounded, the same every time, and nothing in it but data."""

import asyncio
import gc
import json
import re
import tracemalloc
from html.parser import HTMLParser
from importlib.resources import files

import msgspec
import pytest

from holdfast.evaluation.report import writer
from holdfast.evaluation.report.writer import pieces_of, report_file, write_report
from holdfast.evaluation.stats.verdict import Threshold, verdict_of
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError
from holdfast.records.message import assistant, system, user
from holdfast.records.step import AttemptFailed, Finished, Refilled
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from support.evaluation.graded_runs import (
    RecordedTrajectory,
    failed,
    journal_at,
    read,
    results,
    retried,
    scored,
    with_tools,
    write,
)
from support.records import generated, spec, started

EVIL = "</script><script>alert('x')</script><!--<img src=x onerror=alert(1)>\u2028${1}`"


class Blocks(HTMLParser):
    """What a parser makes of the page: its elements, and the texts of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self.inside = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "script":
            self.inside = dict(attrs).get("id", "")
            self.scripts[self.inside] = ""

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside is not None:
            self.scripts[self.inside] += data

    def data(self, name):
        return json.loads(self.scripts[name])


def report(tmp_path, tasks, *, run=None, **options):
    """Writes the report of a run that is only in memory."""

    async def written():
        journal = MemoryJournal()
        samples = max(map(len, tasks.values()))
        made = await write(journal, run or spec(samples=samples), tasks)
        return await write_report(journal, made, tmp_path / "r.html", **options)

    lines = asyncio.run(written())
    return lines, (tmp_path / "r.html").read_text(encoding="utf-8")


def kinds(conversation):
    return "".join(item[0] for item in conversation[1])


# --- what is in it


def test_every_row_has_its_numbers_and_its_conversation(tmp_path):
    message, text = report(
        tmp_path, {"a": [with_tools(), failed()], "b": [retried(0.0), scored(1.0)]}
    )
    page = Blocks(text)
    assert (message.rows, message.shortened, message.left_out) == (4, 0, 0)
    index = page.data("index")
    assert [(row[0], row[1], row[2], row[3]) for row in index["rows"]] == [
        ("a", 0, "COMPLETED", 1.0), ("a", 1, "FAILED", None), ("b", 0, "COMPLETED", 0.0),
        ("b", 1, "COMPLETED", 1.0),
    ]  # fmt: skip
    assert [kinds(page.data(f"c{place}")) for place in range(4)] == [
        "matoevmas",
        "mf",
        "mafs",
        "mas",
    ]
    assert index["roots"][0]["root"] == "ConnectionError: port # refused"
    assert index["summary"]["agg_score"] == pytest.approx(2 / 3)


def test_a_conversation_has_its_parts_in_order(tmp_path):
    _, text = report(tmp_path, {"a": [with_tools()]})
    truth, items, tools = Blocks(text).data("c0")
    assert tools == []
    ask, first, tool, opened, stepped, value, more, last, score = items
    assert truth == "42"
    assert ask[:3] == ["m", "user", "do a"]
    assert first[1:5] == [
        "0",
        "Let me look.",
        "What is kelp?",
        [["look_up", '{"word": "kelp", "deep": true}']],
    ]
    assert tool[1:] == [
        "1",
        "look_up",
        '{"word": "kelp", "deep": true}',
        "Kelp is a large brown alga.",
        "",
        1.25,
        0.5,
    ]
    assert opened[:4] == ["o", "2", "7", "You are at sea."]
    assert stepped[:6] == ["e", "3", "dive", "You see a holdfast.", 2.5, "done"]
    assert value == ["v", "4", "clock", '{"at":3}']
    assert more[:3] == ["m", "user", "and now?"]
    assert last[2] == "Élan: an alga 🌊 with <b>roots</b>."
    assert score == [
        "s",
        1.0,
        [["depth", 12.0], ["style", 0.25]],
        [["", "It is right."], ["style", "a little long"]],
        "",
    ]


def test_a_score_that_is_declared_invalid_is_told_with_its_reasons(tmp_path):
    scored_row = scored(None, reasons={"judge": "did not answer"})
    scored_row.records[-1] = msgspec.structs.replace(
        scored_row.records[-1], details={"is_score_valid": False}
    )
    _, text = report(tmp_path, {"a": [scored_row]})
    assert Blocks(text).data("c0")[1][-1] == [
        "s", None, [], [["judge", "did not answer"]], '{"is_score_valid":false}',
    ]  # fmt: skip


def test_a_score_is_shown_without_a_verdict_of_ours_about_it(tmp_path):
    # Its scale is the scorer's: 0 may be the best or the worst.
    _, text = report(tmp_path, {"a": [scored(0.0)]}, run=spec("zero", samples=1))
    rules = re.findall(r"\.scored[^{]*\{[^}]*\}", text)
    assert rules
    assert not [rule for rule in rules if "--good" in rule or "--bad" in rule]


def test_messages_that_were_rendered_anew_are_shown_once(tmp_path):
    scored_row = scored(
        1.0,
        generated("0", added=(system("be brief"), "task:0")),
        generated(
            "1",
            base="0",
            prefix_break="edited",
            added=(system("be brief"), "task:0", "reply:0", user("go on")),
        ),
    )
    _, text = report(tmp_path, {"a": [scored_row]})
    items = Blocks(text).data("c0")[1]
    messages = [item[2] for item in items if item[0] == "m"]
    assert messages == ["be brief", "do a", "go on"]


def test_a_verdict_that_is_given_is_the_one_that_is_shown(tmp_path):
    tasks = {"a": [scored(1.0)], "b": [scored(0.0)]}
    verdict = verdict_of(results(tasks), threshold=Threshold(0.9))
    _, text = report(tmp_path, tasks, verdict=verdict)
    summary = Blocks(text).data("index")["summary"]
    assert (summary["passed"], summary["reason"]) == (False, verdict.reason)


def test_the_same_journal_gives_the_same_bytes(tmp_path):
    path = journal_at(tmp_path / "j.db", (spec(samples=2), {"a": [with_tools(), failed()]}))
    for name in ("one.html", "two.html"):
        read(
            path,
            "run",
            lambda journal, run, out=tmp_path / name: write_report(
                journal, run, out, decode=ByteRenderer().decode
            ),
        )
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


# --- tokens


def test_tokens_have_their_texts_and_logprobs_where_they_can_be_decoded(tmp_path):
    _, text = report(tmp_path, {"a": [with_tools()]}, decode=ByteRenderer().decode)
    pieces, logprobs = Blocks(text).data("t0")["5"]
    assert "".join(pieces) == "Élan: an alga 🌊"
    assert pieces[:3] == ["", "É", "l"]
    assert pieces[-4:] == ["", "", "", "🌊"]
    assert len(logprobs) == len(pieces) == 19
    assert logprobs[:3] == [-0.01, -0.02, -0.2]


def test_without_a_tokenizer_there_are_no_pieces_and_the_text_stays(tmp_path):
    _, text = report(tmp_path, {"a": [with_tools()]})
    page = Blocks(text)
    assert "t0" not in page.scripts
    assert page.data("index")["tokens"] == 0
    assert "Let me look." in page.scripts["c0"]


@pytest.mark.parametrize("text", ["", "plain", "Élan 🌊🌊!", "a\ufffdb", "👩‍👩‍👧"])
def test_pieces_are_the_text_token_by_token(text):
    pieces = pieces_of(list(text.encode()), ByteRenderer().decode)
    assert "".join(pieces) == text
    assert len(pieces) == len(text.encode())


def test_bytes_that_are_no_text_are_shown_as_such_and_never_lost():
    pieces = pieces_of([0x61, *[0xF0] * 20, 0x62], ByteRenderer().decode)
    assert len(pieces) == 22
    assert "".join(pieces).replace("\ufffd", "") == "ab"


def test_decoding_grows_with_the_tokens_and_not_with_their_square():
    looked = 0

    def decode(ids):
        nonlocal looked
        looked += len(ids)
        return bytes(ids).decode("utf-8", "replace")

    pieces_of([0x61] * 5_000, decode)
    assert looked < 5_000 * 8


# --- untrusted


def evil_run():
    broken = msgspec.structs.replace(
        failed().records[1].failure, message=EVIL, traceback=EVIL, type="E"
    )
    talk = scored(
        1.0,
        generated("0", added=(user(EVIL),), message=assistant(EVIL)),
        metrics={EVIL: 1.0},
        reasons={EVIL: EVIL},
    )
    tasks = {
        EVIL: [
            talk,
            RecordedTrajectory(
                [started(), AttemptFailed(broken, 1.0), Finished(Status.FAILED, EVIL, None, 2.0)],
                Status.FAILED,
            ),
        ]
    }
    return tasks, msgspec.structs.replace(spec(EVIL.replace("/", ""), samples=2), model=EVIL)


def test_nothing_from_outside_is_markup(tmp_path):
    tasks, run = evil_run()
    _, text = report(tmp_path, tasks, run=run)
    page = Blocks(text)
    assert set(page.scripts) == {"", "c0", "c1", "index"}
    assert "img" not in page.tags
    assert page.tags.count("script") == 4
    data = text[text.index('<script type="application/json"') : text.rindex("<script>")]
    assert data.count("<") == 2 * 3, "a block's own tags are the only ones"
    assert page.data("c0")[1][0][2] == EVIL
    assert page.data("index")["rows"][0][0] == EVIL


def test_a_run_may_be_called_like_a_part_of_the_page(tmp_path):
    _, text = report(tmp_path, {"a": [scored(1.0)]}, run=spec("{style}{policy}<b>", samples=1))
    assert "<title>{style}{policy}&lt;b&gt; · Holdfast</title>" in text


def test_the_page_allows_its_own_two_parts_and_no_request(tmp_path):
    _, text = report(tmp_path, {"a": [scored(1.0)]})
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_the_script_has_no_way_to_make_markup_of_text():
    script = "".join(
        (files("holdfast.evaluation.report") / name).read_text()
        for name in ("charts.js", "conversation.js", "script.js")
    )
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "fetch(",
        "XMLHttp",
        "import(",
    ):
        assert word not in script, word


# --- bounds


def long_talk(size):
    return scored(
        1.0, generated("0", added=(user("q" * size), user("short")), message=assistant("a" * size))
    )


def test_a_text_beyond_its_length_is_cut_in_its_middle_and_says_so(tmp_path):
    message, text = report(tmp_path, {"a": [long_talk(30_000)]})
    shown = Blocks(text).data("c0")[1][0][2]
    assert message.shortened == 1
    assert shown.startswith("qqq")
    assert "… 10,000 characters are left out …" in shown
    assert len(shown) < 20_100


def test_conversations_that_do_not_fit_are_cut_shorter_then_left_out_and_each_keeps_its_row(
    tmp_path,
):
    tasks = {f"t{place}": [long_talk(15_000)] for place in range(8)}
    message, text = report(tmp_path, tasks, limit=60_000)
    page = Blocks(text)
    assert (message.rows, message.shortened, message.left_out) == (8, 7, 0)
    assert len(page.data("c0")[1][0][2]) == 15_000
    assert len(page.data("c7")[1][0][2]) < 2_100
    reply, text = report(tmp_path, tasks, limit=100)
    assert (reply.rows, reply.left_out) == (8, 8)
    assert len(Blocks(text).data("index")["rows"]) == 8


def test_a_very_large_run_lists_failures_the_slowest_and_some_and_counts_all(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_ROWS", 20)
    monkeypatch.setattr(writer, "SOME_ROWS", 4)
    tasks = {f"t{n}": [scored(float(n % 2))] for n in range(40)}
    tasks["t7"], tasks["t33"] = [failed()], [failed()]
    written, text = report(tmp_path, tasks)
    assert (written.rows, written.unlisted) == (5, 35)
    page = Blocks(text)
    index = page.data("index")
    assert [row[0] for row in index["rows"]] == ["t0", "t7", "t10", "t20", "t30"]
    assert index["unlisted"] == 35
    assert index["summary"]["rows"] == 40
    assert index["summary"]["failed"] == 2
    assert page.data("c1") != page.data("c2"), "each listed row has its own conversation"


def test_the_ten_slowest_rows_are_named(tmp_path):
    _, text = report(tmp_path, {f"t{place}": [with_tools()] for place in range(12)})
    assert len(Blocks(text).data("index")["slowest"]) == 10


def test_tokens_never_push_a_conversation_out(tmp_path):
    tasks = {f"t{place}": [with_tools()] for place in range(4)}
    plain, _ = report(tmp_path, tasks, limit=9_000)
    message, text = report(tmp_path, tasks, limit=9_000, decode=ByteRenderer().decode)
    assert message.left_out == plain.left_out == 0
    assert 0 <= Blocks(text).data("index")["tokens"] <= 4


def test_memory_does_not_grow_with_the_conversations(tmp_path):
    def peak(rows):
        path = journal_at(
            tmp_path / f"{rows}.db",
            (spec(samples=1), {f"t{place}": [long_talk(15_000)] for place in range(rows)}),
        )
        gc.collect()
        tracemalloc.start()
        read(path, "run", lambda journal, run: write_report(journal, run, tmp_path / "r.html"))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    few, many = peak(5), peak(45)
    assert many - few < 40 * 15_000, "forty conversations of 30 KB take 1.2 MB"


# --- the file


def test_a_report_that_fails_leaves_the_old_file(tmp_path):
    class Breaks(MemoryJournal):
        async def history(self, trajectory):
            raise UsageError("no more")

    async def tried():
        journal = Breaks()
        run = await write(journal, spec(samples=1), {"a": [scored(1.0)]})
        await write_report(journal, run, tmp_path / "r.html")

    (tmp_path / "r.html").write_text("old")
    with pytest.raises(UsageError, match="no more"):
        asyncio.run(tried())
    assert (tmp_path / "r.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_runs_of_other_names_never_share_a_file(tmp_path):
    names = ["m.f[a]", "m.f[a b]", "m.f[a_b]", "..", "é", "x" * 190, "x" * 191]
    paths = [report_file(tmp_path, name) for name in names]
    assert len(set(paths)) == len(names)
    assert paths[0] == tmp_path / "m.f[a].html"
    assert all(path.parent == tmp_path and len(path.name) < 200 for path in paths)


def test_a_refilled_row_shows_its_last_life_and_all_its_failures(tmp_path):
    message = retried(1.0)
    message.records.insert(2, Refilled(1, "spent", 3.0))
    _, text = report(tmp_path, {"a": [message]})
    assert kinds(Blocks(text).data("c0")) == "mafs"


def test_an_empty_row_shows_its_task(tmp_path):
    _, text = report(tmp_path, {"a": [RecordedTrajectory([], Status.PENDING, settled=False)]})
    page = Blocks(text)
    assert kinds(page.data("c0")) == "m"
    assert page.data("index")["summary"]["agg_score"] is None


async def test_the_tools_of_a_task_are_there_with_their_schemas(tmp_path):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    journal = MemoryJournal()
    task = Task("a", (user("1+1?"),), tools=(tool,), ground_truth={"is": 2})
    run = await journal.create_run(spec(samples=1), [task])
    await write_report(journal, run, tmp_path / "r.html")
    blocks = Blocks((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert blocks.data("c0")[2] == [["add", '{"name":"add","parameters":{"type":"object"}}']]
    assert blocks.data("index")["rows"][0][-3:] == ["1+1?", '{"is":2}', ""]
