"""Computes the numbers of a run from its digest: counts, rewards, failures by root, and tokens."""

from collections import Counter

from msgspec import Struct

from holdfast.engine.export.prices import Cost, Prices
from holdfast.engine.progress.clustered import RewardMean
from holdfast.records.trajectory import Status
from holdfast.records.usage import NOTHING, UsageByModel
from holdfast.view.reading.digest import Entry, RunDigest

BINS = 12
MAX_EXAMPLES = 12


class RootCount(Struct):
    """The failures with one root, and some of their trajectories."""

    root: str
    cause: str
    phase: str
    line: str
    failures: int = 0
    permanent: int = 0
    examples: list[Entry] = []


class Numbers(Struct, frozen=True):
    """The numbers of a run, computed from its digest."""

    trajectories: int
    by_status: dict[str, int]
    settled: int
    running: int
    mean: float | None
    error: float | None
    rewarded: int
    tokens: int
    turns: int
    seconds: float
    retries: int
    forks: int
    used: UsageByModel
    cost: Cost | None
    roots: list[RootCount]
    truncations: dict[str, int]


def numbers_of(digest: RunDigest, prices: Prices | None = None) -> Numbers:
    by_status: Counter[str] = Counter()
    truncations: Counter[str] = Counter()
    mean = RewardMean()
    totals = Counter[str]()
    usage: UsageByModel = {}
    roots: dict[tuple[str, str], RootCount] = {}
    seconds = 0.0
    for entry in digest.entries():
        by_status[entry.status.name] += 1
        totals["settled"] += entry.settled
        totals["running"] += entry.is_running
        totals["tokens"] += entry.tokens
        totals["turns"] += entry.turns
        totals["retries"] += entry.retries
        totals["forks"] += entry.forks
        seconds += entry.seconds
        if entry.reward is not None:
            mean.add(entry.task, entry.reward)
        if entry.status is Status.TRUNCATED:
            truncations[entry.reason] += 1
        for model, tokens in entry.used.items():
            usage[model] = usage.get(model, NOTHING) + tokens
        _count_roots(roots, entry)
    return Numbers(
        trajectories=by_status.total(),
        by_status={s.name: by_status[s.name] for s in Status if by_status[s.name]},
        settled=totals["settled"],
        running=totals["running"],
        mean=mean.mean,
        error=mean.error,
        rewarded=mean.count,
        tokens=totals["tokens"],
        turns=totals["turns"],
        seconds=seconds,
        retries=totals["retries"],
        forks=totals["forks"],
        used=usage,
        cost=None if prices is None else prices.cost_of(usage),
        roots=sorted(roots.values(), key=lambda root: (-root.permanent, -root.failures)),
        truncations=dict(truncations.most_common()),
    )


def _count_roots(roots: dict[tuple[str, str], RootCount], entry: Entry) -> None:
    for failure in entry.failures:
        key = (failure.phase, failure.root)
        root = roots.get(key)
        if root is None:
            root = RootCount(failure.root, failure.cause, failure.phase, failure.line, examples=[])
            roots[key] = root
        root.failures += 1
        root.permanent += failure.permanent
        if len(root.examples) < MAX_EXAMPLES and entry not in root.examples:
            root.examples.append(entry)


def reward_bins(rewards: list[float]) -> list[tuple[str, int, float, float]]:
    """Returns the distribution of rewards: for each bin its name, its count and its limits. A few
    distinct rewards each have a bin of their own."""
    distinct = Counter(rewards)
    if len(distinct) <= BINS:
        return [(f"{value:g}", count, value, value) for value, count in sorted(distinct.items())]
    low, high = min(rewards), max(rewards)
    width = (high - low) / BINS
    counts = Counter(min(int((reward - low) / width), BINS - 1) for reward in rewards)
    edges = [(low + at * width, low + (at + 1) * width) for at in range(BINS)]
    return [(f"{a:.3g}–{b:.3g}", counts[at], a, b) for at, (a, b) in enumerate(edges)]


def moving_mean(rewards: list[float], *, points: int) -> list[tuple[float, float]]:
    """Divides the rewards into at most `points` parts. Returns, for each part, the number of its
    last reward and the mean of its rewards."""
    points = min(points, len(rewards))
    ends = [len(rewards) * (number + 1) // points for number in range(points)]
    return [
        (float(end), sum(rewards[start:end]) / (end - start))
        for start, end in zip([0, *ends], ends, strict=False)
    ]
