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
        "Lists the runs of a journal. For each run, shows when it began, its progress, model,\n"
        "mean reward and tags, whether workers hold it, how much of it was trained, and the\n"
        "command that continues it."
    )
    JOURNAL.add_to(runs)
    _flag(runs, "--all", "also list the evaluations of trainings")
    _flag(runs, "--names", "print only names, for scripts")
    runs.add_argument("--tag", metavar="TAG", help="list only runs with this tag")
    _json(runs)


def add_show(show: argparse.ArgumentParser) -> None:
    show.description = (
        "Shows a run: its report, accepted changes and trajectories. With TASK/SAMPLE, shows one\n"
        "trajectory: turns, tool calls, attempts, failures, token counts, weight versions, forks."
    )
    _run(show)
    show.add_argument(
        "trajectory",
        metavar="TASK/SAMPLE",
        nargs="?",
        help="show this trajectory; TASK alone means its first sample",
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
        "Lists the worlds (containers) and snapshots of the journal's runs. Compares the journal\n"
        "with what Docker and Podman report. Shows state, age, CPU time, cost and trajectory."
    )
    JOURNAL.add_to(worlds)
    PRICE.add_to(worlds)
    _flag(worlds, "--all", "also list worlds that were removed")
    _flag(worlds, "--clean", "remove worlds and snapshots that no live process uses")
    _json(worlds)


def add_logs(logs: argparse.ArgumentParser) -> None:
    logs.description = (
        "Lists the log files of a run's processes (scorers, workers, gateways), with their last\n"
        "lines."
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
        "Writes a run's data to a file. Replaces an existing file only when the new one is\n"
        "complete. Kinds:\n"
        "\n"
        "  samples                          token ids with rewards\n"
        "  trajectories                     conversations\n"
        "  rows                             EvaluationRows of eval-protocol\n"
        "  failures                         failures with tracebacks\n"
        "  verl, slime, trl, nemo, tinker   the input of a trainer\n"
        "  sft                              conversations for supervised fine-tuning\n"
        "  atif                             documents for trace viewers\n"
        "  inspect                          a log that `inspect view` opens\n"
        "\n"
        "If a run has --seed and its engine repeats seeds, its samples and rows are the same with\n"
        "and without kills, byte for byte. There are two exceptions: an interrupted at_most_once\n"
        "tool call, and, on vLLM, a reply that was continued in the middle (--partial-tokens,\n"
        "streams to agents)."
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
    PRICE.add_to(export, help="rows, trajectories: add costs from this price table")
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
        "samples, slime, trl: fill groups up to n with ABORTED samples",
    )
    export.add_argument(
        "--logprobs",
        choices=[mode.value for mode in Accepted],
        help="raw: also export logprobs from before temperature and top_p",
    )
    export.add_argument(
        "--shared",
        choices=(MASKED, TRAINED),
        help="mask tokens that a fork copied (default), or train them once",
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
        help="verl, slime, nemo: refuse samples without reward, or leave them out",
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
        help="write sft rows as conversations, or as prompts with completions",
    )
    _flag(
        export,
        "--with-turn-traces",
        "rows: write each turn with its whole prompt, in one row",
    )


def add_journal(journal: argparse.ArgumentParser) -> None:
    journal.description = "Checks, repairs, compacts or copies a journal."
    actions = journal.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="check every checksum and invariant",
        description="Checks every checksum and invariant of a journal, and prints what is wrong.",
    )
    _file(check)
    _flag(
        check, "--repair", "cut damaged logs after their last good record; keep a copy of the rest"
    )
    _json(check)
    compact = actions.add_parser(
        "compact",
        help="free the disk space of deleted runs",
        description="Frees the disk space of deleted runs. While it works, it needs disk space for "
        "a copy\nof the remaining data. Refuses while a worker holds a run.",
    )
    _file(compact)
    _json(compact)
    copy = actions.add_parser(
        "copy",
        help="copy runs to another journal, and compare the copies",
        description="Copies runs between files and PostgreSQL servers, in either direction, and "
        "compares the\ncopy with the original. No worker may hold these runs meanwhile.",
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
        help="show which groups of a run are trained, dismissed or open",
        description="Shows the state of each group of a run, for each trainer that consumes the "
        "run: trained\n(with its step), dismissed (with the reason), or still open.",
    )
    ledger.add_argument("run", metavar="RUN", help="the run's name")
    ledger.add_argument("--consumer", metavar="NAME", help="show only this consumer")
    JOURNAL.add_to(ledger)
    _json(ledger)


def add_policy(policy: argparse.ArgumentParser) -> None:
    policy.description = "Checks what an inference engine can do."
    actions = policy.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="show what an endpoint can do and what it lacks for training",
        description="Samples a few tokens and prints what the endpoint can do: token ids, "
        "logprobs, weight\nversions, seeds, streaming. Exits with 1 if the endpoint is not fit "
        "for training.",
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
        "Continues a run with its recorded command, in the folder where the command was first\n"
        "given. The journal records no secrets. Options that you add replace the recorded ones,\n"
        "and are recorded in turn.\n"
        "\n"
        "  holdfast resume first\n"
        "  holdfast resume first --concurrency 8 --retry-failed"
    )
    _run(resume)
    JOURNAL.add_to(resume)
    resume.add_argument(
        "--folder",
        metavar="DIR",
        help="look for the command's files in this folder (default: where they were)",
    )
    resume.add_argument(
        "--print", action="store_true", help="only print the command", dest="only_print"
    )
    resume.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="OPTIONS",
        help="options that replace recorded ones",
    )


def add_fork(fork: argparse.ArgumentParser) -> None:
    fork.description = (
        "Samples new continuations from a turn of a trajectory, as a new run. Everything before\n"
        "the turn is taken from the journal, token by token. Other options are those of the old\n"
        "run.\n"
        "\n"
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
        help="sample anew from this step (`holdfast show RUN TASK/SAMPLE` lists them)",
    )
    fork.add_argument(
        "--say",
        metavar="TEXT",
        help="first add this user message (-: from standard input)",
    )
    fork.add_argument(
        "--edit",
        metavar="FILE",
        help="replace the last message, or a tool's answer, with this file's text",
    )
    SAMPLES.add_to(fork, help="sample N forks (default: 1)", default=1)
    fork.add_argument(
        "--run", dest="name", metavar="NAME", help="name the new run (default: RUN-fork)"
    )
    POLICY.add_to(fork, help="use this engine instead of the run's; repeatable")
    MODEL.add_to(fork, help="use this model instead of the run's")
    SEED.add_to(fork, help="derive seeds from N (default: from the run's seed and the step)")
    JOURNAL.add_to(fork)
    fork.add_argument(
        "--folder",
        metavar="DIR",
        help="look for the command's files in this folder (default: where they were)",
    )
    _json(fork)


def add_rm(rm: argparse.ArgumentParser) -> None:
    rm.description = (
        "Deletes runs with all their records, and frees the disk space. With a training,\n"
        "deletes its evaluations, but not its checkpoint files. Refuses to delete a run that a\n"
        "worker holds."
    )
    rm.add_argument(
        "runs", nargs="+", metavar="RUN", help="names of runs, as `holdfast runs` lists them"
    )
    JOURNAL.add_to(rm)
    _yes(rm)


def add_prune(prune: argparse.ArgumentParser) -> None:
    prune.description = (
        "Deletes the runs that match all given options. Without options, deletes unnamed runs\n"
        "(agent-3) that were never finished or tagged. Keeps every run that a worker holds, and\n"
        "the newest unnamed run.\n"
        "\n"
        "  holdfast prune --older-than 30d --untagged\n"
        "  holdfast prune --tag sweep --keep 3"
    )
    prune.add_argument(
        "--older-than",
        type=age,
        metavar="AGE",
        help="delete runs older than this: 90m, 12h, 30d, 8w",
    )
    prune.add_argument("--tag", metavar="TAG", help="delete runs with this tag")
    _flag(prune, "--untagged", "delete runs without a tag")
    _flag(prune, "--unfinished", "delete runs with open trajectories")
    prune.add_argument("--keep", type=Whole(0), metavar="N", help="keep the N newest of these runs")
    _flag(prune, "--dry-run", "only list the runs that would be deleted")
    JOURNAL.add_to(prune)
    _yes(prune)


def add_rename(rename: argparse.ArgumentParser) -> None:
    rename.description = "Gives a run another name. Its trajectories then have the new name, too."
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
        help="add these tags (without TAG and --remove: list the run's tags)",
    )
    tag.add_argument(
        "--remove", action="append", default=[], metavar="TAG", help="remove this tag; repeatable"
    )
    JOURNAL.add_to(tag)
    _json(tag)


def add_compare(compare: argparse.ArgumentParser) -> None:
    compare.description = (
        "Compares the scores of two runs on the tasks that both have. Prints the mean difference\n"
        "(B minus A) with its standard error, confidence interval and p value, the tasks that\n"
        "changed most, and what differs between the runs' settings.\n"
        "\n"
        "Instead of a run, you can give a results file of another tool: EvaluationRows, an\n"
        "Inspect log or verifiers results."
    )
    compare.add_argument("run_a", metavar="RUN_A", help="the baseline")
    compare.add_argument("run_b", metavar="RUN_B", help="the run to compare with the baseline")
    JOURNAL._replace(
        help="use this journal (default: {}; for an evaluation, .holdfast/evaluations.db)"
    ).add_to(compare)
    compare.add_argument("--journal-b", metavar="PATH", help="read RUN_B from this journal")
    compare.add_argument("--metric", metavar="NAME", help="compare a metric instead of the score")
    _flag(compare, "--by-id", "also compare tasks whose messages or ground truth differ")
    _json(compare)


def add_report(report: argparse.ArgumentParser) -> None:
    report.description = (
        "Prints a run's results: outcomes, rewards, failures, training, and the input, target and\n"
        "answer of each row. With --out, writes one HTML file with the learning curve and every\n"
        "conversation. The file opens without a server or network. An existing file is replaced\n"
        "only when the new one is complete."
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
        help="also show tokens, with the tokenizer in this folder",
    )
    report.add_argument(
        "--max-megabytes",
        type=Whole(1),
        default=MEGABYTES,
        metavar="N",
        help="keep the file below N megabytes (default: %(default)s)",
    )
    _flag(report, "--json", "print the numbers, or the written file, as JSON")


def add_config(config: argparse.ArgumentParser) -> None:
    config.description = (
        "Shows which configuration file applies in this folder, and what it sets. The file is\n"
        "holdfast.toml, or [tool.holdfast] in pyproject.toml, of this folder or of a parent\n"
        "folder in the same project. The command line overrides the file. HOLDFAST_CONFIG names\n"
        "another file; if it is empty, no file is read."
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
