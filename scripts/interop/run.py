"""Runs eval-protocol's examples with nothing changed but their imports, and says which run.

    python scripts/interop/run.py .interop [NAME …]

An evaluation *runs* if every row was rolled out and judged by its function, or failed as the file's
own test of it wants; whether its score is high enough is the model's affair. Exit status 1 if fewer
run than `WANTED` of all.
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
from xml.etree import ElementTree

from rewrite import rewritten

from examples import EXAMPLES, Example

HERE = Path(__file__).parent
WANTED = 0.9
SECONDS = 300
PATIENCE = 60
KEYS = (
    *("OPENAI_API_KEY", "FIREWORKS_API_KEY", "LANGSMITH_API_KEY", "BRAINTRUST_API_KEY"),
    *("BRAINTRUST_PROJECT_ID", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "GEMINI_API_KEY"),
)
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


def main(folder: Path, names: list[str]) -> int:
    chosen = [one for one in EXAMPLES if not names or any(name in one.file for name in names)]
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    found: list[tuple[str, str, str]] = []
    with stand_ins(folder) as places:
        for example in chosen:
            prepared = prepare(folder / "source", work, example)
            with remote_server(folder / "source", prepared, example, places) as more:
                told = perform(prepared, example, {**environment(places), **more}, places)
            found += [(example.file, name, why) for name, why in told.items()]
            for name, why in told.items():
                print(f"{'runs' if not why else 'FAILS':5}  {example.file}::{name}", flush=True)
                if why:
                    print(f"       {example.wrong or why}", flush=True)
    return summary(found)


def summary(found: list[tuple[str, str, str]]) -> int:
    print("\n| example | evaluations | run | how it is run |\n|---|---|---|---|")
    for example in EXAMPLES:
        mine = [why for file, _, why in found if file == example.file]
        if mine:
            run = sum(not why for why in mine)
            print(f"| {example.file} | {len(mine)} | {run} | {example.needs} |")
    run = sum(not why for *_, why in found)
    files = {file for file, *_ in found}
    whole = len(files) - len({file for file, _, why in found if why})
    print(f"\n{run} of {len(found)} evaluations run; {whole} of {len(files)} files as a whole")
    return 0 if run >= WANTED * len(found) else 1


# --- the files


def prepare(source: Path, work: Path, example: Example) -> Path:
    """The example in a folder of its own, with what it looks for there. Returns its file."""
    own = work / example.file.removesuffix(".py").replace("/", ".")
    own.mkdir()
    file = own / Path(example.file).name
    if not file.name.startswith("test_"):
        file = file.with_name(f"test_{file.name}")
    file.write_text(rewritten((source / example.file).read_text()))
    for name in example.beside:
        if (source / name).is_dir():
            shutil.copytree(source / name, own / name)
        else:
            target = own / ("data" if name.endswith(".jsonl") else ".")
            target.mkdir(exist_ok=True)
            shutil.copy(source / name, target)
    # Its own: that of this repository has nothing to do with it.
    (own / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
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


def environment(places: dict[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **kept,
        **dict.fromkeys(KEYS, "stand-in"),
        "LANGSMITH_TRACING": "false",
        "LANGFUSE_HOST": "https://cloud.langfuse.com",
        "HTTPS_PROXY": places["proxy"],
        "https_proxy": places["proxy"],
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "SSL_CERT_FILE": places["certificate"],
        "REQUESTS_CA_BUNDLE": places["certificate"],
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "EP_DISABLE_AUTO_BROWSER": "1",
        "PYTHONPATH": str(HERE / "plugins"),
    }


def perform(
    file: Path, example: Example, env: dict[str, str], places: dict[str, str]
) -> dict[str, str]:
    """Each evaluation of the file, with "" where it ran, else why not."""
    words = [
        *(sys.executable, "-m", "pytest", file.name, "-q", "-p", "no:cacheprovider", "-rA"),
        *("-p", "unskipped", "--timeout", str(SECONDS), "--junitxml", "junit.xml"),
        *("--holdfast-policy", places["engine"], "--holdfast-summary", "summary.json"),
    ]
    if example.verified:
        words.append("--holdfast-no-fail-on-permanent-failure")
    if example.rows is not None:
        words += ["--holdfast-max-rows", str(example.rows)]
    log = file.parent / "log.txt"
    with log.open("w") as output:
        done = subprocess.run(
            words, cwd=file.parent, env=env, stdout=output, stderr=output, check=False
        )
    told = _outcomes(file.parent)
    tests = _tests(file.parent)
    names = _evaluations(file)
    assert len(names) == example.evaluations, f"{example.file} has {len(names)} evaluations"
    return {name: _why(name, example, told, tests, log, done.returncode) for name in names}


def _evaluations(file: Path) -> list[str]:
    """The functions that are decorated with `evaluation_test`."""
    return [
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("evaluation_test" in ast.unparse(one)[:16] for one in node.decorator_list)
    ]


def _outcomes(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The runs of each evaluation, by its function."""
    if not (folder / "summary.json").exists():
        return {}
    found: dict[str, list[dict[str, object]]] = {}
    for one in json.loads((folder / "summary.json").read_text())["evaluations"]:
        name = one["test"].partition("::")[2].partition("[")[0]
        found.setdefault(name, []).extend(one["runs"])
    return found


def _tests(folder: Path) -> dict[str, bool]:
    """Whether each test passed, by its function."""
    if not (folder / "junit.xml").exists():
        return {}
    cases = ElementTree.parse(folder / "junit.xml").iter("testcase")
    return {
        case.attrib["name"]: not any(one.tag in ("failure", "error", "skipped") for one in case)
        for case in cases
    }


def _why(
    name: str,
    example: Example,
    told: dict[str, list[dict[str, object]]],
    tests: dict[str, bool],
    log: Path,
    status: int,
) -> str:
    if companion := dict(example.verified).get(name):
        return "" if tests.get(companion) else f"{companion} does not pass; see {log}"
    runs = told.get(name)
    if not runs:
        return f"it did not come to its end (pytest's exit status {status}); see {log}"
    for run in runs:
        if run["failed"] or not run["rows"]:
            return f"{run['failed']} of {run['rows']} rows failed; see {log}"
    return ""


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
    source: Path, file: Path, example: Example, places: dict[str, str]
) -> Iterator[dict[str, str]]:
    """The remote server that an example brings along."""
    if "svg_agent" not in example.file:
        yield {}
        return
    port, gateway = free_port(), f"http://127.0.0.1:{free_port()}"
    script = source / "eval_protocol/quickstart/svg_agent/vercel_svg_server/api/init.py"
    run = f"import runpy; runpy.run_path({str(script)!r})['app'].run(port={port})"
    env = {**environment(places), "FW_TRACING_GATEWAY_BASE_URL": gateway}
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
