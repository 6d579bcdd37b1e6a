"""Parses the command line. A mistake is reported in one helpful line."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.cli.options.suggestions import meant
from holdfast.cli.terminal.text import one_line
from holdfast.records.encoding.redaction import redact
from holdfast.records.exit_codes import Exit

_OR = {Exit.FAILURES: "\n       or, of `policy check`: the endpoint is not fit for training"}
EXIT_CODES = "exit codes:\n" + "\n".join(
    f"  {code.value:>3}  {code.meaning}{_OR.get(code, '')}" for code in Exit
)
PROGRAM = "holdfast"
_INVALID = re.compile(r"argument (?P<name>.+?): invalid choice: '(?P<word>.*)' \(choose from ")
"""Argparse's message about a value that is not among the choices."""

# argparse has no public names for these classes.
_Commands = argparse._SubParsersAction  # noqa: SLF001
AppendAction = argparse._AppendAction  # noqa: SLF001
ExtendAction = argparse._ExtendAction  # noqa: SLF001


class ShowVersion(argparse.Action):
    """The option `--version`. It looks the version up only when the user asks for it, because that
    takes longer than all imports here."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option: Any = None
    ) -> NoReturn:
        from holdfast.version import installed_version

        print(f"holdfast {installed_version()}")
        parser.exit(0)


class ShowAll(argparse.Action):
    """The option `--help-all`, which shows every option, grouped by purpose."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option: Any = None
    ) -> NoReturn:
        print(argparse.ArgumentParser.format_help(parser), end="")
        parser.exit(0)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Formats help with room for longer names. At 100 columns, each option has one line of text."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30)


class Parser(argparse.ArgumentParser):
    """A parser that reports each mistake in one line and accepts no abbreviated options.

    `--help` shows the options in `common`. If `common` is empty, it shows the options outside of
    groups with a title. `--help-all` shows all options, and exists only if there is a group with a
    title.
    """

    common: tuple[str, ...] = ()

    def __init__(self, **options: Any):
        self._typed: list[str] = []
        self._first = ""
        super().__init__(
            allow_abbrev=False,
            # Commands point to the program's help, which lists them once.
            epilog=EXIT_CODES
            if options.get("prog") == PROGRAM
            else f"exit codes: {PROGRAM} --help",
            formatter_class=_Help,
            **options,
        )

    def add_argument_group(self, *titles: Any, **options: Any) -> Any:
        is_ready = hasattr(self, "_optionals")  # argparse first adds its own groups.
        if is_ready and "--help-all" not in self._option_string_actions:
            self.add_argument("--help-all", action=ShowAll, nargs=0, help="show every option")
        return super().add_argument_group(*titles, **options)

    def format_help(self) -> str:
        titled = self._action_groups[2:]
        if not titled:
            return super().format_help()
        names = [f"--{name}" for name in ("help", *self.common, "help-all")]
        untitled = self._optionals._group_actions  # noqa: SLF001
        shown = [self._option_string_actions[name] for name in names] if self.common else untitled
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, actions in (
            ("positional arguments", self._positionals._group_actions),  # noqa: SLF001
            ("options", shown),
        ):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self._more(shown, titled))
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _more(self, shown: Sequence[argparse.Action], groups: Sequence[Any]) -> str:
        """Returns the text about the options that `--help` leaves out."""
        options = [action for action in self.actions if action.option_strings]
        visible = [action for action in options if action.help is not argparse.SUPPRESS]
        titles = "\n".join(f"  {group.title}" for group in groups)
        left = len(visible) - len(shown)
        return f"{left} more options, shown by `{self.prog} --help-all`:\n{titles}"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments, and rejects unknown ones itself, because the parser that called
        this one would suggest options of its own."""
        self._typed = list(sys.argv[1:] if args is None else args)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    @property
    def actions(self) -> "Sequence[argparse.Action]":
        """Returns all options and arguments except commands, in the order of `--help`."""
        return tuple(action for action in self._actions if not isinstance(action, _Commands))

    @property
    def summaries(self) -> "dict[str, str]":
        """Returns the summaries of the parser's commands, as `--help` shows them."""
        return {
            choice.dest: " ".join((choice.help or "").split())
            for action in self._actions
            if isinstance(action, _Commands)
            for choice in action._choices_actions  # noqa: SLF001
        }

    @property
    def commands(self) -> "dict[str, Parser]":
        """Returns the parser's commands, each with its parser."""
        return {
            name: parser
            for action in self._actions
            if isinstance(action, _Commands)
            for name, parser in action.choices.items()
        }

    def leaf(self, arguments: Sequence[str]) -> "Parser":
        """Returns the parser of the command that these words name."""
        parser = self
        for word in arguments:
            if word not in parser.commands:
                break
            parser = parser.commands[word]
        return parser

    def knows(self, option: str) -> bool:
        """Returns whether this command has the option; "" stands for its arguments."""
        return not option or option in self._option_string_actions

    def split(self, arguments: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Splits the words of a command into options with their values. An argument that is not an
        option has the name ""."""
        options: list[tuple[str, tuple[str, ...]]] = []
        left = list(arguments)
        while left:
            word = left.pop(0)
            name, equals, _ = word.partition("=")
            action = self._option_string_actions.get(name)
            if action is None:
                options.append(("", (word,)))
            elif equals or action.nargs == 0 or not left:
                options.append((name, (word,)))
            else:
                options.append((name, (word, left.pop(0))))
        return options

    def say_first(self, mistake: str) -> None:
        """Makes this parser report `mistake` instead of a mistake on the command line. `mistake`
        was found before the command line was read, and may have caused the mistake on it."""
        self._first = mistake
        for command in self.commands.values():
            command.say_first(mistake)

    def error(self, message: str) -> NoReturn:
        if self._first:
            self.exit(Exit.USAGE, f"holdfast: {one_line(redact(self._first))}\n")
        shortened = self._without_choices(message)
        text = "; ".join(
            [redact(shortened), *self._required_choices(message), *self._suggestions()]
        )
        stop = "" if text.endswith("?") else ";"
        self.exit(Exit.USAGE, f"holdfast: {one_line(text)}{stop} see `{self.prog} --help`\n")

    def _suggestions(self) -> list[str]:
        """Returns a suggestion for each unknown option that resembles a known one."""
        known = list(self._option_string_actions)
        typed = [word.partition("=")[0] for word in self._typed if word.startswith("--")]
        unknown = {word: meant(word, known) for word in typed if word not in known}
        return [f"did you mean {near} instead of {word}?" for word, near in unknown.items() if near]

    def _without_choices(self, message: str) -> str:
        """Shortens the message about an invalid choice. If the value resembles one of the choices,
        the message names that choice instead of all choices."""
        if (match := _INVALID.match(message)) is None:
            return message
        name, word = match["name"], match["word"]
        choices = next(
            action.choices
            for action in self._actions
            if name in (action.metavar, action.dest, "/".join(action.option_strings))
        )
        near = meant(word, [*map(str, choices or ()), *self._option_string_actions])
        if name != "COMMAND":
            return message if near is None else f"{name} {word} is unknown; did you mean {near}?"
        what = f"there is no command {word!r}"
        return (
            f"{what}; did you mean {near}?"
            if near
            else f"{what}; there are {', '.join(choices or ())}"
        )

    def _required_choices(self, message: str) -> list[str]:
        """Returns the choices of required arguments that were not given."""
        missing = message.removeprefix("the following arguments are required: ")
        names = [] if missing == message else missing.split(", ")
        return [
            f"{name} is one of {', '.join(action.choices)}"
            for action in self._actions
            if action.choices
            for name in (*action.option_strings, action.metavar)
            if name in names
        ]
