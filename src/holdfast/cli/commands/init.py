"""`holdfast init`: writes a small project of the chosen kind. It never overwrites a file."""

import argparse
import re
import shlex
from pathlib import Path

from holdfast.cli.options.projects import MODEL, PROJECTS
from holdfast.cli.terminal.text import print_json
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit

NEXT = "next"
"""The name of the part of a project that lists the next commands to run. It is not written to a
file."""


def init(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    files = read_project(args.kind)
    commands = files.pop(NEXT).splitlines()
    write_project(folder, files)
    if args.json:
        print_json({"folder": args.folder, "files": list(files), "next": commands})
        return Exit.OK
    print(f"{args.folder}: {', '.join(files)}\n{MODEL}\n")
    print("\n".join([f"  cd {shlex.quote(args.folder)}", *(f"  {line}" for line in commands)]))
    return Exit.OK


def read_project(kind: str) -> dict[str, str]:
    """Returns the texts of a project's files by their names."""
    text = (PROJECTS / f"{kind}.txt").read_text(encoding="utf-8")
    _, *parts = re.split(r"^=== (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def write_project(folder: Path, files: dict[str, str]) -> None:
    """Writes the files into the folder. Raises `UsageError`, before it writes anything, if one of
    the files exists."""
    if there := [name for name in files if (folder / name).exists()]:
        raise UsageError(f"{folder} has {', '.join(there)} already; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from error
