"""`holdfast journal ledger` says how each group of a run ended."""

import asyncio
import json

import pytest

from holdfast.cli.main import main
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.exit_codes import Exit
from support.records import consuming, ready, settle


@pytest.fixture
def journal(tmp_path) -> str:
    """A run of six groups of which a trainer has trained, dismissed and taken some."""
    path = tmp_path / "journal.db"

    async def fill() -> None:
        journal = SqliteJournal(path)
        run, _, claims = await ready(journal, *"abcdef", samples=1)
        for claim in claims[:5]:
            await settle(journal, claim)
        trainer = await consuming(journal, run)
        await journal.publish_version(run, "base", step=0, digest="d")
        await journal.next_batch(trainer, 1, groups=2)
        await journal.commit(trainer, 1)
        await journal.next_batch(trainer, 2, groups=2)
        await journal.dismiss(trainer, ["c"], reason="uninformative")
        await journal.close()

    asyncio.run(fill())
    return str(path)


def test_it_names_each_group_with_its_end(journal, capsys):
    assert main(["journal", "ledger", "run", "--journal", journal]) == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        "trainer: 6 groups: 2 trained, 1 dismissed, 3 open",
        "  trained in step 1: a, b",
        "  dismissed, uninformative: c",
        "  open, ready: e",
        "  open, rolling out: f",
        "  open, taken: d",
        "1 weight version, the newest base (step 0)",
    ]


def test_as_json_it_has_every_entry(journal, capsys):
    arguments = [
        "journal",
        "ledger",
        "run",
        "--journal",
        journal,
        "--consumer",
        "trainer",
        "--json",
    ]
    assert main(arguments) == Exit.OK
    data = json.loads(capsys.readouterr().out)
    assert data["versions"] == [{"ordinal": 1, "name": "base", "step": 0, "digest": "d"}]
    assert data["consumers"]["trainer"][2] == {
        "task": "c",
        "ordinal": 2,
        "end": "dismissed",
        "step": 2,
        "reason": "uninformative",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other"], "there is no run 'other'"),
        (["run", "--consumer", "nobody"], "no consumer 'nobody'; it has: trainer"),
    ],
)
def test_a_name_that_is_not_there_is_told(journal, capsys, arguments, message):
    assert main(["journal", "ledger", *arguments, "--journal", journal]) == Exit.USAGE
    assert message in capsys.readouterr().err
