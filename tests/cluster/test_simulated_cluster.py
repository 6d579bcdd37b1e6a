"""A run on a simulated cluster: several Ray nodes on this machine, and a PostgreSQL server.

`make cluster` runs these; they take minutes. Everything is killed with SIGKILL.
"""

import asyncio
import http.client
import json
import os
import random
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.embedded import EmbeddedEngine
from holdfast.journal import opened_journal
from holdfast.journal.sql.find_run import run_named
from holdfast.records.exit_codes import Exit
from holdfast.records.step import Finished, Generated, Scored
from holdfast.testing import FakeEngine
from support.cluster.command_line import ClusterCommandLine, ancestors, kill
from support.cluster.own_postgres import OwnPostgres
from support.cluster.simulated import SimulatedCluster
from support.exhaustive import points
from support.paths import EXAMPLES, TESTS
from support.processes import is_alive

pytestmark = [
    pytest.mark.skipif(os.environ.get("HOLDFAST_CLUSTER") != "1", reason="make cluster"),
    pytest.mark.timeout(1800),
]
KILLS = points(6, 20)
VICTIMS = ("worker", "scorer", "postgres", "node", "driver", "worker", "scorer")
GATEWAY_VICTIMS = ("gateway", "scorer", "postgres", "gateway", "driver", "node", "gateway")
"""In any order."""
TURNS_OF_AN_AGENT = 3
SUPPORT = TESTS / "support"


@pytest.fixture(scope="module")
def postgres():
    with OwnPostgres() as server:
        yield server


@pytest.fixture(scope="module")
def cluster():
    with SimulatedCluster(2, cpus=2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(delay=0.8) as fake:
        yield fake


@pytest.fixture
def shell(tmp_path, postgres, engine):
    return ClusterCommandLine(tmp_path, tasks=16, journal=postgres.url, engine=engine)


def undisturbed(shell: ClusterCommandLine) -> bytes:
    journal = str(shell.place / "plain.db")
    shell.finished(shell.start(*shell.arguments("plain", journal=journal)))
    return shell.export("plain", journal=journal)


def check_once(shell: ClusterCommandLine, run: str, *, generations: int = 5) -> None:
    """Each trajectory has one end, one score, and so many generations."""

    async def look() -> None:
        async with opened_journal(shell.journal) as journal:
            stored_run = await run_named(journal, run)
            progress = await journal.progress(stored_run)
            assert progress.is_over
            assert not progress.failed
            async for row, records in journal.histories(stored_run):
                assert row.settled, row
                assert sum(isinstance(record, Finished) for record in records) == 1, row
                assert sum(isinstance(record, Scored) for record in records) == 1, row
                sampled = sum(isinstance(record, Generated) for record in records)
                assert sampled == generations, row

    asyncio.run(look())


def test_a_worker_and_a_node_that_die_change_nothing(shell, cluster):
    expected = undisturbed(shell)
    spare = cluster.add(2)
    arguments = shell.arguments(
        "killed", "--cluster", cluster.address, "--workers", 3, "--concurrency", 4
    )
    command = shell.start(*arguments, "--score-workers", 1)
    victim = shell.until("rollout", 2)[0]
    begun = set(shell.noted("rollout"))
    assert kill(victim)
    killed = time.monotonic()
    held = set((shell.notes / f"rollout-{victim}").read_text().splitlines())
    seconds = again_after(shell, held, victim, since=killed)
    print(f"what a killed worker held ran again after {seconds:.1f} s; its lease has 8 s")
    cluster.kill(spare)
    _, err = shell.finished(command)
    assert "is gone" in err
    assert shell.export("killed") == expected
    check_once(shell, "killed")
    assert begun
    assert seconds < 8 + 2


def again_after(shell: ClusterCommandLine, held: set[str], victim: int, *, since: float) -> float:
    """Seconds until another process has begun with one of the trajectories."""
    while time.monotonic() - since < 60:
        for path in shell.notes.glob("rollout-*"):
            if path.name != f"rollout-{victim}" and held & set(path.read_text().splitlines()):
                return time.monotonic() - since
        time.sleep(0.05)
    raise AssertionError("nobody went on with what it held")


def test_kills_at_random_change_nothing(tmp_path, engine, cluster, postgres):
    shell = ClusterCommandLine(tmp_path, tasks=points(16, 40), journal=postgres.url, engine=engine)
    expected = undisturbed(shell)
    arguments = shell.arguments(
        "chaos", "--cluster", cluster.address, "--workers", 3, "--concurrency", 2
    )
    arguments += ["--score-workers", 2]
    strikes = Strikes(shell, "chaos", arguments, cluster, postgres)
    shell.until("rollout", 1)
    strikes.run(VICTIMS)
    shell.finished(strikes.command)
    assert shell.export("chaos") == expected
    check_once(shell, "chaos")


class Strikes:
    """A command on a cluster with one node more, and kills of what it consists of."""

    def __init__(
        self, shell: ClusterCommandLine, run: str, arguments: list[object], cluster, postgres
    ):
        seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(2**32)))
        print(f"HOLDFAST_SEED={seed}")
        self._chance = random.Random(seed)
        self._lab, self._words, self._cluster, self._postgres = shell, arguments, cluster, postgres
        self._pids = {
            "worker": lambda: shell.pids("rollout"),
            "scorer": lambda: shell.pids("score"),
            "gateway": lambda: shell.gateways(run),
        }
        self._node = cluster.add(2)
        self.command = shell.start(*arguments)
        self.done: list[str] = []

    def run(self, victims: tuple[str, ...]) -> None:
        """Until all are struck, or the run is over."""
        deck = [victims[number % len(victims)] for number in range(KILLS)]
        self._chance.shuffle(deck)
        for victim in deck:
            if not self._strike(victim):
                break
            self.done.append(victim)
            time.sleep(self._chance.uniform(0.5, 4.0))
        print(len(self.done), self.done)

    def _strike(self, victim: str) -> bool:
        if victim in self._pids:
            return self._kill_one(self._pids[victim])
        if self.command.poll() is not None:
            return False
        if victim == "node":
            self._cluster.kill(self._node)
            self._node = self._cluster.add(2)
        elif victim == "driver":
            kill(self.command.pid)
            self.command.communicate()
            self.command = self._lab.start(*self._words)
        else:
            self._postgres.restart()
        return True

    def _kill_one(self, pids: Callable[[], list[int]]) -> bool:
        """As soon as there is one."""
        while self.command.poll() is None:
            if (process_ids := pids()) and kill(self._chance.choice(process_ids)):
                return True
            time.sleep(0.05)
        return False


def test_one_gateway_on_each_node_with_a_token_of_its_own(shell, cluster):
    command = shell.start(
        "gateway", "--tasks", "tasks.jsonl", "--run", "agents", "--journal", shell.journal,
        "--policy", shell.engine.url, "--model", shell.engine.model, "--limit", 4, "--lease", 8,
        "--cluster", cluster.address, "--quiet",
    )  # fmt: skip
    (listed,) = until_written(shell, "gateways.json")
    gateways = until_listed(listed, 3)  # The tests before may have left a node more.
    assert len({gateway["token"] for gateway in gateways}) == len(gateways)
    assert listed.stat().st_mode & 0o077 == 0
    done = 0
    deadline = time.monotonic() + 120
    while done < 4 and time.monotonic() < deadline:
        for gateway in json.loads(listed.read_text()):
            done += one_trajectory(gateway) if done < 4 else 0
    assert done == 4
    shell.finished(command)


def test_gateways_that_are_killed_at_random_lose_nothing(shell, cluster, postgres):
    """Agents whose gateway dies give up, and others begin again: what was sampled is replayed."""
    arguments = [
        "gateway", "--tasks", "tasks.jsonl", "--run", "struck", "--journal", shell.journal,
        "--policy", shell.engine.url, "--model", shell.engine.model, "--lease", 8, "--seed", 7,
        "--rejoin", 1, "--silence", 60, "--cluster", cluster.address, "--quiet",
        "--samples", 4, "--scorer", "workload.py:score", "--score-workers", 2,
    ]  # fmt: skip
    strikes, over = Strikes(shell, "struck", arguments, cluster, postgres), threading.Event()
    (listed,) = until_written(shell, "gateways.json")
    until_listed(listed, 4)
    agents = [threading.Thread(target=take_all, args=(listed, over)) for _ in range(3)]
    for agent in agents:
        agent.start()
    try:
        strikes.run(GATEWAY_VICTIMS)
        shell.finished(strikes.command)
    finally:
        over.set()
        for agent in agents:
            agent.join()
    check_once(shell, "struck", generations=TURNS_OF_AN_AGENT)
    assert strikes.done


def take_all(listed: Path, over: threading.Event) -> None:
    """Until the run is over. What fails is another agent's to take."""
    while not over.is_set():
        for gateway in json.loads(listed.read_text()):
            try:
                if not one_trajectory(gateway):
                    over.wait(0.2)
            except (OSError, http.client.HTTPException):  # It was killed, or is not there yet.
                over.wait(0.2)


def until_written(shell: ClusterCommandLine, name: str):
    deadline = time.monotonic() + 120
    while not (files := list((shell.place / "logs").glob(f"*/{name}"))):
        assert time.monotonic() < deadline, shell.logs()
        time.sleep(0.1)
    return files


def until_listed(path, count: int) -> list[dict[str, str]]:
    deadline = time.monotonic() + 120
    while len(data := json.loads(path.read_text())) < count:
        assert time.monotonic() < deadline, data
        time.sleep(0.1)
    return data


def one_trajectory(gateway: dict[str, str]) -> int:
    """Takes one, asks its model once, and completes it; 0 when there is none."""
    try:
        taken = post(f"{gateway['url']}/trajectories", {"wait": 0.2}, gateway["token"])
    except urllib.error.HTTPError as error:
        if error.code not in (404, 410, 503):
            raise
        return 0
    if not taken:
        return 0
    base, key = taken["openai_base_url"], taken["key"]
    messages = [{"role": "user", "content": "hello"}]
    for turn in range(TURNS_OF_AN_AGENT):
        body = {"model": "any", "messages": messages, "max_tokens": 8}
        answer = post(f"{base}/chat/completions", body, key)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": f"and {turn}?"}]
    post(f"{taken['anthropic_base_url']}/complete", {}, key)
    return 1


def post(url: str, body: object, key: str) -> dict[str, Any]:
    request = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        return json.loads(answer.read() or b"{}")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--worker-gpus", 1], "--worker-gpus asks for 1 GPUs, and the cluster has 0"),
        (["--worker-cpus", 64], "no node of the cluster has room for a worker with 64 CPUs"),
        (["--off-gpu-nodes", "--worker-cpus", 3], "no node of the cluster has room"),
    ],
)
def test_more_than_there_is_is_refused(shell, cluster, more, line):
    arguments = shell.arguments("refused", "--cluster", cluster.address, "--workers", 1, *more)
    _, err = shell.finished(shell.start(*arguments), code=2)
    assert line in err


NODES = {
    "another Python": ("platform.python_version = lambda: '3.9.1'", "on Python 3.9.1"),
    "without an extra": ("sys.modules['psycopg'] = None", "lacks psycopg, which the run needs"),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_that_cannot_do_the_work_is_refused(shell, cluster, name):
    code, line = NODES[name]
    folder = shell.place / "node"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import platform, sys\n{code}\n")
    node = cluster.add(2, folder=str(folder))
    try:
        arguments = shell.arguments("refused", "--cluster", cluster.address, "--workers", 1)
        _, err = shell.finished(shell.start(*arguments), code=2)
    finally:
        cluster.kill(node)
    assert line in err


LACKING = """
import os
from pathlib import Path
import holdfast

async def rollout(t):
    import roman  # On the nodes alone.
    place = Path(os.environ["HOLDFAST_WORKLOAD_NOTES"]) / "roman"
    place.write_text(f"{roman.toRoman(7)} {roman.__file__}")
    t.add(*t.task.messages)
    await t.generate(max_tokens=4)
"""


def test_requirements_are_installed_for_this_command_alone(shell):
    """By pip, from where it is set up to look. One node: on one machine, those of a session would
    install into the same folder."""
    shell.code.joinpath("workload.py").write_text(LACKING)
    shell.place.joinpath("needs.txt").write_text("# for the rollout\nroman==5.0  # pinned\n")
    shell.place.joinpath("wrong.txt").write_text("holdfast-no-such-package==1.0\n")
    with SimulatedCluster(0, head_cpus=2) as node:
        arguments = ["--cluster", node.address, "--workers", 1, "--limit", 1]
        needs = [*arguments, "--requirements", shell.place / "needs.txt"]
        shell.finished(shell.start(*shell.arguments("installed", *needs)))
        numeral, where = (shell.notes / "roman").read_text().split()
        assert (numeral, "/runtime_resources/pip/" in where) == ("VII", True)
        out, _ = shell.finished(
            shell.start(*shell.arguments("lacking", *arguments)), code=Exit.NOTHING
        )
        assert "No module named 'roman'" in out
        wrong = [*arguments, "--requirements", shell.place / "wrong.txt"]
        _, err = shell.finished(shell.start(*shell.arguments("wrong", *wrong)), code=Exit.USAGE)
        assert "cannot install what --requirements names" in err
        assert "holdfast-no-such-package==1.0" in err


def test_workers_stay_off_the_nodes_with_gpus(shell, cluster):
    """Although there is most room on them."""
    node = cluster.add(8, 1)
    try:
        arguments = shell.arguments(
            "apart", "--cluster", cluster.address, "--workers", 3, "--off-gpu-nodes"
        )
        command = shell.start(*arguments)
        seen: dict[int, list[int]] = {}
        while command.poll() is None:
            seen |= {pid: result for pid in shell.pids("rollout") if (result := ancestors(pid))}
            time.sleep(0.2)
        shell.finished(command)
        check_once(shell, "apart")
        raylets = set(cluster.raylets.values())
        where = {raylet for results in seen.values() for raylet in raylets & set(results)}
        assert where, "no worker was seen under a node"
        assert cluster.raylets[node] not in where
    finally:
        cluster.kill(node)


def test_another_version_and_no_cluster_are_refused(shell, cluster):
    other = shell.code.parent / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(
        "import ray\nray.__version__ = ray._private.utils.ray.__version__ = '1.0.0'\n"
    )
    arguments = shell.arguments("refused", "--cluster", cluster.address)
    _, err = shell.finished(shell.start(*arguments, PYTHONPATH=str(other)), code=2)
    assert "runs other versions than this command" in err
    assert "1.0.0" in err
    _, err = shell.finished(
        shell.start(*shell.arguments("refused", "--cluster", "127.0.0.1:9")), code=2
    )
    assert "--cluster 127.0.0.1:9 names no cluster" in err


def test_a_gateways_name_that_nodes_cannot_resolve_is_refused(shell, cluster):
    command = shell.start(
        "gateway", "--tasks", "tasks.jsonl", "--run", "nameless", "--journal", shell.journal,
        "--policy", shell.engine.url, "--model", shell.engine.model, "--quiet",
        "--cluster", cluster.address, "--advertise", "no-such-host.invalid",
    )  # fmt: skip
    _, err = shell.finished(command, code=2)
    assert "cannot resolve no-such-host.invalid" in err


def test_code_that_is_another_on_a_node_is_refused(shell, cluster):
    """A module beside the folder that travels: here it is on the path, and on the node another."""
    for name in ("here", "there"):
        (shell.place / name).mkdir()
        (shell.place / name / "rubric.py").write_text(f"WHERE = {name!r}\n")
    (shell.code / "workload.py").write_text(
        f"import os, sys\n"
        f"sys.path.insert(0, {str(shell.place)!r} + ('/there' if 'HOLDFAST_NODE_ADDRESS' in "
        f"os.environ else '/here'))\n"
        "import rubric\n\n\nasync def rollout(t):\n    t.add(rubric.WHERE)\n    "
        "await t.generate(max_tokens=4)\n"
    )
    arguments = shell.arguments("changed", "--cluster", cluster.address, "--workers", 1)
    _, err = shell.finished(shell.start(*arguments), code=5)
    assert "the code of the rollout is not the same" in err


def test_a_signal_stops_the_workers_and_the_same_command_goes_on(shell, cluster):
    arguments = shell.arguments(
        "stopped", "--cluster", cluster.address, "--workers", 2, "--concurrency", 4
    )
    command = shell.start(*arguments)
    pids = shell.until("rollout", 1)
    command.terminate()
    _, err = shell.finished(command, code=143)
    assert "to go on: holdfast run" in err
    assert not any(is_alive(pid) for pid in pids)
    shell.finished(shell.start(*arguments))
    check_once(shell, "stopped")


@pytest.mark.skipif(find_spec("peft") is None, reason="the extra `train`")
def test_a_training_rolls_out_on_the_cluster(shell, cluster):
    """The trainer is here, on the tiny model; workers on the nodes sample from its engine."""
    shutil.copy(SUPPORT / "crash" / "short_rollout.py", shell.code / "short.py")
    rows = (EXAMPLES / "arithmetic.jsonl").read_text().splitlines()
    (shell.code / "sums.jsonl").write_text("\n".join(rows[:5]))
    tiny = Path(holdfast.__file__).parent / "embedded" / "tiny"
    with EmbeddedEngine(tiny, log=shell.place / "engine.log") as engine:
        command = shell.start(
            "train", "short.py", "--tasks", "sums.jsonl", "--run", "trained",
            "--out", shell.place / "out", "--journal", shell.journal, "--policy", engine.url,
            "--steps", 2, "--groups", 2,
            "--samples", 2, "--quiet", "--cluster", cluster.address, "--workers", 1, "--lease", 8,
            OMP_NUM_THREADS="1",
        )  # fmt: skip
        out, _ = shell.finished(command)
    assert "trained 2 steps" in out
    assert list((shell.place / "logs").glob("trained-*/worker-*.log"))
