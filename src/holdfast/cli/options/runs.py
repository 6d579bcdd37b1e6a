"""The options of the commands that go on with runs, name them, and delete them."""

import argparse
import re
from argparse import ArgumentTypeError
from typing import Any

from holdfast.engine.options import JOURNAL, Whole

Commands = Any  # argparse's subparsers action has no public name
_RUN = {"metavar": "RUN", "help": "its name, as `holdfast runs` lists it"}
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def age(text: str) -> float:
    """`30d`, `12h`: in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if found is None:
        raise ArgumentTypeError(f"wants a number with m, h, d or w, like 30d, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def add_resume(commands: Commands) -> None:
    resume = commands.add_parser(
        "resume",
        help="go on with a run, by the command that it was begun with",
        description="Goes on with a run by its own command, which is recorded with it: in the\n"
        "folder where it was given, and without secrets. Options of that command that are given\n"
        "here are used instead of the recorded ones, and recorded.\n\n"
        "  holdfast resume first\n"
        "  holdfast resume first --concurrency 8 --retry-failed",
    )
    resume.add_argument("run", **_RUN)
    JOURNAL.add_to(resume)
    resume.add_argument(
        "--folder", metavar="DIR", help="where the files of the command are now (where they were)"
    )
    resume.add_argument(
        "--print", action="store_true", help="print the command, and do nothing", dest="only_print"
    )
    resume.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="OPTIONS",
        help="of its command, instead of the recorded ones",
    )


def add_rm(commands: Commands) -> None:
    rm = commands.add_parser(
        "rm",
        help="delete runs, and give their space back",
        description="Deletes runs with everything that is recorded of them, and gives their space\n"
        "back. A training goes with its evaluations; its checkpoints are files, and stay. A run\n"
        "that somebody works on is not deleted.",
    )
    rm.add_argument("runs", nargs="+", metavar="RUN", help="names, as `holdfast runs` lists them")
    JOURNAL.add_to(rm)
    _yes(rm)


def add_prune(commands: Commands) -> None:
    prune = commands.add_parser(
        "prune",
        help="delete the runs that are old, unfinished or untagged, and give their space back",
        description="Deletes every run to which all that is given applies. Runs that somebody "
        "works on\nare left alone.\n\n"
        "  holdfast prune --older-than 30d --untagged\n"
        "  holdfast prune --tag sweep --keep 3",
    )
    prune.add_argument(
        "--older-than", type=age, metavar="AGE", help="begun so long ago: 90m, 12h, 30d, 8w"
    )
    prune.add_argument("--tag", metavar="TAG", help="those with this tag")
    prune.add_argument("--untagged", action="store_true", help="those without any tag")
    prune.add_argument("--unfinished", action="store_true", help="those with open trajectories")
    prune.add_argument("--keep", type=Whole(0), metavar="N", help="of all these, keep the N newest")
    prune.add_argument("--dry-run", action="store_true", help="only say which runs these are")
    JOURNAL.add_to(prune)
    _yes(prune)


def add_rename(commands: Commands) -> None:
    rename = commands.add_parser(
        "rename",
        help="give a run another name",
        description="Gives a run another name. Trajectories are called by it from then on.",
    )
    rename.add_argument("run", **_RUN)
    rename.add_argument("name", metavar="NAME", help="its new name")
    JOURNAL.add_to(rename)
    _json(rename)


def add_tag(commands: Commands) -> None:
    tag = commands.add_parser(
        "tag",
        help="tag a run, so that it is found again",
        description="Adds tags to a run, removes them, or lists them.\n\n"
        "  holdfast tag first baseline\n"
        "  holdfast tag first --remove baseline",
    )
    tag.add_argument("run", **_RUN)
    tag.add_argument(
        "tags", nargs="*", default=[], metavar="TAG", help="to add (none: list its tags)"
    )
    tag.add_argument("--remove", action="append", default=[], metavar="TAG", help="again for more")
    JOURNAL.add_to(tag)
    _json(tag)


def add_config(commands: Commands) -> None:
    config = commands.add_parser(
        "config",
        help="show what the configuration file sets",
        description="Shows which configuration file is used here, and what it sets: holdfast.toml,"
        "\nor [tool.holdfast] in pyproject.toml, of this folder or of those above it in the same\n"
        "project. The command line wins over it. HOLDFAST_CONFIG names another file; empty: none.",
    )
    _json(config)


def add_completion(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description="Prints a script for a shell.\n\n"
        "  bash:  holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast\n"
        "  zsh:   holdfast completion zsh > ~/.zfunc/_holdfast   (a folder of your fpath)\n"
        "  fish:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask first")
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
