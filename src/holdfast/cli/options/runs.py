"""The options of the commands that show, export, name, resume and delete runs, and of the commands
for journals, engines and the command line itself."""

import argparse
import re
from argparse import ArgumentTypeError

from holdfast.engine.option_kinds import Number, Whole
from holdfast.engine.options import (
    API_KEY_ENV,
    DIALECT,
    FORCE,
    FULL_TRACEBACKS,
    JOURNAL,
    MODEL,
    POLICY,
    PRICE,
    SAMPLES,
    SEED,
)
from holdfast.records.samples.logprobs import Accepted
from holdfast.records.trajectory import Status

MEGABYTES = 64
MASKED, TRAINED = "masked", "trained"
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def age(text: str) -> float:
    """Returns an age such as `30d` or `12h` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if found is None:
        raise ArgumentTypeError(f"wants a number with m, h, d or w, like 30d, not {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def add_runs(runs: argparse.ArgumentParser) -> None:
    runs.description = (
        "Lists the runs of a journal: when each was begun, how far it is, its model,\n"
        "mean reward and tags, who works on it, how much of it is trained, and how to go on."
    )
    JOURNAL.add_to(runs)
    _flag(runs, "--all", "also list the evaluations of trainings")
    _flag(runs, "--names", "print only names, for scripts")
    runs.add_argument("--tag", metavar="TAG", help="list only runs with this tag")
    _json(runs)


def add_show(show: argparse.ArgumentParser) -> None:
    show.description = (
        "Shows a run (its report, accepted changes, trajectories), or one trajectory: "
        "turns,\ntool calls, attempts, failures with tracebacks, token counts, versions, forks."
    )
    _run(show)
    show.add_argument(
        "trajectory",
        metavar="TASK/SAMPLE",
        nargs="?",
        help="show this trajectory; TASK stands for its first sample",
    )
    JOURNAL.add_to(show)
    _flag(show, "--all", "list every trajectory")
    show.add_argument(
        "--status",
        type=str.upper,
        choices=[status.name for status in Status],
        help="list only trajectories in this state",
    )
    PRICE.add_to(show)
    FULL_TRACEBACKS.add_to(show)
    _json(show)


def add_worlds(worlds: argparse.ArgumentParser) -> None:
    worlds.description = (
        "Lists the worlds (containers) and snapshots that the journal's runs have, as the ledger\n"
        "and the providers know them: state, age, CPU time, cost, trajectory."
    )
    JOURNAL.add_to(worlds)
    PRICE.add_to(worlds)
    _flag(worlds, "--all", "also list worlds that are gone")
    _flag(worlds, "--clean", "remove everything that no living process holds")
    _json(worlds)


def add_logs(logs: argparse.ArgumentParser) -> None:
    logs.description = (
        "Lists the log files of a run's processes (scorers, workers, gateways), with "
        "their last lines."
    )
    logs.add_argument("run", metavar="RUN", help="the run's name")
    JOURNAL.add_to(logs)
    logs.add_argument(
        "--tail",
        type=Whole(0),
        default=5,
        metavar="N",
        help="show the last N lines of each file (default: %(default)s)",
    )
    _json(logs)


def add_export(export: argparse.ArgumentParser) -> None:
    export.description = (
        "Writes a run's data to a file, which is replaced when all of it is there. Kinds:\n\n"
        "  samples                          token ids with rewards\n"
        "  trajectories                     conversations\n"
        "  rows                             EvaluationRows of eval-protocol\n"
        "  failures                         what failed, with tracebacks\n"
        "  verl, slime, trl, nemo, tinker   the input of a trainer\n"
        "  sft                              conversations for supervised fine-tuning\n"
        "  atif                             documents for trace viewers\n"
        "  inspect                          a log that `inspect view` opens\n\n"
        "Samples and rows of a run with --seed that was disturbed equal those of one that was\n"
        "not, byte for byte, if its engine repeats seeds; except where an at_most_once call was\n"
        "interrupted, and, on engines with seeds for whole requests (vLLM), where a reply\n"
        "went on from durable tokens (--partial-tokens, streams to agents)."
    )
    _run(export)
    export.add_argument(
        "--what",
        choices=(
            *("samples", "rows", "trajectories", "failures"),
            *("verl", "slime", "trl", "nemo", "tinker", "sft", "atif", "inspect"),
        ),
        required=True,
        metavar="KIND",
        help="write this kind of data",
    )
    _where_to(export)
    _for_some_kinds(export)
    JOURNAL.add_to(export)
    PRICE.add_to(export, help="rows, trajectories: add costs from this table of prices")
    _flag(export, "--json", "report the written file as JSON")


def _where_to(export: argparse.ArgumentParser) -> None:
    export.add_argument(
        "--format",
        choices=("jsonl", "parquet", "csv"),
        help="write this format (default: by the file's ending, else jsonl)",
    )
    export.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="write to this file or folder (-: standard output)",
    )
    FORCE.add_to(export)


def _underscored(word: str) -> str:
    """Replaces dashes by underscores, so that values can be spelled like options."""
    return word.replace("-", "_")


def _for_some_kinds(export: argparse.ArgumentParser) -> None:
    """Adds the options that only some values of `--what` use."""
    _flag(
        export,
        "--fixed-groups",
        "samples, slime, trl: fill groups up to n with ABORTED placeholders",
    )
    export.add_argument(
        "--logprobs",
        choices=[mode.value for mode in Accepted],
        help="raw: also export logprobs from before temperature and top_p",
    )
    export.add_argument(
        "--shared",
        choices=(MASKED, TRAINED),
        help="mask the tokens that forks copied (default), or train them once",
    )
    export.add_argument(
        "--branches",
        choices=("refuse", "longest"),
        help="trl, nemo: refuse branched trajectories, or keep the longest branch",
    )
    export.add_argument(
        "--missing-reward",
        type=_underscored,
        choices=("refuse", "leave_out"),
        help="verl, slime, nemo: refuse, or leave out, samples without a reward",
    )
    export.add_argument(
        "--min-reward",
        type=Number("any", lambda value: True),
        metavar="REWARD",
        help="sft: export only conversations with at least this reward",
    )
    export.add_argument(
        "--sft-layout",
        type=_underscored,
        choices=("messages", "prompt_completion"),
        help="sft: whole conversations, or prompts with completions",
    )
    _flag(
        export,
        "--with-turn-traces",
        "rows: one row per trajectory, each turn with its whole prompt",
    )


def add_journal(journal: argparse.ArgumentParser) -> None:
    journal.description = "Looks after a journal file."
    actions = journal.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="verify every checksum and invariant",
        description="Verifies every checksum and invariant of a journal, and says what it found.",
    )
    _file(check)
    _flag(check, "--repair", "cut torn logs to their last good record, and keep what is cut")
    _json(check)
    compact = actions.add_parser(
        "compact",
        help="give the space of deleted runs back to the disk",
        description="Gives the space of deleted runs back to the disk. Needs room for a copy of "
        "what is\nleft, for a moment; is not done while somebody works.",
    )
    _file(compact)
    _json(compact)
    copy = actions.add_parser(
        "copy",
        help="copy runs to another journal, and compare",
        description="Copies runs between files and PostgreSQL servers, in either direction, and "
        "compares the\ncopy with the original. Nobody may work on them meanwhile.",
    )
    copy.add_argument(
        "source",
        metavar="FROM",
        help="the journal to copy from: a file, or postgresql://USER@HOST/DATABASE",
    )
    copy.add_argument(
        "target", metavar="TO", help="the journal to copy to; a missing file is created"
    )
    copy.add_argument(
        "runs", metavar="RUN", nargs="*", default=[], help="copy only these runs (default: all)"
    )
    _json(copy)
    ledger = actions.add_parser(
        "ledger",
        help="say how each group of a run ended: trained, dismissed, or still open",
        description="Says how each group of a run ended, for each trainer that consumes it: "
        "trained in\na step that a checkpoint holds, dismissed with its reason, or still open.",
    )
    ledger.add_argument("run", metavar="RUN", help="the run's name")
    ledger.add_argument("--consumer", metavar="NAME", help="show only this consumer")
    JOURNAL.add_to(ledger)
    _json(ledger)


def add_policy(policy: argparse.ArgumentParser) -> None:
    policy.description = "Looks at an inference engine."
    actions = policy.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="show what an endpoint can do and what it lacks for training",
        description="Samples a few tokens and says what the endpoint can do: token ids, logprobs, "
        "weight\nversions, seeds, streaming. Exits with 1 when it is not fit for training: for "
        "evaluation\nonly, or for neither.",
    )
    check.add_argument("url", metavar="URL", help="the inference engine")
    check.add_argument(
        "--model", metavar="NAME", help="check this model, if the engine serves several"
    )
    DIALECT.add_to(check)
    API_KEY_ENV.add_to(check)
    _json(check)


def add_resume(resume: argparse.ArgumentParser) -> None:
    resume.description = (
        "Goes on with a run by its own command, which is recorded with it: in the\n"
        "folder where it was given, and without secrets. Options of that command that are given\n"
        "here are used instead of the recorded ones, and recorded.\n\n"
        "  holdfast resume first\n"
        "  holdfast resume first --concurrency 8 --retry-failed"
    )
    _run(resume)
    JOURNAL.add_to(resume)
    resume.add_argument(
        "--folder",
        metavar="DIR",
        help="find the command's files here (default: where they were)",
    )
    resume.add_argument(
        "--print", action="store_true", help="only print the command", dest="only_print"
    )
    resume.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="OPTIONS",
        help="options that replace those of the recorded command",
    )


def add_fork(fork: argparse.ArgumentParser) -> None:
    fork.description = (
        "Samples on from a turn of a trajectory, in a run of its own. Everything before the turn\n"
        "is taken from the journal, token by token. The rest of the command is that of the run.\n\n"
        "  holdfast fork first sum-1/3 --at 4 --samples 8\n"
        "  holdfast fork first sum-1/3 --at 4 --say 'Check the units.' --samples 8\n"
        "  holdfast fork first sum-1/3 --at 3 --edit answer.txt"
    )
    _run(fork)
    fork.add_argument("trajectory", metavar="TASK/SAMPLE", help="fork this trajectory of the run")
    fork.add_argument(
        "--at",
        required=True,
        metavar="STEP",
        help="sample the turn at this step anew, or with --edit the turn after it "
        "(`holdfast show RUN TASK/SAMPLE` lists the steps)",
    )
    fork.add_argument(
        "--say",
        metavar="TEXT",
        help="add this message of the user before the turn (-: read it from standard input)",
    )
    fork.add_argument(
        "--edit",
        metavar="FILE",
        help="replace the last message that the turn was given, or the answer at a tool's step, "
        "by the text of this file (-: of standard input)",
    )
    SAMPLES.add_to(fork, help="sample N forks (default: 1)", default=1)
    fork.add_argument(
        "--run", dest="name", metavar="NAME", help="give the new run this name (default: RUN-fork)"
    )
    POLICY.add_to(fork, help="use this engine instead of the run's; repeat for replicas")
    MODEL.add_to(fork, help="use this model instead of the run's")
    SEED.add_to(fork, help="derive seeds from N (default: from the run's seed and the turn)")
    JOURNAL.add_to(fork)
    fork.add_argument(
        "--folder",
        metavar="DIR",
        help="find the files of the run's command in this folder (default: where they were)",
    )
    _json(fork)


def add_rm(rm: argparse.ArgumentParser) -> None:
    rm.description = (
        "Deletes runs with everything that is recorded of them, and gives their space\n"
        "back. A training goes with its evaluations; its checkpoints are files, and stay. A run\n"
        "that somebody works on is not deleted."
    )
    rm.add_argument("runs", nargs="+", metavar="RUN", help="names, as `holdfast runs` lists them")
    JOURNAL.add_to(rm)
    _yes(rm)


def add_prune(prune: argparse.ArgumentParser) -> None:
    prune.description = (
        "Deletes every run to which all that is given applies. Without any of it: runs "
        "without\na name (agent-3) that were never finished or tagged. Runs that somebody works on "
        "are left\nalone, and so is the newest of those without a name.\n\n"
        "  holdfast prune --older-than 30d --untagged\n"
        "  holdfast prune --tag sweep --keep 3"
    )
    prune.add_argument(
        "--older-than",
        type=age,
        metavar="AGE",
        help="delete runs that began longer ago: 90m, 12h, 30d, 8w",
    )
    prune.add_argument("--tag", metavar="TAG", help="delete runs with this tag")
    _flag(prune, "--untagged", "delete runs without a tag")
    _flag(prune, "--unfinished", "delete runs with open trajectories")
    prune.add_argument("--keep", type=Whole(0), metavar="N", help="keep the N newest of these runs")
    _flag(prune, "--dry-run", "only list the runs that would be deleted")
    JOURNAL.add_to(prune)
    _yes(prune)


def add_rename(rename: argparse.ArgumentParser) -> None:
    rename.description = "Gives a run another name. Trajectories are called by it from then on."
    _run(rename)
    rename.add_argument("name", metavar="NAME", help="the new name")
    JOURNAL.add_to(rename)
    _json(rename)


def add_tag(tag: argparse.ArgumentParser) -> None:
    tag.description = (
        "Adds tags to a run, removes them, or lists them.\n\n"
        "  holdfast tag first baseline\n"
        "  holdfast tag first --remove baseline"
    )
    _run(tag)
    tag.add_argument(
        "tags",
        nargs="*",
        default=[],
        metavar="TAG",
        help="add these tags (without any: list the run's tags)",
    )
    tag.add_argument(
        "--remove", action="append", default=[], metavar="TAG", help="remove this tag; repeatable"
    )
    JOURNAL.add_to(tag)
    _json(tag)


def add_compare(compare: argparse.ArgumentParser) -> None:
    compare.description = (
        "Compares two runs on the tasks that both have: the mean difference of B from\n"
        "A with its standard error, interval and p value, the tasks that changed most, and what\n"
        "differs in how the runs were made. A RUN that is not a run of the journal but a file is\n"
        "read as results of another tool (EvaluationRows, Inspect logs, verifiers results)."
    )
    compare.add_argument("run_a", metavar="RUN_A", help="the run to compare with")
    compare.add_argument("run_b", metavar="RUN_B", help="the run that is compared")
    JOURNAL._replace(
        help="use this journal (default: {}, then evaluations' .holdfast/evaluations.db)"
    ).add_to(compare)
    compare.add_argument("--journal-b", metavar="PATH", help="read RUN_B from this journal")
    compare.add_argument("--metric", metavar="NAME", help="compare a metric instead of the score")
    _flag(compare, "--by-id", "also compare tasks whose messages or ground truth differ")
    _json(compare)


def add_report(report: argparse.ArgumentParser) -> None:
    report.description = (
        "Prints what became of a run: outcomes, rewards, failures, what was trained,\n"
        "and input, target and answer of its rows, by task. With --out, writes it as one HTML\n"
        "file with the learning curve and every conversation, which opens without a server, asks\n"
        "the network for nothing, and is replaced when all of it is there."
    )
    _run(report)
    report.add_argument(
        "--out", metavar="FILE.html", help="write an HTML file instead of printing numbers"
    )
    FORCE.add_to(report)
    _flag(report, "--all", "print every row instead of the first 40")
    JOURNAL.add_to(report)
    PRICE.add_to(report)
    FULL_TRACEBACKS.add_to(report)
    report.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="show replies token by token, with the tokenizer in this folder",
    )
    report.add_argument(
        "--max-megabytes",
        type=Whole(1),
        default=MEGABYTES,
        metavar="N",
        help="keep the page below N megabytes (default: %(default)s)",
    )
    _flag(report, "--json", "print the numbers, or the written file, as JSON")


def add_config(config: argparse.ArgumentParser) -> None:
    config.description = (
        "Shows which configuration file is used here, and what it sets: holdfast.toml,"
        "\nor [tool.holdfast] in pyproject.toml, of this folder or of those above it in the same\n"
        "project. The command line wins over it. HOLDFAST_CONFIG names another file; empty: none."
    )
    _json(config)


def add_completion(completion: argparse.ArgumentParser) -> None:
    completion.description = (
        "Prints a script for a shell.\n\n"
        "  bash:  holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast\n"
        "  zsh:   holdfast completion zsh > ~/.zfunc/_holdfast   (a folder of your fpath)\n"
        "  fish:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's name, as `holdfast runs` lists it")


def _file(parser: argparse.ArgumentParser) -> None:
    default = JOURNAL.default
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=default,
        help="the journal (default: %(default)s)",
    )


def _yes(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--yes", "do not ask first")
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--json", "print JSON, for scripts")


def _flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, action="store_true", help=text)
