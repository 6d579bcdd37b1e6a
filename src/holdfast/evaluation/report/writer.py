"""Writes the report of a run. Reads the run once, with one trajectory in memory, and writes as it
reads.

- The file is complete or absent, because it gets its name only when all of it is on disk.
- The same journal gives the same bytes.
- Text from data sets, models and tools is data, never markup. It is JSON without a `<`, in blocks
  that no browser runs, and the page inserts it as text. The page's content security policy allows
  only the package's style and script (by their digests), and no request.
- The work is bounded. Numbers cover all trajectories, from stored summaries. For a very large run,
  the page lists only some rows: the rows that failures name, the slowest rows, and others at even
  distances.
- The size is bounded. Long texts are cut in the middle. If all conversations together are too
  large, later ones are cut shorter or left out. The page says what was cut, and names the command
  that prints everything.
"""

import base64
import hashlib
import html
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from holdfast.engine.export.atomic_file import whole_file
from holdfast.engine.export.export import history_of
from holdfast.engine.export.prices import Prices
from holdfast.evaluation.report.preview import Preview, preview_of, target_text
from holdfast.evaluation.report.timeline import Item, TextCutter, timeline
from holdfast.evaluation.stats.results import Collector, Results, RowResult
from holdfast.evaluation.stats.summary import Fields, score_text, slowest, summary_json
from holdfast.evaluation.stats.verdict import Verdict, verdict_of
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.encoding.file_name import file_name
from holdfast.records.encoding.tokens import count, unpack_ids, unpack_logprobs
from holdfast.records.errors import JournalCorrupt
from holdfast.records.failure import fold_traceback
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.view import TrajectoryView
from holdfast.training.report import ConsumerReport, open_collector

Decode = Callable[[Sequence[int]], str]
UNFINISHED = "\ufffd"
LONGEST_CHARACTER = 8
"""The largest number of tokens for one character. After this many, incomplete text is kept as it
is."""
MAX_BYTES = 64 << 20
"""The largest size of all conversations together."""
TEXT_LENGTHS = (20_000, 2_000, 200)
"""Limits on a text, in characters. The first limit with which a conversation fits is used."""
RESERVED_BYTES = 2_048
"""Bytes reserved for each later conversation."""
MAX_SLOWEST = 10
MAX_ROWS = 5_000
"""A run with more rows lists `SOME_ROWS` of them, whose conversations share `SOME_BYTES`."""
SOME_ROWS = 1_000
SOME_BYTES = 3 << 20
_PAGE = files("holdfast.evaluation.report")


class Written(Struct, frozen=True):
    """Describes the file that was written."""

    path: str
    rows: int
    """The number of rows that the file lists."""
    unlisted: int
    """The number of rows of the run that the file does not list."""
    shortened: int
    """The number of conversations with a shortened text."""
    left_out: int
    """The number of conversations that are not in the file."""


def report_file(folder: Path, run: str) -> Path:
    """Returns the path of a run's report in a folder of reports."""
    return folder / f"{file_name(run)}.html"


async def write_report(
    journal: Journal,
    run: Run,
    path: Path,
    *,
    verdict: Verdict | None = None,
    decode: Decode | None = None,
    num_runs: int = 1,
    source: str = "",
    limit: int = MAX_BYTES,
    prices: Prices | None = None,
) -> Written:
    """Writes the run to `path`.

    `decode`, from a renderer or a tokenizer, returns the text of token ids; without it, replies are
    plain text without colours. `source` is the journal's path as a user would type it.
    """
    with whole_file(path) as part, part.open("wb") as file:
        writer = _Writer(file, decode=decode, limit=limit)
        writer.begin(run)
        collector = Collector(run, num_runs=num_runs, source=source, prices=prices)
        results = await writer.rows(journal, run, collector)
        writer.end(results, verdict or verdict_of(results))
    listed = len(writer.listed)
    unlisted = len(results.rows) - listed
    return Written(str(path), listed, unlisted, writer.shortened, writer.left_out)


class _Writer:
    def __init__(self, file: BinaryIO, *, decode: Decode | None, limit: int):
        self._file = file
        self._decode = decode
        self._bytes_left = limit
        self._with_tokens = 0
        self._refills = 0
        self._previews: list[Preview] = []
        self._training: list[ConsumerReport] = []
        self.listed: list[int] = []
        """The indices of the listed rows among all rows."""
        self.shortened = 0
        self.left_out = 0

    def begin(self, run: Run) -> None:
        style = _read("style.css")
        policy = (
            f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(_script())}'; "
            "base-uri 'none'; form-action 'none'"
        )
        parts = {"policy": policy, "title": html.escape(run.spec.name), "style": style}
        # In one pass, because a run's name may contain `{style}`.
        page = re.sub(r"\{(policy|title|style)\}", lambda name: parts[name[1]], _read("page.html"))
        self._file.write(page.encode())

    async def rows(self, journal: Journal, run: Run, collector: Collector) -> Results:
        training = await open_collector(journal, run)
        rows: list[TrajectoryRow] = []
        async for row, summary in journal.summaries(run):
            if isinstance(summary, JournalCorrupt):
                raise JournalCorrupt(f"{row.key} is corrupt: {summary}") from summary
            if not row.resting:
                rows.append(row)
                collector.take(row, summary)
                training.take(row, summary)
                self._refills += summary.refills
        await collector.read_tracebacks(journal)
        self._training = training.reports()
        results = collector.results()
        self.listed = listed_rows(results)
        if len(self.listed) < len(rows):
            self._bytes_left = min(self._bytes_left, SOME_BYTES)
        await self._write_rows(journal, run, [rows[place] for place in self.listed])
        return results

    async def _write_rows(self, journal: Journal, run: Run, rows: Sequence[TrajectoryRow]) -> None:
        tasks = await journal.tasks(run)
        for position, row in enumerate(rows):
            history = await history_of(journal, row) if row.records else History()
            view = TrajectoryView(row.key, tasks[row.ordinal], history)
            self._previews.append(preview_of(view))
            tools = await _tools(journal, view)
            remaining = len(rows) - position - 1
            self._write_conversation(position, view, tools, remaining=remaining)

    def _write_conversation(
        self, position: int, view: TrajectoryView, tools: list[Item], *, remaining: int
    ) -> None:
        allowed = self._bytes_left - remaining * RESERVED_BYTES
        for length in TEXT_LENGTHS:
            cut = TextCutter(length)
            schemas = [[name, cut(str(schema))] for name, schema in tools]
            body = _json([cut(target_text(view)), timeline(view, cut), schemas])
            if len(body) <= allowed:
                self._write_block(f"c{position}", body)
                self.shortened += cut.cut
                self._write_tokens(position, view, allowed - len(body))
                return
        self.left_out += 1

    def _write_tokens(self, position: int, view: TrajectoryView, allowed: int) -> None:
        """Writes the pieces and logprobs of each reply, if they fit."""
        generations = [step for step in view.history.generations if step.ids]
        if self._decode is None or not generations:
            return
        # A token takes at least nine bytes, so replies that cannot fit are not decoded.
        if 9 * sum(count(step.ids) for step in generations) > allowed:
            return
        replies = {
            step.path: [
                pieces_of(unpack_ids(step.ids), self._decode),
                [round(logprob, 3) for logprob in unpack_logprobs(step.logprobs)],
            ]
            for step in generations
        }
        body = _json(replies)
        if len(body) <= allowed:
            self._write_block(f"t{position}", body)
            self._with_tokens += 1

    def _write_block(self, name: str, body: bytes) -> None:
        self._file.write(b'<script type="application/json" id="%s">' % name.encode())
        self._file.write(body)
        self._file.write(b"</script>\n")
        self._bytes_left -= len(body)

    def end(self, results: Results, verdict: Verdict) -> None:
        self._write_block("index", _json(self._index(results, verdict)))
        self._file.write(f"<script>{_script()}</script>\n</body>\n</html>\n".encode())

    def _index(self, results: Results, verdict: Verdict) -> Fields:
        created = int(results.created)
        metrics = results.metrics
        rows = [results.rows[place] for place in self.listed]
        return {
            "unlisted": len(results.rows) - len(rows),
            "summary": summary_json(results, verdict, timestamp=created),
            "score": score_text(verdict),
            "sampling": msgspec.to_builtins(results.sampling),
            "roots": [
                msgspec.structs.asdict(root) | {"traceback": fold_traceback(root.traceback)}
                for root in results.roots
            ],
            "slowest": [rows.index(row) for row in slowest(results.rows, MAX_SLOWEST)],
            "metrics": metrics,
            "tokens": self._with_tokens,
            "refills": self._refills,
            "training": msgspec.to_builtins(self._training),
            "rows": [
                [*_row(row, metrics), *msgspec.structs.astuple(preview)]
                for row, preview in zip(rows, self._previews, strict=True)
            ],
        }


def listed_rows(results: Results) -> list[int]:
    """Returns the indices of the rows that the file lists, in order."""
    rows = results.rows
    if len(rows) <= MAX_ROWS:
        return list(range(len(rows)))
    names = {root.example for root in results.roots} | {
        row.name for row in slowest(rows, MAX_SLOWEST)
    }
    named = {place for place, row in enumerate(rows) if row.name in names}
    return sorted(named | {place * len(rows) // SOME_ROWS for place in range(SOME_ROWS)})


def _row(row: RowResult, metrics: list[str]) -> Item:
    return [
        row.task,
        row.sample,
        row.status,
        row.score,
        row.turns,
        row.sampled_tokens,
        round(row.seconds, 3),
        int(row.disturbed),
        row.cause,
        row.reason,
        [row.metrics.get(name) for name in metrics],
        int(row.settled),
    ]


async def _tools(journal: Journal, view: TrajectoryView) -> list[Item]:
    """Returns the name and the schema of every tool that the model was shown in any call of the
    trajectory."""
    items: dict[str, Item] = {}
    digests = dict.fromkeys(call.tools for call in view.history.calls.values() if call.tools)
    sets = [await _tool_set(journal, digest) for digest in digests]
    for tool in (tool for tools in (view.tools, *sets) for tool in tools):
        function = tool.get("function")
        described = function if isinstance(function, dict) else tool
        name = str(described.get("name", "?"))
        items.setdefault(name, [name, msgspec.json.encode(described).decode()])
    return list(items.values())


async def _tool_set(journal: Journal, digest: bytes) -> list[dict[str, object]]:
    try:
        tools = msgspec.json.decode(await journal.get_blob(digest))
    except (JournalCorrupt, msgspec.MsgspecError):
        # The page shows the conversation without them. `journal check` names the missing blob.
        return []
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def _json(value: object) -> bytes:
    """Encodes a value as JSON without `<`, so that no text in it can end its block in the page or
    begin another one."""
    return msgspec.json.encode(value).replace(b"<", b"\\u003c")


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


def _script() -> str:
    names = ("charts", "markdown", "conversation", "script")
    return "\n" + "".join(_read(f"{name}.js") for name in names)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# --- the text of each sampled token, by decoding alone


def pieces_of(ids: Sequence[int], decode: Decode) -> list[str]:
    """Returns one text per token. Together they are `decode(ids)`, if that text is complete.

    Each token is decoded with the tokens just before it, because a tokenizer may decode a token
    differently at the beginning of a text. The cost is linear in the number of tokens.
    """
    pieces: list[str] = []
    start = done = 0  # The first `done` tokens have pieces. Decoding begins at `start`.
    for end in range(1, len(ids) + 1):
        before, now = decode(ids[start:done]), decode(ids[start:end])
        is_held = now.endswith(UNFINISHED) and end - done < LONGEST_CHARACTER
        if is_held and end < len(ids):
            pieces.append("")
            continue
        pieces.append(now[len(before) :])
        start, done = done, end
    return pieces
