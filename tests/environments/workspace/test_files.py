"""The file tools: reading and writing within the workspace, and nowhere else."""

import asyncio
import os

import pytest

from holdfast.environments.workspace import Workspace, WorkspaceLimit
from holdfast.records.errors import ToolSaysNo, UsageError
from holdfast.rollout.tools.tool import as_tool
from support.environments.workspaces import both, opened


def use(*calls, files=None, **options):
    """Awaits the tools `(name, arguments)` one by one; the last answer."""

    async def run():
        async with opened(files, **options) as workspace:
            for name, arguments in calls:
                message = await getattr(workspace, name)(**arguments)
            return message

    return asyncio.run(run())


@both
def test_what_is_written_can_be_read_edited_and_run(sandbox):
    engine = use(
        ("write_file", {"path": "src/deep/run.py", "content": "print('one')\n"}),
        ("edit_file", {"path": "src/deep/run.py", "old": "one", "new": "zwölf"}),
        ("shell", {"command": "cd src/deep && python run.py && echo more >> run.py && ls -l"}),
        ("read_file", {"path": "/workspace/src/../src/./deep/run.py"}),
        sandbox=sandbox,
    )
    assert engine == "print('zwölf')\nmore\n"


@both
def test_what_a_command_wrote_can_be_replaced_and_keeps_its_mode(sandbox):
    engine = use(
        ("shell", {"command": "mkdir d; echo '#!/bin/sh' > d/x; chmod 750 d/x"}),
        ("write_file", {"path": "d/x", "content": "#!/bin/sh\necho ran"}),
        ("shell", {"command": "d/x; stat -c %a d/x"}),
        sandbox=sandbox,
    )
    assert engine == "ran\n750\n[exit code 0]"


def test_a_part_of_a_file_is_read_by_lines():
    files = {"f": "".join(f"line {number}\n" for number in range(1, 101))}
    assert use(("read_file", {"path": "f", "start": 99}), files=files) == "line 99\nline 100\n"
    part = {"path": "f", "start": 3, "lines": 2}
    assert use(("read_file", part), files=files) == "line 3\nline 4\n"
    assert use(("read_file", {"path": "f", "start": 500}), files=files) == ""
    with pytest.raises(ToolSaysNo, match="counted from 1"):
        use(("read_file", {"path": "f", "start": 0}), files=files)


def test_a_long_file_is_shown_in_part():
    engine = use(("read_file", {"path": "f"}), files={"f": "x" * 10_000}, output_limit=100)
    assert engine == f"{'x' * 50}\n[… 9.668 KiB left out …]\n{'x' * 50}"


def test_a_file_that_is_no_text_is_shown_but_not_edited():
    files = {"f": b"a\xffb"}
    assert use(("read_file", {"path": "f"}), files=files) == "a\ufffdb"
    with pytest.raises(ToolSaysNo, match="not UTF-8"):
        use(("edit_file", {"path": "f", "old": "a", "new": "b"}), files=files)


@pytest.mark.parametrize(("old", "times"), [("b", 0), ("a", 2), ("", 0)])
def test_an_edit_wants_exactly_one_place(old, times):
    with pytest.raises(ToolSaysNo, match=f"occurs {times} times"):
        use(("edit_file", {"path": "f", "old": old, "new": "c"}), files={"f": "a a"})


def test_files_are_listed_with_their_folders():
    files = {"b.py": "", "a/x": "", "a/y/z": ""}
    assert use(("list_files", {}), files=files) == "a/\na/x\na/y/\na/y/z\nb.py"
    assert use(("list_files", {"path": "a/y"}), files=files) == "a/y/z"
    assert use(("list_files", {"path": "b.py"}), files=files) == "b.py"
    assert use(("list_files", {})) == "[empty]"
    many = {f"f{number:04}": "" for number in range(1100)}
    assert use(("list_files", {}), files=many).endswith("f0999\n[… and 100 more]")
    with pytest.raises(ToolSaysNo, match="No such file"):
        use(("list_files", {"path": "c"}), files=files)


ESCAPES = [
    "/etc/passwd",
    "../../../../etc/passwd",
    "a/../../x",
    "link",
    "to_root/etc/passwd",
    "chain",
    "up/x",
    "/workspace/../etc/passwd",
    "/workspacex",
]


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize(
    ("tool", "more"),
    [
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("edit_file", {"old": "r", "new": "x"}),
        ("list_files", {}),
    ],
)
def test_there_is_no_way_out_of_the_workspace(path, tool, more, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("r")
    links = (
        f"mkdir a; ln -s {outside} link; ln -s / to_root; ln -s link chain; ln -s .. up; "
        "ln -s loop loop"
    )
    with pytest.raises(ToolSaysNo, match="outside of the workspace"):
        use(("shell", {"command": links}), (tool, {"path": path, **more}), sandbox="none")
    assert outside.read_text() == "r"


@both
def test_links_within_the_workspace_are_followed(sandbox):
    engine = use(
        ("shell", {"command": "mkdir d; ln -s d e; ln -s /workspace/d/f abs; ln -s e/f rel"}),
        ("write_file", {"path": "rel", "content": "through a link"}),
        ("read_file", {"path": "abs"}),
        ("shell", {"command": "cat d/f; test -L rel"}),
        sandbox=sandbox,
    )
    assert engine == "through a link\n[exit code 0]"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing", "No such file"),
        ("d", "folder|directory|not a file"),
        ("f/x", "Not a directory|No such file"),
        ("loop", "Too many levels"),
        ("pipe", "not a file|No such device"),
        ("a\0b", "no NUL"),
        ("x" * 300, "too long"),
        (".", "is a folder"),
        ("\ud800", "not a path"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(path, says):
    async def run():
        async with opened({"f": "", "d/x": ""}, sandbox="none") as workspace:
            os.symlink("loop", os.path.join(workspace.path, "loop"))
            os.mkfifo(os.path.join(workspace.path, "pipe"))
            for call in (
                workspace.read_file(path),
                workspace.edit_file(path, "a", "b"),
                *([workspace.write_file(path, "x")] if path != "missing" else []),
            ):
                with pytest.raises(ToolSaysNo, match=says):
                    await call

    asyncio.run(run())


def test_a_huge_file_is_for_commands_to_look_at():
    with pytest.raises(ToolSaysNo, match="has 17 MiB: look at parts of it"):
        use(("shell", {"command": "head -c 17M /dev/zero > f"}), ("read_file", {"path": "f"}))


def test_what_does_not_fit_is_not_written():
    limit = WorkspaceLimit(bytes=1000, files=3)

    async def run():
        async with opened({"f": "x" * 500}, workspace_limit=limit) as workspace:
            with pytest.raises(ToolSaysNo, match="1000 bytes in 3 files: g does not fit"):
                await workspace.write_file("g", "x" * 501)
            with pytest.raises(ToolSaysNo, match="does not fit"):
                await workspace.edit_file("f", "x" * 500, "x" * 1001)
            with pytest.raises(ToolSaysNo, match="does not fit"):
                await workspace.write_file("a/b/c", "")
            await workspace.write_file("f", "x" * 1000)
            await workspace.write_file("a/b", "")
            return await workspace.list_files()

    assert asyncio.run(run()) == "a/\na/b\nf"


def test_a_workspace_that_begins_beyond_its_limit_is_a_mistake():
    with pytest.raises(UsageError, match=r"begins with 2 KiB in 1 files; .* allows 1000 bytes"):
        use(files={"f": "x" * 2048}, workspace_limit=WorkspaceLimit(bytes=1000))
    with pytest.raises(UsageError, match="outside of the workspace"):
        use(files={"../f": "x"})


@both
def test_a_workspace_may_begin_with_a_copy_of_a_folder(tmp_path, sandbox):
    (tmp_path / "pkg" / "empty").mkdir(parents=True)
    (tmp_path / "pkg" / "run").write_text("#!/bin/sh\necho ran")
    (tmp_path / "pkg" / "run").chmod(0o755)
    (tmp_path / "link").symlink_to("pkg/run")
    command = {"command": "./link; ls -A pkg; echo x > pkg/run"}
    engine = use(("shell", command), files=tmp_path, sandbox=sandbox)
    assert engine == "ran\nempty\nrun\n[exit code 0]"
    assert "ran" in (tmp_path / "pkg" / "run").read_text()


def test_the_tools_are_those_that_were_asked_for():
    names = [as_tool(tool).name for tool in Workspace().tools]
    assert names == ["shell", "read_file", "write_file", "edit_file", "list_files"]
    (only,) = Workspace(tools=["shell"]).tools
    schema = as_tool(only).schema["function"]
    assert schema["parameters"]["required"] == ["command"]
    assert "shell command" in schema["description"]


def test_other_files_or_variables_make_another_environment(tmp_path):
    (tmp_path / "f").write_text("a")
    same = [Workspace({"f": "a"}).identity, Workspace({"f": b"a"}, interpreter=False).identity]
    others = [
        Workspace({"f": "b"}).identity,
        Workspace({"g": "a"}).identity,
        Workspace({"f": "a"}, env={"A": "1"}).identity,
        Workspace({"f": "a"}, network=True).identity,
        Workspace(tmp_path).identity,
    ]
    assert same[0] == same[1]
    assert len({*same, *others}) == 6
