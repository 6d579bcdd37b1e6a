"""Every command works on a URL as on a file, and the password of the URL is shown nowhere."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from holdfast.cli.commands.runs import list_runs
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.cli.shell import CommandLine, end, start
from support.fork_server import Popen
from support.gateway.gateway_process import REPLIES, TURNS, Agent, GatewayProcess, until, work
from support.journal import postgres_server as server

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")
PASSWORD = "s3cret-pass"
WRITTEN = (".json", ".xml", ".html")


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(mean_length=10) as engine:
        yield engine


@pytest.fixture(scope="module")
def url():
    """Of a database whose user needs a password."""
    url = server.new_database(ready=False)
    name = url.split("?")[0].rpartition("/")[2]
    server.run_sql(
        url,
        f"ALTER ROLE guarded PASSWORD '{PASSWORD}'",
        "ALTER SCHEMA holdfast OWNER TO guarded",
    )
    yield server.url_of(name, user="guarded", password=PASSWORD)
    server.run_sql("postgres", f"ALTER ROLE guarded PASSWORD '{server.GUARDED[1]}'")
    server.drop_database(url)


@pytest.fixture(scope="module")
def shell(engine, tmp_path_factory, url):
    shell = CommandLine(tmp_path_factory.mktemp("server"), engine)
    done = shell.finished_run("--samples", 2, journal=url)
    assert "4 trajectories: 2 COMPLETED, 2 TRUNCATED" in done.out
    assert PASSWORD not in done.out + done.err
    return shell


def test_what_is_exported_is_what_a_file_gives(shell, engine, url, tmp_path):
    on_file = CommandLine(tmp_path, engine)
    on_file.finished_run("--samples", 2)
    assert shell.export("samples", "--journal", url) == on_file.export("samples")


def test_the_journals_own_tasks_are_not_taken_for_those_of_user_code(engine, url, tmp_path):
    """The second command opens the run by reading alone: its first write is in the middle of it."""
    shell = CommandLine(tmp_path, engine)
    shell.tasks("bug", "sum")
    shell.finished_run("--max-retry", 0, journal=url, run="twice")
    done = shell.run("--retry-failed", journal=url, run="twice", env={"MENDED": "1"})
    assert "2 trajectories: 2 COMPLETED" in done.out, done.err
    assert "left behind" not in done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("runs",), "2 tasks"),
        (("runs", "--tag", "none"), "has no runs with tag 'none'"),
        (("show", "r"), "COMPLETED"),
        (("report", "r"), "4 trajectories"),
        (("report", "r", "--out", "report.html"), ""),
        (("compare", "r", "r"), "r"),
        (("journal", "ledger", "r"), "nobody has consumed"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands_that_read_take_a_url(shell, url, arguments, expected):
    done = shell.holdfast(*arguments, "--journal", url)
    assert done.code == 0, done.err
    assert expected in done.out
    assert PASSWORD not in done.out + done.err
    if "--out" in arguments:
        assert PASSWORD not in (shell.place / "report.html").read_text()


def test_a_listing_without_runs_has_no_password_even_of_a_url_that_holds_one(shell, url, capsys):
    args = Namespace(journal=url, tag="none", names=False, json=False, all=False)
    assert asyncio.run(list_runs.runs(args)) == 0
    printed = capsys.readouterr().out
    assert "has no runs with tag 'none'" in printed
    assert PASSWORD not in printed


def test_a_journal_is_checked_by_its_url(shell, url):
    done = shell.holdfast("journal", "check", url)
    assert done.code == 0, done.err
    assert "every checksum and invariant holds" in done.out
    assert PASSWORD not in done.out
    server.run_sql(
        url, "UPDATE holdfast.records SET crc = crc + 1 WHERE trajectory = 1 AND seq = 2"
    )
    done = shell.holdfast("journal", "check", url, "--json")
    assert "fails its checksum" in json.loads(done.out)["findings"][0]["what"]
    done = shell.holdfast("journal", "check", url, "--repair")
    assert done.code == 0, done.err
    assert "cut r/sum/0 at record 2" in done.out
    again = shell.finished_run("--samples", 2, journal=url)
    assert "4 trajectories: 2 COMPLETED, 2 TRUNCATED" in again.out


def test_a_run_is_shared_by_two_processes_and_a_third_is_refused(url, tmp_path):
    with FakeEngine(mean_length=10, delay=0.2) as slow:
        shell = CommandLine(tmp_path, slow)
        shell.tasks(*(f"t{number}" for number in range(12)))
        arguments = shell.arguments("--samples", 2, "--concurrency", 2, journal=url, run="shared")
        first = start(*arguments, cwd=shell.place)
        while not slow.stats().requests:
            time.sleep(0.05)
        refused = shell.holdfast(*arguments)
        assert refused.code != 0
        assert "add --join to share the work" in refused.err
        assert PASSWORD not in refused.err
        second = start(*arguments, "--join", cwd=shell.place)
        for done in (end(first), end(second)):
            assert done.code == 0, done.err
        workers = server.run_sql(url, "SELECT count(DISTINCT epoch) FROM holdfast.records")
        assert workers[0][0] >= 1
        rows = shell.export("samples", "--journal", url, run="shared").splitlines()
        assert len({(json.loads(row)["task"], json.loads(row)["sample"]) for row in rows}) == 24


def test_runs_are_copied_to_a_file_and_exported_the_same(shell, url, tmp_path):
    done = shell.holdfast("journal", "copy", url, tmp_path / "copy.db", "r")
    assert done.code == 0, done.err
    assert "4 trajectories" in done.out
    assert "both are the same" in done.out
    there = shell.export("samples", "--journal", url)
    assert shell.export("samples", "--journal", tmp_path / "copy.db") == there
    again = shell.holdfast("journal", "copy", url, tmp_path / "copy.db", "r")
    assert "exists already" in again.line
    assert PASSWORD not in again.err


# --- gateways

GATEWAY_TASKS = ("a", "b", "c", "d")


def test_two_workers_of_a_gateway_serve_agents_and_one_is_killed(url, tmp_path):
    """Its agent goes on with the key that it has; the samples are those of a run on a file."""
    with FakeEngine(replies=REPLIES) as engine:
        on_file = GatewayProcess(tmp_path / "file", engine, tasks=GATEWAY_TASKS)
        on_server = GatewayProcess(
            tmp_path / "server", engine, "--workers", 2, "--concurrency", 4, tasks=GATEWAY_TASKS
        )
        on_server.journal = url
        try:
            on_file.start()
            assert work(on_file, Agent(on_file)) == 0, on_file.output
            engine.reset()
            before = _kill_in_a_call(on_server)
        finally:
            on_file.close()
            on_server.close()
        assert on_server.samples() == on_file.samples()
        assert {row.status.name for row in on_server.trajectories()} == {"COMPLETED"}
        ids = [item for item, _ in engine.requests()]
        assert len(set(ids)) == len(GATEWAY_TASKS) * TURNS
        assert not [item for item in before if ids.count(item) > 1], (
            "sampled again although durable"
        )
    assert "was ended by SIGKILL; it is started again" in on_server.output
    assert PASSWORD not in on_server.output + on_server.log.read_text()


def _kill_in_a_call(gateway: GatewayProcess) -> set[str]:
    """What was durable then; all agents have finished, and so has the gateway."""
    gateway.engine.set_faults(Fault(FaultKind.HOLD, matching="/a/0/1."))
    gateway.start()
    agents = [Agent(gateway), Agent(gateway, stream=True), Agent(gateway)]
    for agent in agents:
        agent.start()
    until(lambda: gateway.engine.stats().held, what="a held call")
    others = len(GATEWAY_TASKS) - 1
    until(lambda: sum(row.settled for row in gateway.trajectories()) == others, what="all others")
    before = gateway.durable()
    os.kill(gateway.owner("a"), signal.SIGKILL)
    gateway.engine.set_faults()
    gateway.engine.release()
    assert work(gateway, *agents) == 0, gateway.output
    return before


# --- evaluations

EVALUATION = """
from holdfast.evaluation import evaluation_test

@evaluation_test(
    dataset=[{"id": f"row{n}", "prompt": f"Talk about {n}."} for n in range(4)],
    passed_threshold=0.0,
)
def test_talk(row):
    return len(row.last_assistant_message().content) / 1000
"""


def evaluate(place: Path, engine: FakeEngine, url: str) -> str:
    """What pytest prints of it."""
    arguments = ["-p", "holdfast.evaluation.plugin", "-p", "no:cacheprovider", "-q"]
    arguments += ["--holdfast-policy", engine.url, "--holdfast-journal", url]
    arguments += ["--holdfast-summary", "summary.json", "--holdfast-report", "pages"]
    process = Popen(
        [sys.executable, "-m", "pytest", *arguments, "--junitxml", "junit.xml", "test_talk.py"],
        cwd=place,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    out, _ = process.communicate(timeout=250)
    assert process.returncode == 0, out
    return str(out)


def _scores(place: Path) -> list[float]:
    (run,) = json.loads((place / "summary.json").read_text())["evaluations"][0]["runs"]
    return [run["agg_score"], *run["run_scores"]]


def test_an_evaluation_keeps_its_rows_on_a_server_and_its_password_to_itself(engine, url, tmp_path):
    (tmp_path / "test_talk.py").write_text(EVALUATION)
    before = engine.stats().requests
    first = evaluate(tmp_path, engine, url)
    assert engine.stats().requests == before + 4
    score = _scores(tmp_path)
    again = evaluate(tmp_path, engine, url)
    assert engine.stats().requests == before + 4, "its verdict is in the journal"
    assert "was finished already" in again
    assert _scores(tmp_path) == score
    written = [path.read_text() for path in tmp_path.rglob("*") if path.suffix in WRITTEN]
    assert len(written) == 3
    assert "postgresql://guarded@" in written[0] + written[1] + written[2]
    assert not [text for text in (first, again, *written) if PASSWORD in text]
    rows = CommandLine(tmp_path, engine).export("rows", "--journal", url, run="test_talk.test_talk")
    assert len(rows.splitlines()) == 4


def test_no_process_and_no_record_has_the_password(shell, url):
    """But the one that was started with it; what it starts has it not."""
    dump = server.run_sql(url, "SELECT spec FROM holdfast.runs")
    bodies = server.run_sql(url, "SELECT body FROM holdfast.records")
    assert not any(PASSWORD.encode() in bytes(row[0]) for row in dump + bodies)
    log = Path(server.run_sql("postgres", "SHOW data_directory")[0][0]).parent / "log"
    assert PASSWORD not in log.read_text().replace(f"ALTER ROLE guarded PASSWORD '{PASSWORD}'", "")
