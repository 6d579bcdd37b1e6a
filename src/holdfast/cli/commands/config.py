"""`holdfast config`: shows which file sets options here, and which options it sets."""

import argparse

from holdfast.cli.options.parser import Parser
from holdfast.cli.setup.config_file import FILE, PROJECT, Invocation
from holdfast.cli.terminal.text import print_json, visible_name
from holdfast.records.encoding.redaction import redact
from holdfast.records.exit_codes import Exit


def config(args: argparse.Namespace) -> int:
    invocation: Invocation = args.invocation
    file, parser = invocation.config, invocation.parser
    if args.json:
        print_json(
            {
                "file": None if file.path is None else str(file.path),
                "everywhere": file.everywhere,
                "commands": file.commands,
            }
        )
        return Exit.OK
    if file.path is None:
        print(f"no configuration file here: neither {FILE} nor [tool.holdfast] in {PROJECT}")
        return Exit.OK
    print(f"{file.path} sets:")
    for key, value in file.everywhere.items():
        print(f"  {_setting(key, value)}  ({', '.join(_takers(parser, key))})")
    for name, table in file.commands.items():
        for key, value in table.items():
            print(f"  {_setting(key, value)}  ({name})")
    return Exit.OK


def _setting(key: str, value: object) -> str:
    return visible_name(redact(f"{key} = {value!r}"))


def _takers(parser: Parser, key: str) -> list[str]:
    dest = key.replace("-", "_")
    return [
        name
        for name, command in parser.commands.items()
        for leaf in (command, *command.commands.values())
        if any(action.dest == dest for action in leaf.actions)
    ]
