"""What is wrong is told as what it is, and where it is."""

import asyncio
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from holdfast.environments.mcp import McpServer
from holdfast.evaluation.data.dataset import Dataset
from holdfast.evaluation.eval_protocol.gym.processor import MCPGymRolloutProcessor
from holdfast.evaluation.rows.convert import row_from, task_of
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.records.errors import UsageError
from holdfast.records.message import Role
from support.engine.local_run import LocalRun
from support.evaluation.evaluation_project import EvaluationProject
from support.evaluation.gym_runs import yard_of

FUNCTIONS = [
    {"role": "user", "content": "How warm is it?"},
    {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "look", "arguments": '{"at": "wall"}'},
    },
    {"role": "function", "name": "look", "content": "21 degrees"},
    {"role": "user", "content": "And now?"},
]


def test_rows_of_another_file_go_through_the_evaluations_own_adapter(
    project: EvaluationProject,
) -> None:
    lines = [json.dumps({"question": f"{n}?", "answer": n, "id": n}) for n in range(3)]
    (project.folder / "other.jsonl").write_text("\n".join(lines))
    project.write(
        """
        def adapter(records):
            return [{"prompt": one["question"], "ground_truth": one["answer"]} for one in records]

        @evaluation_test(dataset="own.jsonl", dataset_adapter=adapter, max_dataset_rows=2)
        def test_it(row):
            return float(row.ground_truth)
        """
    )
    project.run("--ep-jsonl-path", "other.jsonl").assert_outcomes(passed=1)
    assert (project.only()["rows"], project.only()["agg_score"]) == (2, 0.5)


def test_a_test_stands_where_it_is_written(project: EvaluationProject) -> None:
    file = project.write(
        """
        @pytest.mark.skip(reason="only looked at")
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return 1.0
        """
    )
    line = file.read_text().splitlines().index("def test_it(row):") + 1
    result = project.run("-rs")
    result.assert_outcomes(skipped=1)
    outlines = next(outline for outline in result.outlines if outline.startswith("SKIPPED"))
    where, _, _ = outlines.removeprefix("SKIPPED [1] ").partition(": ")
    name, _, number = where.partition(":")
    assert name == "test_it.py"
    assert line - 3 <= int(number) <= line


def test_a_provider_that_nobody_knows_is_told_by_its_name(project: EvaluationProject) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS, completion_params={"model": "acme/m-1"})
        def test_it(row):
            return 1.0
        """
    )
    result = project.run(policy=False)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no engine is named for model 'acme/m-1', and 'acme' is no*"])
    assert "torch" not in result.stdout.str()


# --- roles


def test_an_unknown_role_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    odd = {"messages": [{"role": "user", "content": "?"}, {"role": "narrator", "content": "…"}]}
    file.write_text(json.dumps({"prompt": "fine"}) + "\n" + json.dumps(odd))
    with pytest.raises(UsageError) as caught:
        asyncio.run(Dataset((file,)).rows())
    assert str(caught.value).startswith(
        f"{file}:2: messages[1]: role 'narrator' is none of system,"
    )


def test_functions_from_before_there_were_tools_are_tool_calls() -> None:
    row = EvaluationRow.model_validate({"messages": FUNCTIONS})
    task = task_of(row)
    _, called, answered, _ = task.messages
    assert [tool_call.name for tool_call in called.tool_calls] == ["look"]
    assert (answered.role, answered.tool_call_id) == (Role.TOOL, called.tool_calls[0].id)
    back = [message.model_dump(exclude_unset=True) for message in row_from(task).messages]
    assert back == FUNCTIONS, "the row is what it was"


def test_a_data_set_with_functions_is_rolled_out(project: EvaluationProject) -> None:
    (project.folder / "rows.jsonl").write_text(json.dumps({"messages": FUNCTIONS}))
    project.write(
        """
        @evaluation_test(dataset="rows.jsonl")
        def test_it(row):
            assert [one.role for one in row.messages] == [
                "user", "assistant", "function", "user", "assistant"
            ]
            assert row.messages[1].function_call.name == "look"
            return 1.0
        """
    )
    project.run().assert_outcomes(passed=1)


# --- MCP


def test_another_version_of_the_mcp_package_is_no_broken_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mcp  # noqa: F401  # It is there, but has other names.

    monkeypatch.setitem(sys.modules, "mcp.client", None)
    server = McpServer.http("http://127.0.0.1:9/mcp", recovery="replay")
    with pytest.raises(UsageError, match="of another version"):
        asyncio.run(server.tools())


def test_a_gym_that_cannot_be_run_is_tried_once(tmp_path: Path) -> None:
    script = tmp_path / "gym.py"
    script.write_text("from mcp import no_such_name_in_this_version\n")
    local: LocalRun = yard_of()
    local.run(MCPGymRolloutProcessor(script))
    (failure,) = local.history().failures
    assert failure.type == "UsageError"
    assert "no_such_name_in_this_version" in failure.message


class HostileEngine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()
        self.wfile.write("\x1b[2Jgone \x1b]0;owned\x07 \u202e\x9b31m".encode())

    def do_POST(self) -> None:
        self.do_GET()


def test_escape_sequences_of_an_engine_are_shown_and_not_obeyed(
    project: EvaluationProject,
) -> None:
    project.write(
        """
        @evaluation_test(dataset=ROWS)
        def test_it(row):
            return 1.0
        """
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), HostileEngine) as engine:
        Thread(target=engine.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{engine.server_port}"
        output = project.run("--holdfast-policy", url, policy=False).stdout.str()
        engine.shutdown()
    assert "\\x1b[2Jgone" in output
    assert not set("\x1b\x07\u202e\x9b") & set(output)
