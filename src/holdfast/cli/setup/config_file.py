"""The configuration file, for options that are always the same.

It is `holdfast.toml`, or `[tool.holdfast]` in `pyproject.toml`. A key is the name of an option and
applies to every command that has the option. A table with the name of a command applies only to
that command, and takes precedence. The command line takes precedence over both. Unknown names are
refused.

The file is searched in the working folder and the folders above it, up to the project's root, which
has `.git` or `pyproject.toml`. Without a project, only the working folder is searched, so that no
file of another user is read.
"""

import argparse
import json
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.cli.options.parser import AppendAction, ExtendAction, Parser
from holdfast.cli.options.suggestions import meant
from holdfast.records.encoding.text_files import read_text_file
from holdfast.records.errors import UsageError

FILE = "holdfast.toml"
PROJECT = "pyproject.toml"
VARIABLE = "HOLDFAST_CONFIG"
_TYPED_EACH_TIME = frozenset(
    {
        "yes",
        "new",
        "accept_changes",
        "join",
        "retry_failed",
        "repair",
        "help",
        "help_all",
        "as_worker",
        "dry_run",
        "force",
    }
)
"""Options that a file cannot set, because they confirm a decision each time."""
PATHS = frozenset({"FILE", "PATH", "DIR", "SOURCE"})
"""The metavars of options that take a path."""
_POSITIONAL = frozenset({"rollout"})
"""Arguments without dashes that the file can also set."""
Table = Mapping[str, object]


class Config(Struct, frozen=True):
    """The settings of a file, as they are written. They are empty if there is no file."""

    path: Path | None = None
    everywhere: Table = {}
    commands: Mapping[str, Table] = {}

    def of(self, command: str) -> Table:
        return {**self.everywhere, **self.commands.get(command, {})}


def find_config(folder: Path) -> Config:
    """Returns the configuration. Raises `UsageError` for a file that cannot be read. The keys are
    not checked here."""
    named = os.environ.get(VARIABLE)
    if named == "":
        return Config()
    if named is not None:
        path = Path(named)
        if not path.exists():
            raise UsageError(f"there is no {path}, which {VARIABLE} names")
        return _config(path, _tool_table(path) if path.name == PROJECT else _read(path))
    for place in _folders(folder):
        if (path := place / FILE).is_file():
            return _config(path, _read(path))
        if (path := place / PROJECT).is_file() and (table := _tool_table(path)) is not None:
            return _config(path, table)
    return Config()


def _folders(folder: Path) -> list[Path]:
    """Returns the folders from this one up to the root of its project."""
    above = [folder, *folder.parents]
    roots = [
        number
        for number, place in enumerate(above)
        if (place / ".git").exists() or (place / PROJECT).is_file()
    ]
    return above[: roots[0] + 1] if roots else above[:1]


def _read(path: Path) -> dict[str, object]:
    import tomllib  # Imported late, because most folders have no such file.

    try:
        return tomllib.loads(read_text_file(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def _tool_table(path: Path) -> dict[str, object] | None:
    tools = _read(path).get("tool")
    table = tools.get("holdfast") if isinstance(tools, dict) else None
    return table if isinstance(table, dict) else None


def _config(path: Path, table: Table | None) -> Config:
    mapping = dict(table or {})
    # `journal` and `policy` are both options and commands. A table means the command.
    commands = {key: value for key, value in mapping.items() if _is_command(key, value)}
    everywhere = {key: value for key, value in mapping.items() if key not in commands}
    return Config(path, everywhere, commands)  # type: ignore[arg-type]


def _is_command(key: str, value: object) -> bool:
    return isinstance(value, dict) and key.replace("-", "_") not in (
        "extra_body",
        "chat_template_kwargs",
    )


class Invocation(Struct, frozen=True):
    """How this process was called. Commands need it to call other commands, or to print their own
    command line."""

    parser: Parser
    words: tuple[str, ...]
    config: Config
    main: Callable[[Sequence[str]], int]


# --- what it means for a command line


class ConfiguredOption(Struct, frozen=True):
    """One option of one command that the file sets."""

    key: str
    dest: str
    value: object


def prepare(parser: Parser, config: Config) -> None:
    """Refuses keys that no command has. Makes options that the file sets optional on the command
    line."""
    if config.path is None:
        return
    known = {key for command in parser.commands.values() for key in _options(command)}
    for key in config.everywhere:
        _check_key(key, known, config, of="any command")
    for name, table in config.commands.items():
        if name not in parser.commands:
            near = _near(name, parser.commands)
            raise UsageError(f"{config.path}: there is no command {name!r} for a table{near}")
        for key in table:
            _check_key(key, set(_options(parser.commands[name])), config, of=f"`holdfast {name}`")
    for name, command in parser.commands.items():
        for setting in settings_of(command, config, name):
            _relax(command, setting.dest)


def _check_key(key: str, known: "set[str]", config: Config, *, of: str) -> None:
    name = key.replace("-", "_")
    if name in _TYPED_EACH_TIME:
        raise UsageError(f"{config.path}: {key} is typed each time; take it out of the file")
    if name not in known:
        near = _near(name, {name.replace("_", "-"): name for name in known})
        raise UsageError(f"{config.path}: {key} is not an option of {of}{near}")


def _near(word: str, known: Mapping[str, object]) -> str:
    near = meant(f"--{word}", [f"--{name}" for name in known]) or meant(word, known)
    if near is None:
        return "; `holdfast COMMAND --help` lists them"
    return f"; did you mean {near.removeprefix('--')}?"


def _options(command: Parser) -> dict[str, argparse.Action]:
    """Returns a command's options by their keys (`max_tokens`), including those of its
    subcommands."""
    options = {
        _key(action): action
        for action in command.actions
        if action.option_strings or action.dest in _POSITIONAL
    }
    for inner in command.commands.values():
        options = _options(inner) | options
    return options


def _key(action: argparse.Action) -> str:
    """Returns the key of an option, with underscores instead of dashes: `max_tokens`."""
    typed = [option.removeprefix("--") for option in action.option_strings if option[:2] == "--"]
    return typed[0].replace("-", "_") if typed else action.dest


def _relax(command: Parser, dest: str) -> None:
    for parser in (command, *command.commands.values()):
        for action in parser.actions:
            if action.dest == dest:
                action.required = False
                if not action.option_strings:
                    action.nargs = "?"


def settings_of(command: Parser, config: Config, name: str) -> list[ConfiguredOption]:
    """Returns the settings of the file that are options of the command `name`."""
    options = _options(command)
    named = {key.replace("-", "_"): (key, value) for key, value in config.of(name).items()}
    return [
        ConfiguredOption(key, options[name].dest, _value(options[name], key, value, config))
        for name, (key, value) in named.items()
        if name in options
    ]


def _value(action: argparse.Action, key: str, value: object, config: Config) -> object:
    try:
        return _convert(action, value, config)
    except (ArgumentTypeError, TypeError, ValueError) as error:
        raise UsageError(f"{config.path}: {key} {error}") from None


def _convert(action: argparse.Action, value: object, config: Config) -> object:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ArgumentTypeError(f"is true or false, not {value!r}")
        return value
    if isinstance(action, AppendAction | ExtendAction):
        values = value if isinstance(value, list) else [value]
        converted = [_one(action, each, config) for each in values]
        if isinstance(action, ExtendAction):
            return [inner for each in converted for inner in each]  # type: ignore[attr-defined]
        return converted
    return _one(action, value, config)


def _one(action: argparse.Action, value: object, config: Config) -> object:
    """Reads one value of the file as if the user had typed its text."""
    if isinstance(value, bool | list) or not isinstance(value, str | int | float | dict):
        raise ArgumentTypeError(f"wants one text or number, not {value!r}")
    if str(action.metavar or "") in PATHS and not isinstance(value, str):
        raise ArgumentTypeError(f"wants a path, as text, not {value!r}")
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    if isinstance(value, str):
        text = _from_here(action, value, config)
    read = action.type if callable(action.type) else str
    converted: object = read(text)
    if action.choices is not None and converted not in action.choices:
        raise ArgumentTypeError(f"is one of {', '.join(map(str, action.choices))}, not {text!r}")
    return converted


def _from_here(action: argparse.Action, text: str, config: Config) -> str:
    """Makes a relative path in the file start at the file's folder."""
    metavar = str(action.metavar or "")
    is_code = (".py" in metavar or metavar == "SOURCE") and ".py" in text
    is_path = metavar in PATHS and ":" not in text.partition("/")[0]
    if config.path is None or not (is_code or is_path) or Path(text).is_absolute():
        return text
    return os.path.relpath(config.path.absolute().parent / text)


def fill(
    args: argparse.Namespace, parser: Parser, arguments: Sequence[str], config: Config
) -> None:
    """Sets the options that the file sets and the command line does not."""
    if config.path is None or args.command not in parser.commands:
        return
    typed = set(typed_options(parser, arguments))
    for setting in settings_of(parser.commands[args.command], config, args.command):
        if setting.dest in typed or not hasattr(args, setting.dest):
            continue
        if setting.dest not in _POSITIONAL or getattr(args, setting.dest) is None:
            setattr(args, setting.dest, setting.value)


def typed_options(parser: Parser, arguments: Sequence[str]) -> Iterator[str]:
    """Yields the options of a command line by their names in Python."""
    leaf = parser.leaf(arguments)
    names = {option: action.dest for action in leaf.actions for option in action.option_strings}
    for name, _ in leaf.split(arguments):
        if name:
            yield names[name]
