"""An Outcome is the result of one experiment, and says whether it passed."""

from msgspec import Struct

from holdfast.evaluation.stats.results import Results
from holdfast.evaluation.stats.summary import summary_json, summary_text
from holdfast.evaluation.stats.verdict import Verdict
from holdfast.records.errors import Cause


class Part(Struct, frozen=True):
    """One run of an experiment. A groupwise experiment has one part for each setting, and other
    experiments have one part."""

    results: Results
    verdict: Verdict

    @property
    def text(self) -> str:
        return summary_text(self.results, self.verdict)

    @property
    def summary(self) -> dict[str, object]:
        return summary_json(self.results, self.verdict)


class Outcome(Struct, frozen=True):
    """The result of a finished experiment. `check` raises if it did not pass."""

    name: str
    journal: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    """Remarks for the user, for example that the run was finished already."""
    fail_on_permanent_failure: bool = True
    pages: tuple[str, ...] = ()
    """The `file://` links of the requested pages, one for each run."""
    tables: tuple[tuple[str, ...], ...] = ()
    """The first rows of each run with input, target and answer, as lines for a terminal."""

    @property
    def score(self) -> float | None:
        """The score of the first run."""
        return self.parts[0].verdict.score

    @property
    def verdict(self) -> Verdict:
        return self.parts[0].verdict

    @property
    def results(self) -> Results:
        return self.parts[0].results

    @property
    def run(self) -> str:
        return self.parts[0].results.run

    @property
    def passed(self) -> bool:
        return not self.complaints

    @property
    def complaints(self) -> list[str]:
        """The reasons why the experiment did not pass, one line for each. The reason comes before
        the run's name, because pytest's short summary shows only the beginning."""
        return [line for part in self.parts for line in self._complaints(part)]

    def _complaints(self, part: Part) -> list[str]:
        verdict, run = part.verdict, part.results.run
        texts = []
        if verdict.score is None:
            texts.append(f"no row was scored ({run})")
        elif verdict.reached is False:
            texts.append(f"{verdict.reason} ({run})")
        if verdict.failed and self.fail_on_permanent_failure:
            by = ", ".join(f"{many} {cause}" for cause, many in verdict.failed_by_cause.items())
            texts.append(
                f"{verdict.failed} of {verdict.rows} rows failed for good ({by}) in {run}; "
                f"{_remedy(part)} --holdfast-retry-failed; to let it pass, add "
                "--holdfast-no-fail-on-permanent-failure"
            )
        return texts

    @property
    def text(self) -> str:
        """Notes and summaries, for the user."""
        return "\n".join([*self.notes, *(part.text for part in self.parts)])

    @property
    def message(self) -> str:
        """The message of a failed test."""
        return "\n".join([*self.complaints, "", self.text])

    def check(self) -> "Outcome":
        """Returns the outcome if it passed. Otherwise raises `EvaluationFailed`."""
        if not self.passed:
            raise EvaluationFailed(self.message)
        return self


def _remedy(part: Part) -> str:
    """Returns the beginning of the advice for failed rows. If only the scoring function failed,
    rows are scored again without a flag once the function is corrected."""
    final = [root for root in part.results.roots if root.permanent]
    if all(root.phase == "scoring" and root.cause == Cause.CODE for root in final):
        return "correct the function and run it again, or, where it is right, add"
    return "once the reason is gone, add"


class EvaluationFailed(AssertionError):
    """Raised when the score is below the threshold, or rows failed."""
