"""How the command line is read: a mistake is one line that helps."""

import argparse
import difflib
import sys
from typing import Any, NoReturn

from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.text import one_line
from holdfast.records.encoding.redaction import redact

_OR = {Exit.FAILURES: "\n       or, of `policy check`: the endpoint is not fit for training"}
EXIT_CODES = "exit codes:\n" + "\n".join(
    f"  {code.value:>3}  {code.meaning}{_OR.get(code, '')}" for code in Exit
)

NEAR = 0.75
"""How alike two options are before one is taken for the other; 1: the same."""


class Parser(argparse.ArgumentParser):
    """One line for a mistake, and no guessing at options that were cut short."""

    def __init__(self, **options: Any):
        self._typed: list[str] = []
        super().__init__(
            allow_abbrev=False,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Rejects unknown arguments itself: the parser that called it has other suggestions."""
        self._typed = list(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        text = "; ".join([redact(message), *self._required_choices(message), *self._suggestions()])
        stop = "" if text.endswith("?") else ";"
        self.exit(Exit.USAGE, f"holdfast: {one_line(text)}{stop} see `{self.prog} --help`\n")

    def _suggestions(self) -> list[str]:
        """Options that are nearly those which were given and do not exist."""
        known = list(self._option_string_actions)
        typed = [word.partition("=")[0] for word in self._typed if word.startswith("--")]
        return [
            f"did you mean {near} instead of {word}?"
            for word in typed
            if word not in known
            for near in difflib.get_close_matches(word, known, n=1, cutoff=NEAR)
        ]

    def _required_choices(self, message: str) -> list[str]:
        """The values of what is required and was not given."""
        missing = message.removeprefix("the following arguments are required: ")
        names = [] if missing == message else missing.split(", ")
        return [
            f"{name} is one of {', '.join(action.choices)}"
            for action in self._actions
            if action.choices
            for name in (*action.option_strings, action.metavar)
            if name in names
        ]
