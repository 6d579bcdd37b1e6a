"""The result of a check: each finding with its place and its remedy."""

from msgspec import Struct, field


class Finding(Struct, frozen=True):
    """One fault that a check found."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.remedy})"


class Report(Struct):
    """The content of a journal in numbers, and its faults."""

    path: str
    salvage: str
    """The remedy for damage that no repair here can mend."""
    runs: int = 0
    tasks: int = 0
    trajectories: int = 0
    records: int = 0
    blobs: int = 0
    cuts: int = 0
    deliveries: int = 0
    bytes: int = 0
    """The size of a file and its write-ahead log, or of a server's tables."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def anew(self) -> str:
        """Returns the remedy for data that can be rebuilt from other rows."""
        return (
            "repair the journal: what follows from the rows is made anew; if that does not help, "
            f"{self.salvage}"
        )

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def add(self, where: str, what: str, remedy: str) -> None:
        self.findings.append(Finding(where, what, remedy))
