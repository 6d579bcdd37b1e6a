"""Agents without a sandbox: what the driver has in its variables and its memory is not theirs."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import holdfast
from holdfast.environments.workspace.sandbox import processes as confinement
from holdfast.testing import FakeEngine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc to look into")
CANARY = "canaryQ7x9Zp42mNw"
OTHER = 1234
SPY = """
import json, os

def holding(name):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if b"CANARY" in file.read():
                    found.append(pid)
        except OSError:
            pass
    return found

def memory_of(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(int(next(line for line in maps if "[stack]" in line).split("-")[0], 16))
            return len(memory.read(64))
    except OSError:
        return 0

told = {"driver": os.getppid(), "environ": holding("environ"), "memory": memory_of(os.getppid())}
with open(os.environ["FOUND"], "w") as file:
    json.dump(told, file)
""".replace("CANARY", CANARY)
DRIVER = """
import sys
import holdfast
from holdfast.gateway.agents.workspace import FreshWorld

async def content(t, episodes):
    return 1.0

solve = holdfast.BlackBoxRolloutProcessor(
    [sys.executable, "SPY"], env={"FOUND": "FOLDER/found"}, finish=content, world=FreshWorld(WORLD)
)
"""


class User:
    """Somebody who runs `holdfast run`: from a shell that has the key in its variables, too."""

    def __init__(self, folder: Path, python: str, *before: str, **env: str):
        self.folder, self.python, self.before, self.env = folder, python, before, env

    def spied(self, world: str = "") -> dict:
        """What an agent found out."""
        script = DRIVER.replace("FOLDER", str(self.folder)).replace("WORLD", world)
        (self.folder / "driver.py").write_text(script.replace("SPY", str(self.folder / "spy.py")))
        (self.folder / "spy.py").write_text(SPY)
        (self.folder / "tasks.jsonl").write_text(json.dumps({"id": "a", "prompt": "go"}) + "\n")
        with FakeEngine() as engine:
            arguments = (
                *(self.python, "-m", "holdfast", "run", "driver.py", "--tasks", "tasks.jsonl"),
                *("--run", "r", "--policy", engine.url, "--model", engine.model, "--quiet"),
            )
            shell = ("/bin/sh", "-c", '"$@"; exit $?', "sh", *arguments)
            env = {"HOLDFAST_API_KEY": CANARY, "TMPDIR": str(self.folder), **self.env}
            done = subprocess.run(
                [*self.before, *shell], cwd=self.folder, env=env, capture_output=True, timeout=120
            )
        assert done.returncode == 0, done.stderr
        return json.loads((self.folder / "found").read_text())


def ours(tmp_path) -> User:
    return User(tmp_path, sys.executable, PATH=os.environ["PATH"])


@pytest.fixture
def somebody():
    """Another user, with the machine's own Python: the tests' may lie where others cannot look."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    path = f"{Path(holdfast.__file__).parent.parent}:{packages}"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    become = ("setpriv", "--reuid", str(OTHER), "--regid", str(OTHER), "--clear-groups", "--")
    probe = [*become, python, "-c", "import holdfast, msgspec, aiohttp"]
    if not os.path.exists(python) or subprocess.run(probe, env=env, capture_output=True).returncode:
        pytest.skip(f"{python} cannot import holdfast as another user")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-somebody-", dir="/tmp"))
    os.chown(folder, OTHER, OTHER)
    yield User(folder, python, *become, **env)
    shutil.rmtree(folder)


@pytest.mark.skipif(bool(confinement.confinement().trouble), reason="nothing confines here")
def test_an_agent_reads_neither_the_variables_nor_the_memory_of_its_driver(tmp_path):
    seen_by_agent = ours(tmp_path).spied()
    assert (seen_by_agent["environ"], seen_by_agent["memory"]) == ([], 0)


def test_an_agent_of_another_user_does_not_either(somebody):
    seen_by_agent = somebody.spied()
    assert (seen_by_agent["environ"], seen_by_agent["memory"]) == ([], 0)


def test_where_nothing_confines_an_agent_its_driver_is_closed_by_itself(somebody, tmp_path):
    tools = somebody.folder / "bin"
    tools.mkdir()
    (tools / "setpriv").symlink_to(shutil.which("setpriv"))
    somebody.before = (shutil.which("setpriv"), *somebody.before[1:])
    somebody.env["PATH"] = str(tools)
    seen_by_agent = somebody.spied()
    assert str(seen_by_agent["driver"]) not in seen_by_agent["environ"]
    assert seen_by_agent["memory"] == 0
    assert seen_by_agent["environ"], "the shell around it has them, and shows them"


def test_an_agent_that_is_not_to_be_confined_is_not(somebody):
    assert somebody.spied("confined=False")["environ"]


def test_what_confines_is_tried_out(monkeypatch):
    useless = confinement.Confinement(("/usr/bin/env",))
    assert confinement._tried(useless).trouble == "its programs are as powerful as it is itself"
    missing = confinement.Confinement(("/no/such/program",))
    assert "No such file" in confinement._tried(missing).trouble
