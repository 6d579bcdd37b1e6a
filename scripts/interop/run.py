"""Compares Holdfast with eval-protocol itself, row by row, on eval-protocol's own examples.

    python scripts/interop/run.py .interop [NAME …]

Each example is run twice, by the same command, against the same stand-in engine: with nothing
changed but its imports, and as it is. Scores, metrics, statuses, finish reasons and messages of
each row have to be the same. A difference is listed in differences.py with its reason, or fails;
so does an evaluation that cannot be run or compared. Then eval-protocol's unit tests of what
Holdfast has under the same names are run. Exit status 1 if anything differs without a reason.
"""

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from differences import KNOWN, reason_for, why_not_compared
from rewrite import rewritten
from rows import Difference, differences, read_rows
from units import DIFFERENT, FILES, RESULTS, REWARDS

from examples import EXAMPLES, Example

HERE = Path(__file__).parent
SECONDS = 300
FINISHED = 100
PATIENCE = 60
KEYS = (
    *("OPENAI_API_KEY", "FIREWORKS_API_KEY", "LANGSMITH_API_KEY", "BRAINTRUST_API_KEY"),
    *("BRAINTRUST_PROJECT_ID", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "GEMINI_API_KEY"),
)
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
LAKE = {
    "id": "lake_0",
    "system_prompt": "You walk over a frozen lake. Use the tool lake_move.",
    "user_prompt_template": "This is the lake:\n{observation}\nWhere to?",
    "environment_context": {"game": "FrozenLake", "map_name": "4x4", "seed": 42},
}
DRAWING = {
    "messages": [{"role": "user", "content": "Write SVG code for a square."}],
    "input_metadata": {
        "row_id": "svg_0",
        "dataset_info": {
            "requirements": ["there is a square"],
            "total_requirements": 1,
            "original_prompt": "a square",
        },
    },
}


class Side(NamedTuple):
    """One of the two packages that run an example."""

    name: str
    is_ours: bool


OURS, THEIRS = Side("holdfast", True), Side("eval-protocol", False)


class Result(NamedTuple):
    """What came of one evaluation."""

    evaluation: str
    """`FILE::FUNCTION`."""
    failure: str = ""
    """Why it did not run, or could not be compared."""
    excuse: str = ""
    """Why that is no failure of ours."""
    rows: int = 0
    differences: tuple[Difference, ...] = ()

    @property
    def unexplained(self) -> list[Difference]:
        return [one for one in self.differences if not reason_for(one)]

    @property
    def is_wrong(self) -> bool:
        return bool(self.unexplained or (self.failure and not self.excuse))


def main(folder: Path, names: list[str]) -> int:
    chosen = [one for one in EXAMPLES if not names or any(name in one.file for name in names)]
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    results: list[Result] = []
    with stand_ins(folder) as places:
        for example in chosen:
            for result in compared(folder, example, places):
                results.append(result)
                report(result)
    status = summary(results)
    if names:
        return status
    stale = stale_entries(results)
    for entry in stale:
        print(f"differences.py lists what does not differ any more; take it out: {entry}")
    return mcp_tests() or unit_tests(folder) or status or int(bool(stale))


def stale_entries(results: list[Result]) -> list[str]:
    """Listed differences that no evaluation shows: they would hide the next one."""
    seen = [one for result in results for one in result.differences]
    return [
        f"{known.evaluation} {field}"
        for known in KNOWN
        for field in known.fields
        if not any(one.field == field and known.covers(one) for one in seen)
    ]


def compared(folder: Path, example: Example, places: dict[str, str]) -> list[Result]:
    ours = run_example(folder, example, places, OURS)
    names = {f"{example.file}::{name}": name for name in evaluations_of(ours.file)}
    theirs = None
    if not example.wrong and not all(map(why_not_compared, names)):
        theirs = run_example(folder, example, places, THEIRS)
    return [result_of(whole, name, example, ours, theirs) for whole, name in names.items()]


def result_of(
    evaluation: str, name: str, example: Example, ours: "Session", theirs: "Session | None"
) -> Result:
    if why := ours.why_not(name, may_fail=name in example.fails):
        return Result(evaluation, why, example.wrong)
    rows, its_rows = ours.rows.get(name, []), theirs.rows.get(name, []) if theirs else []
    if not its_rows:
        why = f"eval-protocol wrote no rows; see {theirs.log if theirs else 'differences.py'}"
        return Result(evaluation, why, why_not_compared(evaluation) or "", len(rows))
    found = tuple(differences(evaluation, rows, its_rows))
    return Result(evaluation, rows=len(rows), differences=found)


def report(result: Result) -> None:
    state = "FAILS" if result.is_wrong else "apart" if result.failure else "same"
    if result.differences and not result.is_wrong:
        state = "known"
    print(f"{state:5}  {result.evaluation}", flush=True)
    if result.failure:
        print(f"       {result.excuse or result.failure}", flush=True)
    for one in result.unexplained:
        print(f"       {one.field} of {one.row:.160}", flush=True)
        print(f"           here {one.ours!r:.600}", flush=True)
        print(f"           there {one.theirs!r:.600}", flush=True)


def summary(results: list[Result]) -> int:
    print("\n| example | evaluations | compared | rows | how it is run |\n|---|---|---|---|---|")
    for example in EXAMPLES:
        mine = [one for one in results if one.evaluation.startswith(f"{example.file}::")]
        if mine:
            count, rows = sum(not one.failure for one in mine), sum(one.rows for one in mine)
            print(f"| {example.file} | {len(mine)} | {count} | {rows} | {example.needs} |")
    known = {
        (result.evaluation, one.field): reason
        for result in results
        for one in result.differences
        if (reason := reason_for(one))
    }
    print("\n| evaluation | known difference | why |\n|---|---|---|")
    for (evaluation, field), reason in known.items():
        print(f"| {evaluation} | {field} | {reason} |")
    for result in results:
        if result.failure and result.excuse:
            print(f"| {result.evaluation} | not compared | {result.excuse} |")
    wrong = sum(result.is_wrong for result in results)
    count = sum(not result.failure for result in results)
    rows = sum(result.rows for result in results if not result.failure)
    print(
        f"\n{count} of {len(results)} evaluations compared, {rows} rows; {len(known)} fields "
        f"differ for a reason; {wrong} evaluations differ without one"
    )
    return 1 if wrong or not results else 0


# --- the files


def prepare(source: Path, work: Path, example: Example, side: Side) -> Path:
    """The example in a folder of its own, with what it looks for there. Returns its file."""
    own = work / side.name / example.file.removesuffix(".py").replace("/", ".")
    own.mkdir(parents=True)
    file = own / Path(example.file).name
    if not file.name.startswith("test_"):
        file = file.with_name(f"test_{file.name}")
    text = (source / example.file).read_text()
    file.write_text(rewritten(text) if side.is_ours else text)
    for name in example.beside:
        if (source / name).is_dir():
            shutil.copytree(source / name, own / name)
        else:
            target = own / ("data" if name.endswith(".jsonl") else ".")
            target.mkdir(exist_ok=True)
            shutil.copy(source / name, target)
    # Its own: that of this repository has nothing to do with it.
    (own / "pytest.ini").write_text(INI)
    _data(source, own)
    return file


def _data(source: Path, own: Path) -> None:
    """What the examples find in their repository, and the distribution leaves out."""
    data = own / "tests" / "pytest" / "data"
    data.mkdir(parents=True)
    (data / "frozen_lake_dataset.jsonl").write_text(json.dumps(LAKE) + "\n")
    (own / "svgbench_dataset.jsonl").write_text(json.dumps(DRAWING) + "\n")
    if (airline := own / "data" / "airline_dataset.jsonl").exists():
        shutil.copy(airline, data)
    # Below the current folder, and beside that of the test.
    for examples in (own / "examples", own.parent / "examples"):
        examples.mkdir(exist_ok=True)
        if not (examples / "tau2_mcp").exists():
            (examples / "tau2_mcp").symlink_to(source / "eval_protocol" / "mcp_servers" / "tau2")
    shutil.copy(HERE / "datasets_stand_in.py", own / "datasets.py")


# --- running one


class Session(NamedTuple):
    """One pytest session that ran an example."""

    file: Path
    log: Path
    status: int
    rows: dict[str, list[dict[str, Any]]]

    def why_not(self, name: str, *, may_fail: bool) -> str:
        """Why an evaluation did not run here: every row is judged, or meant to fail."""
        rows = self.rows.get(name)
        if not rows:
            return f"it did not come to its end (pytest's exit status {self.status}); {self.log}"
        failed = [row for row in rows if row["rollout_status"]["code"] != FINISHED]
        if failed and not may_fail:
            return f"{len(failed)} of {len(rows)} rows failed; see {self.log}"
        return ""


def environment(places: dict[str, str], home: Path) -> dict[str, str]:
    return {
        **dict.fromkeys(KEYS, "stand-in"),
        # eval-protocol starts its gyms as `python`, and keeps its log below HOME.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "LANGSMITH_TRACING": "false",
        "LANGFUSE_HOST": "https://cloud.langfuse.com",
        "HTTPS_PROXY": places["proxy"],
        "https_proxy": places["proxy"],
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "SSL_CERT_FILE": places["certificate"],
        "REQUESTS_CA_BUNDLE": places["certificate"],
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # Of LiteLLM's two transports, the one that asks through the proxy.
        "DISABLE_AIOHTTP_TRANSPORT": "True",
        "EP_DISABLE_AUTO_BROWSER": "1",
        "PYTHONPATH": f"{HERE / 'plugins'}:{HERE.parent.parent / 'src'}",
    }


def run_example(folder: Path, example: Example, places: dict[str, str], side: Side) -> Session:
    """By the same command for both, but for the engine's address: its flags mean the same, too."""
    file = prepare(folder / "source", folder / "work", example, side)
    words = [
        *(sys.executable, "-m", "pytest", file.name, "-q", "-p", "no:cacheprovider", "-rA"),
        *("-p", "unskipped", "--timeout", str(SECONDS)),
        *("--ep-output-dir", "rows", "--ep-no-upload"),
    ]
    if example.rows is not None:
        words += ["--ep-max-rows", str(example.rows)]
    if example.runs is not None:
        words += ["--ep-num-runs", str(example.runs)]
    words += ["--holdfast-policy", places["engine"]] if side.is_ours else ["-p", "patient"]
    log, env = file.parent / "log.txt", environment(places, file.parent)
    with remote_server(folder / "source", file, example, env) as more, log.open("w") as output:
        done = subprocess.run(
            words, cwd=file.parent, env=env | more, stdout=output, stderr=output, check=False
        )
    names = evaluations_of(file)
    assert len(names) == example.evaluations, f"{example.file} has {len(names)} evaluations"
    return Session(file, log, done.returncode, read_rows(file.parent / "rows"))


def evaluations_of(file: Path) -> list[str]:
    """The functions that are decorated with `evaluation_test`."""
    return [
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("evaluation_test" in ast.unparse(one)[:16] for one in node.decorator_list)
    ]


# --- unit tests


def mcp_tests() -> int:
    """Holdfast's own, with the version 1 of mcp that eval-protocol needs."""
    file = HERE.parent.parent / "tests" / "environments" / "mcp" / "test_versions.py"
    words = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, str(file)]
    env = {**unit_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(words, env=env, check=False).returncode


def unit_tests(folder: Path) -> int:
    own = folder / "work" / "units"
    own.mkdir()
    (own / "pytest.ini").write_text(INI)
    for name in (*FILES, *REWARDS):
        source = (folder / "source" / "tests" / name).read_text()
        # What its reward functions return is its own; what they are given is ours.
        (own / name).write_text(rewritten(source, but=RESULTS if name in REWARDS else ()))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += ["--timeout", str(SECONDS), "--junitxml", "junit.xml"]
    with (own / "log.txt").open("w") as output:
        subprocess.run(words, cwd=own, env=unit_environment(), stdout=output, check=False)
    failed = [case for case, passed in _tests(own).items() if not passed]
    reasons = {case: _reason(case) for case in failed}
    known = {case: why for case, why in reasons.items() if why is not None}
    unknown = [case for case in failed if case not in known]
    print("\n| unit test that differs | why |\n|---|---|")
    for case, why in known.items():
        print(f"| {case} | {why} |")
    for case in unknown:
        print(f"| **{case}** | **not known to differ**; see {own / 'log.txt'} |")
    total = len(_tests(own))
    print(f"\n{total - len(failed)} of {total} unit tests pass; {len(known)} differ on purpose")
    return 1 if unknown or not total else 0


def _reason(case: str) -> str | None:
    return next((why for one, why in DIFFERENT.items() if case.startswith(one)), None)


def unit_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(HERE.parent.parent / "src"),
    }


def _tests(folder: Path) -> dict[str, bool]:
    """Whether each test passed, by `module.Class::function`."""
    if not (folder / "junit.xml").exists():
        return {}
    cases = ElementTree.parse(folder / "junit.xml").iter("testcase")
    return {
        f"{case.attrib['classname']}::{case.attrib['name']}": not any(
            one.tag in ("failure", "error") for one in case
        )
        for case in cases
    }


# --- what runs beside it


@contextmanager
def stand_ins(folder: Path) -> Iterator[dict[str, str]]:
    ready = folder / "stand_ins.json"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, str(HERE / "stand_ins.py"), str(ready)])
    try:
        _wait_for(ready.exists, process)
        yield json.loads(ready.read_text())
    finally:
        process.kill()
        process.wait()


@contextmanager
def remote_server(
    source: Path, file: Path, example: Example, env: dict[str, str]
) -> Iterator[dict[str, str]]:
    """The remote server that an example brings along."""
    if "svg_agent" not in example.file:
        yield {}
        return
    port, gateway = free_port(), f"http://127.0.0.1:{free_port()}"
    script = source / "eval_protocol/quickstart/svg_agent/vercel_svg_server/api/init.py"
    run = f"import runpy; runpy.run_path({str(script)!r})['app'].run(port={port})"
    env = {**env, "FW_TRACING_GATEWAY_BASE_URL": gateway}
    with (file.parent / "server.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", run], env=env, cwd=file.parent, stdout=output, stderr=output
        )
    try:
        _wait_for(lambda: _listens(port), process)
        yield {
            "EP_REMOTE_ROLLOUT_PROCESSOR_BASE_URL": f"http://127.0.0.1:{port}",
            "EP_MODEL_BASE_URL": gateway,
        }
    finally:
        process.kill()
        process.wait()


def _wait_for(condition: object, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{process.args!r:.200} did not come up")
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
