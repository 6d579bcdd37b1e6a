"""A run is a named set of trajectories. This module also decides when two runs are the same run."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable

import msgspec
from msgspec import Struct, structs

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling

MAX_TRAJECTORIES = 10_000_000
"""The maximum number of trajectories of a run. The journal plans all of them when the run begins,
and lists them in memory later."""
MAX_SAMPLES = 1_000_000
"""The maximum number of samples of a task. A group is claimed whole and needs about 2.5 kB of
memory per sample."""
MAX_NAMED = 5
"""The number of changed functions and values that a message names."""
_APART = frozenset(
    {"rollout_code", "scorer_code", "tags", "command", "training", "series", "fresh", "lineage"}
)
"""Fields that are not compared: details of `rollout` and `scorer`, which are compared themselves,
and fields without effect on sampling."""
_SAMPLES = ("model", "renderer", "sampling", "seed", "rollout", "world")
"""The fields that, together with a task, decide how its trajectories are sampled."""
_NOT_WRITTEN = re.compile(r"\.identity$| \(\d+\)$")
"""Matches the ending that distinguishes two parts of code with the same name. The user wrote only
the name."""
_BREAKING = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Characters that end a line, steer a terminal, or cannot be written."""


class Code(Struct, frozen=True):
    """The content of a fingerprint of code."""

    parts: dict[str, str] = {}
    """The digest of each function, class and value by its name, so that a message can name the
    changes."""
    files: dict[str, str] = {}
    """The file's name of each of these parts that belongs to a definition."""


class RecordedCommand(Struct, frozen=True):
    """The last command that worked on a run, so that it can be repeated."""

    words: tuple[str, ...]
    """The arguments, without secrets and without the program's name."""
    folder: str
    """The folder in which the command ran. Relative paths refer to it."""


class ForkOrigin(Struct, frozen=True, omit_defaults=True):
    """The origin of a run of forks, and the changes that the run makes there."""

    run: str
    """The other run's name at that time."""
    task: str
    sample: int
    step: str
    """The step at which the forks leave the trajectory."""
    beginning: str
    """The digest of the records that all forks begin with."""
    say: str | None = None
    """A user message before the turn."""
    edit: str | None = None
    """The new text of a message that the turn was given."""

    @property
    def line(self) -> str:
        """Returns the origin as one line for people to read."""
        change = f", said {self.say!r}" if self.say else ""
        change = f", edited to {self.edit!r}" if self.edit else change
        return f"forked from {self.run}/{self.task}/{self.sample} at step {self.step}{change}"

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_text(text: str) -> "ForkOrigin":
        return msgspec.json.decode(text, type=ForkOrigin)


class RunSpec(Struct, frozen=True):
    """The description of what a run samples. Resuming with another spec is refused unless the user
    accepts the change."""

    name: str
    samples: int
    model: str
    sampling: Sampling
    seed: int | None
    rollout: str
    """The rollout's name and the fingerprint of its source."""
    scorer: str
    renderer: str
    tasks: str
    """The digest of the tasks' ids and contents, in order."""
    group: GroupPolicy = GroupPolicy()
    rollout_code: Code | None = None
    scorer_code: Code | None = None
    judge: str = ""
    """The models that the scorer asks, as their engines name them; "" if it has asked none."""
    tags: tuple[str, ...] = ()
    """The user's own labels for the run. They have no effect on sampling."""
    command: RecordedCommand | None = None
    """The recorded command; None if a program began the run. It has no effect on sampling."""
    training: str = ""
    """The settings that identify a training, as JSON; "" if the run is not a training."""
    series: str = ""
    """The series of the run; "" if it is in no series. Runs of a series share trajectories: later
    runs reuse what earlier runs have sampled."""
    fresh: bool = False
    """Whether the run reuses no trajectories."""
    lineage: tuple[str, ...] = ()
    """For a run in a series: the run's own mark, and the marks of the runs whose trajectories the
    run may have."""
    world: str = ""
    """The world of each trajectory whose task names no world; "" for no world."""
    fork: str = ""
    """The `ForkOrigin` of a run of forks, as JSON; "" for other runs."""

    @property
    def origin(self) -> ForkOrigin | None:
        """Returns the trajectory and the changes that a run of forks begins with; None for other
        runs."""
        return ForkOrigin.from_text(self.fork) if self.fork else None

    def __post_init__(self) -> None:
        check_whole("samples", self.samples, least=1)
        if self.seed is not None:
            check_whole("seed", self.seed, least=-(2**63))
        _check_name(self.name)
        _check_kind("sampling", self.sampling, Sampling)
        _check_kind("group", self.group, GroupPolicy)

    def check(self, *, tasks: int) -> None:
        """Raises `UsageError` if a run with this many tasks cannot work as described. The check is
        not part of construction, because a journal's specs must always be readable."""
        if any(unicodedata.category(character) in _BREAKING for character in self.name):
            raise UsageError(
                f"a run's name has no control characters or line breaks: {self.name!a}"
            )
        if self.samples > MAX_SAMPLES:
            raise UsageError(
                f"a task has at most {MAX_SAMPLES:,} samples, not {self.samples:,}; lower them"
            )
        planned = tasks * self.samples
        if planned > MAX_TRAJECTORIES:
            raise UsageError(
                f"{tasks:,} tasks with {self.samples:,} samples each are {planned:,} trajectories, "
                f"and a run has at most {MAX_TRAJECTORIES:,}; lower the samples, or make more runs"
            )
        if self.group.at_least > self.samples:
            raise UsageError(
                f"a group cannot have at least {self.group.at_least} valid members "
                f"(--group-at-least, at_least): it has {self.samples}, the samples of a task; "
                "lower the one or raise the other"
            )

    def differences(self, other: "RunSpec") -> list[str]:
        """Returns one line for each difference between this spec and `other`."""
        return [
            f"{field}: recorded {then}, now {now}{_about_code(self, other, field)}"
            for field, (then, now) in self.changed(other).items()
        ]

    def changed(self, other: "RunSpec") -> dict[str, tuple[str, str]]:
        """Returns the fields that differ, each with its value in this spec (the recorded one) and
        in `other`, as text."""
        old, new = _flat(self), _flat(other)
        return {
            field: (_format_value(old.get(field)), _format_value(new.get(field)))
            for field in old
            if old.get(field) != new.get(field) and not _is_unknown(self, other, field)
        }

    def changed_code(
        self, other: "RunSpec", *, code: str, fields: Iterable[str] = ("rollout", "scorer")
    ) -> list[str]:
        """Returns a line for each file in which the rollout or the scorer changed, with the names
        of the functions and values. `code` is shown as the file of functions and values whose file
        is not recorded."""
        names: dict[str, list[str]] = {}
        for field in fields:
            if field in self.changed(other):
                for name, file in _changed_parts(self, other, field) or [("", "")]:
                    names.setdefault(file or code, []).append(name)
        listed = {file: ", ".join(_shortened(filter(None, names[file]))) for file in names}
        return [f"{file} changed{f' ({text})' if text else ''}" for file, text in listed.items()]

    def has_other_scorer(self, other: "RunSpec") -> bool:
        """Returns whether `other` has another scorer or another judge."""
        return any(
            getattr(self, field) != getattr(other, field) and not _is_unknown(self, other, field)
            for field in ("scorer", "judge")
        )

    @property
    def is_unnamed(self) -> bool:
        """Returns whether the run's name is its series and a number, which the user did not
        choose."""
        number = self.name.removeprefix(f"{self.series}-")
        return bool(self.series) and number != self.name and number.isdecimal()

    def may_reuse(self, other: "RunSpec") -> bool:
        """Returns whether this run would sample the trajectories of `other` in the same way."""
        keeps = self.group.keep_interrupted or not other.group.keep_interrupted
        return keeps and all(getattr(self, name) == getattr(other, name) for name in _SAMPLES)

    def differs_by_code(self, other: "RunSpec") -> bool:
        """Returns whether `other` differs from this spec only by its rollout, scorer or judge. The
        rollout and the scorer are compared together, because both are often in one file."""
        names = ("rollout", "rollout_code", "scorer", "scorer_code", "judge")
        same = structs.replace(other, **{name: getattr(self, name) for name in names})
        return bool(self.differences(other)) and not self.differences(same)


class RunChange(Struct, frozen=True):
    """A change of a run's spec that the user accepted."""

    differences: tuple[str, ...]
    at: float


class Run(Struct):
    """A run as it is stored in a journal."""

    id: int
    spec: RunSpec
    changes: tuple[RunChange, ...]
    created: float


def seed_for(run_seed: int | None, *, task: str, sample: int, life: int, path: str) -> int | None:
    """Returns the seed of one request. The seed depends only on the arguments, so that a
    deterministic engine repeats a run.

    The seed does not depend on the run's name, so the same `run_seed` under another name gives the
    same samples.
    """
    if run_seed is None:
        return None
    name = f"{run_seed}\0{task}\0{sample}\0{life}\0{path}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= 200 or "/" in name:
        raise UsageError(f"a run's name has 1 to 200 characters and no '/': {name!r:.300}")


def _check_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{name} is a {kind.__name__}(…), not {value!r:.100}")


def _format_value(value: object) -> str:
    return "none" if value in (None, "", (), []) else repr(value)


def _is_unknown(recorded: RunSpec, now: RunSpec, field: str) -> bool:
    """Returns whether this field of the two specs cannot be compared, because one of them names no
    judge."""
    return field == "judge" and not (recorded.judge and now.judge)


def _about_code(recorded: RunSpec, now: RunSpec, field: str) -> str:
    """Returns a text with the changed functions and values, if the code has the same name in both
    specs; "" otherwise."""
    names = [name for name, _ in _changed_parts(recorded, now, field)]
    return f" (changed: {', '.join(_shortened(names))})" if names else ""


def _changed_parts(recorded: RunSpec, now: RunSpec, field: str) -> list[tuple[str, str]]:
    """Returns the name of each changed function and value, and its file's name ("" if unknown)."""
    codes = [getattr(spec, f"{field}_code", None) or Code() for spec in (recorded, now)]
    then, new = (code.parts for code in codes)
    if not then or not new:
        return []
    called = {str(getattr(spec, field)).rpartition("@")[0] for spec in (recorded, now)}
    if len(called) > 1:
        return []
    files = codes[0].files | codes[1].files
    changed = [name for name in (*new, *then) if then.get(name) != new.get(name)]
    return [(_NOT_WRITTEN.sub("", name), files.get(name, "")) for name in changed]


def _shortened(names: Iterable[str]) -> list[str]:
    distinct = list(dict.fromkeys(names))
    more = [f"{len(distinct) - MAX_NAMED} more"] if len(distinct) > MAX_NAMED else []
    return distinct[:MAX_NAMED] + more


def _flat(spec: RunSpec) -> dict[str, object]:
    flat: dict[str, object] = {}
    for field, value in msgspec.to_builtins(spec).items():
        if field in _APART:
            continue
        if isinstance(value, dict):
            defaults = msgspec.structs.asdict(getattr(spec, field))
            flat |= {
                f"{field}.{key}": msgspec.to_builtins(inner) for key, inner in defaults.items()
            }
        else:
            flat[field] = value
    return flat
