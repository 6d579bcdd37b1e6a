"""Filters and sorts a run's trajectories, and divides them into pages."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from holdfast.records.errors import UsageError
from holdfast.view.reading.digest import Entry

PAGE = 200
_ORDERS: dict[str, tuple[Callable[[Entry], float | str], bool]] = {
    "task": (lambda entry: entry.ordinal, False),
    "lowest reward": (lambda entry: _or_last(entry.reward, 1), False),
    "highest reward": (lambda entry: _or_last(entry.reward, -1), True),
    "slowest": (lambda entry: entry.seconds, True),
    "most tokens": (lambda entry: entry.tokens, True),
    "most turns": (lambda entry: entry.turns, True),
    "most retries": (lambda entry: entry.retries + entry.forks, True),
}
ORDERS = tuple(_ORDERS)
STATES = ("running", "pending", "completed", "truncated", "failed", "retried")


def _or_last(value: float | None, sign: int) -> float:
    return sign * float("inf") if value is None else value


class Filter(Struct, frozen=True):
    """The trajectories that a reader chose, and their order. Empty fields choose everything."""

    state: str = ""
    text: str = ""
    """A text that has to occur in the trajectory's name or in the reason why it ended."""
    low: float | None = None
    high: float | None = None
    root: str = ""
    column: str = ""
    value: str = ""
    least_turns: float | None = None
    least_tokens: float | None = None
    order: str = ORDERS[0]
    page: int = 0

    @property
    def is_plain(self) -> bool:
        """Returns whether all trajectories are chosen, in the order of tasks."""
        return self == Filter(page=self.page)

    def query(self) -> dict[str, object]:
        """Returns the fields that differ from their defaults, for the query of an address."""
        names = {name: getattr(self, name) for name in self.__struct_fields__}
        plain = Filter()
        return {name: value for name, value in names.items() if value != getattr(plain, name)}


def filter_from(query: Mapping[str, str]) -> Filter:
    """Reads a filter from a query. Raises `UsageError` for a value that is not a number."""
    values: dict[str, object] = {
        name: query[name] for name in ("state", "text", "root", "column", "value") if name in query
    }
    for name in ("low", "high", "least_turns", "least_tokens"):
        if query.get(name):
            values[name] = number_from(query, name)
    if query.get("order") in _ORDERS:
        values["order"] = query["order"]
    return Filter(**values, page=whole_from(query, "page"))  # type: ignore[arg-type]


def number_from(query: Mapping[str, str], name: str) -> float:
    try:
        return float(query[name])
    except ValueError:
        raise UsageError(f"{name.replace('_', ' ')} is a number, not {query[name]!r:.60}") from None


def whole_from(query: Mapping[str, str], name: str, default: int = 0) -> int:
    """Reads the whole number with this name from a query. Raises `UsageError` for a negative number
    or for other text."""
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 12:
        raise UsageError(f"{name} is a whole number, not {text!r:.60}")
    return int(text)


class EntryPage(Struct, frozen=True):
    """One page of the trajectories that a filter chooses."""

    entries: list[Entry]
    count: int
    page: int
    pages: int


def listed(entries: Iterable[Entry], chosen: Filter, values: Mapping[int, str]) -> EntryPage:
    """Returns one page of the trajectories that match the filter. `values` has the value of each
    task in the column that the filter chose."""
    matching = [entry for entry in entries if _matches(entry, chosen, values)]
    key, is_reversed = _ORDERS[chosen.order]
    if chosen.order != ORDERS[0]:
        matching.sort(key=key, reverse=is_reversed)
    pages = max(1, -(-len(matching) // PAGE))
    page = min(chosen.page, pages - 1)
    return EntryPage(matching[page * PAGE : (page + 1) * PAGE], len(matching), page, pages)


def _matches(entry: Entry, chosen: Filter, values: Mapping[int, str]) -> bool:
    if chosen.state and not _is_in(entry, chosen.state):
        return False
    if chosen.text and chosen.text not in entry.name and chosen.text not in entry.reason:
        return False
    if chosen.root and all(failure.root != chosen.root for failure in entry.failures):
        return False
    if chosen.column and values.get(entry.ordinal) != chosen.value:
        return False
    return _is_between(entry, chosen)


def _is_between(entry: Entry, chosen: Filter) -> bool:
    if chosen.low is not None or chosen.high is not None:
        reward = entry.reward
        low = float("-inf") if chosen.low is None else chosen.low
        high = float("inf") if chosen.high is None else chosen.high
        if reward is None or not low <= reward <= high:
            return False
    return entry.turns >= (chosen.least_turns or 0) and entry.tokens >= (chosen.least_tokens or 0)


def _is_in(entry: Entry, state: str) -> bool:
    if state == "retried":
        return entry.retries > 0 or entry.forks > 0
    return entry.status.name.lower() == state
