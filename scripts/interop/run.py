"""Runs eval-protocol's examples with nothing changed but their imports, and says which run.

    python scripts/interop/run.py .interop [NAME …]

An evaluation *runs* if every row was rolled out and judged by its function (or failed where it is
meant to); whether its score is high enough is the model's affair. Then eval-protocol's unit tests
of what Holdfast has under the same names are run. Exit status 1 if fewer evaluations run than
`WANTED` of all, or a unit test fails that is not known to differ.
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
from units import DIFFERENT, FILES, RESULTS, REWARDS

from examples import EXAMPLES, Example

HERE = Path(__file__).parent
WANTED = 0.9
SECONDS = 300
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
    status = summary(found)
    return status if names else mcp_tests() or unit_tests(folder) or status


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
        "PYTHONPATH": f"{HERE / 'plugins'}:{HERE.parent.parent / 'src'}",
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
    if example.rows is not None:
        words += ["--holdfast-max-rows", str(example.rows)]
    log = file.parent / "log.txt"
    with log.open("w") as output:
        done = subprocess.run(
            words, cwd=file.parent, env=env, stdout=output, stderr=output, check=False
        )
    told = _outcomes(file.parent)
    names = _evaluations(file)
    assert len(names) == example.evaluations, f"{example.file} has {len(names)} evaluations"
    return {name: _why(name, example, told.get(name), log, done.returncode) for name in names}


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


def _why(
    name: str,
    example: Example,
    runs: list[dict[str, object]] | None,
    log: Path,
    status: int,
) -> str:
    if not runs:
        return f"it did not come to its end (pytest's exit status {status}); see {log}"
    for run in runs:
        if (run["failed"] and name not in example.fails) or not run["rows"]:
            return f"{run['failed']} of {run['rows']} rows failed; see {log}"
    return ""


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
