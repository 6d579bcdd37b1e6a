"""`holdfast completion`: prints a completion script for a shell, made from the parser's options.

The script contains commands, options and their values. It calls `holdfast runs` when it needs the
names of runs. It offers files wherever an option takes one.
"""

import argparse
import shlex
from collections.abc import Iterator

from msgspec import Struct

from holdfast.cli.options.parser import Parser
from holdfast.cli.setup.config_file import PATHS, Invocation
from holdfast.records.exit_codes import Exit

_RUNS = "holdfast runs --names"
"""The command that prints the names of runs, one per line. Its errors are not shown while the user
types a word."""


class _Word(Struct, frozen=True):
    """An option or an argument, with the values that may follow it."""

    names: tuple[str, ...]
    """The option's names. An argument without dashes has none."""
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_file: bool = False
    is_run: bool = False


def completion(args: argparse.Namespace) -> int:
    invocation: Invocation = args.invocation
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    print(scripts[args.shell](invocation.parser))
    return Exit.OK


def _words(parser: Parser) -> list[_Word]:
    choices = []
    for action in parser.actions:
        if action.help is argparse.SUPPRESS:
            continue
        metavar = str(action.metavar or "")
        choices.append(
            _Word(
                tuple(action.option_strings),
                _one_line(parser, action),
                action.nargs != 0,
                tuple(map(str, action.choices or ())),
                any(word in metavar for word in PATHS),
                metavar.startswith("RUN"),
            )
        )
    return choices


def _one_line(parser: Parser, action: argparse.Action) -> str:
    text = (action.help or "") % {"prog": parser.prog, "default": action.default}
    return " ".join(text.split())


def _leaves(parser: Parser) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Yields every command with its parser, including nested commands."""
    for name, command in parser.commands.items():
        yield (name,), command
        for path, inner in _leaves(command):
            yield (name, *path), inner


def _options(parser: Parser) -> list[str]:
    return [name for word in _words(parser) for name in word.names]


# --- bash


def _bash(parser: Parser) -> str:
    cases = [_bash_case("", parser)]
    cases += [_bash_case(" ".join(path), leaf) for path, leaf in _leaves(parser)]
    nested = "|".join(name for name, command in parser.commands.items() if command.commands)
    return _BASH.format(nested=nested, cases="\n".join(cases), runs=_RUNS)


def _bash_case(path: str, parser: Parser) -> str:
    choices = _words(parser)
    values = [
        f"      {'|'.join(word.names)}) {_bash_value(word)}; return ;;"
        for word in choices
        if word.names and word.takes_value
    ]
    offered = " ".join([*_options(parser), *parser.commands])
    arguments = [word for word in choices if not word.names]
    extra = "".join(f"\n    [[ $cur == -* ]] || {_bash_value(word)}" for word in arguments[:1])
    between = "\n".join(['    case "$prev" in', *values, "    esac"]) if values else "    :"
    return (
        f"  {shlex.quote(path)})\n{between}\n"
        f'    COMPREPLY=($(compgen -W {shlex.quote(offered)} -- "$cur")){extra}\n    ;;'
    )


def _bash_value(word: _Word) -> str:
    if word.choices:
        return f'COMPREPLY+=($(compgen -W {shlex.quote(" ".join(word.choices))} -- "$cur"))'
    if word.is_run:
        return "_holdfast_runs"
    if word.is_file or not word.names:
        return 'COMPREPLY+=($(compgen -f -- "$cur"))'
    return "COMPREPLY=()"


_BASH = """\
# Completion of holdfast for bash.
_holdfast_runs() {{
  local name
  while IFS= read -r name; do
    [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf '%q' "$name")")
  done < <({runs} 2>/dev/null)
}}
_holdfast() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" path="" word
  COMPREPLY=()
  if (( COMP_CWORD > 1 )); then
    path="${{COMP_WORDS[1]}}"
    case "$path" in
      {nested}) if (( COMP_CWORD > 2 )); then path="$path ${{COMP_WORDS[2]}}"; fi ;;
    esac
  fi
  case "$path" in
{cases}
  esac
}}
complete -o filenames -o bashdefault -F _holdfast holdfast"""


# --- zsh


def _zsh(parser: Parser) -> str:
    functions = [_zsh_function(("holdfast",), parser)]
    functions += [_zsh_function(("holdfast", *path), leaf) for path, leaf in _leaves(parser)]
    return _ZSH.format(functions="\n".join(functions), runs=_RUNS)


def _zsh_function(path: tuple[str, ...], parser: Parser) -> str:
    name = "_".join(("", *path))
    lines = [f"    {_zsh_word(word)}" for word in _words(parser)]
    if parser.commands:
        lines += ["    '1: :->command'", "    '*:: :->rest'"]
    body = " \\\n".join(["  _arguments -C", *lines])
    return f"{name}() {{\n  local state line\n{body}\n{_zsh_commands(name, parser)}}}"


def _zsh_commands(name: str, parser: Parser) -> str:
    if not parser.commands:
        return ""
    described = "\n".join(
        f"        {shlex.quote(f'{command}:{_zsh_text(parser.summaries[command])}')}"
        for command in parser.commands
    )
    return (
        "  case $state in\n    command)\n      local -a commands=(\n"
        f"{described}\n      )\n      _describe command commands ;;\n"
        f"    rest)\n      (( $+functions[{name}_$line[1]] )) && {name}_$line[1] ;;\n  esac\n"
    )


def _zsh_word(word: _Word) -> str:
    text = _zsh_text(word.help)
    if not word.names:
        return shlex.quote(f"*: :{_zsh_value(word)}")
    value = f":value:{_zsh_value(word)}" if word.takes_value else ""
    return " \\\n    ".join(shlex.quote(f"*{name}[{text}]{value}") for name in word.names)


def _zsh_value(word: _Word) -> str:
    if word.choices:
        return f"({' '.join(word.choices)})"
    if word.is_run:
        return "_holdfast_run_names"
    return "_files" if word.is_file or not word.names else " "


def _zsh_text(text: str) -> str:
    for character in "[]:":
        text = text.replace(character, f"\\{character}")
    return text


_ZSH = """\
#compdef holdfast
# Completion of holdfast for zsh.
_holdfast_run_names() {{
  local -a names
  names=("${{(@f)$({runs} 2>/dev/null)}}")
  compadd -a names
}}
{functions}
if [ "$funcstack[1]" = "_holdfast" ]; then _holdfast "$@"; else compdef _holdfast holdfast; fi"""


# --- fish


def _fish(parser: Parser) -> str:
    lines = ["# Completion of holdfast for fish.", "complete -c holdfast -f"]
    first = "__fish_use_subcommand"
    lines += [
        f"complete -c holdfast -n {first} -a {name} -d {shlex.quote(parser.summaries[name])}"
        for name in parser.commands
    ]
    lines += [_fish_line(word, first) for word in _words(parser) if word.names]
    for path, leaf in _leaves(parser):
        # Offered inside this command, until one of its subcommands is typed.
        seen = " ; and ".join(f"__fish_seen_subcommand_from {name}" for name in path)
        if leaf.commands:
            seen += f" ; and not __fish_seen_subcommand_from {' '.join(leaf.commands)}"
        lines += [
            f"complete -c holdfast -n {shlex.quote(seen)} -a {name} "
            f"-d {shlex.quote(leaf.summaries[name])}"
            for name in leaf.commands
        ]
        lines += [_fish_line(word, shlex.quote(seen)) for word in _words(leaf)]
    return "\n".join(lines)


def _fish_line(word: _Word, condition: str) -> str:
    line = f"complete -c holdfast -n {condition}"
    for name in word.names:
        line += f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
    if word.takes_value and word.names:
        line += " -r" if word.is_file else " -x"
    if word.choices:
        line += f" -a {shlex.quote(' '.join(word.choices))}"
    elif word.is_run:
        line += f" -a {shlex.quote(f'({_RUNS} 2>/dev/null)')}"
    elif word.is_file or not word.names:
        line += " -F"
    return f"{line} -d {shlex.quote(word.help)}"
