"""Scorers of text: `Exact`, `Contains`, `Regex` and `MultipleChoice`."""

import re
from collections.abc import Iterable

from holdfast.engine.scoring.scorer import Score, shown
from holdfast.records.errors import UsageError
from holdfast.scorers.answers import ReadyScorer, answer_in, check_pattern, scored, texts_of

NEAR = 30
"""How many characters behind the word "answer" are searched for a choice."""
_BETWEEN = r"(?:[ \t,/&()*\[\]]|\b(?:and|or|perhaps|maybe)\b)+"
"""What may stand between two labels of one answer: "B, C", "B (or maybe C)"."""
_OPEN = re.compile(r"/|\b(?:or|perhaps|maybe)\b")
"""Matches what leaves open which of several labels is chosen."""


class Exact(ReadyScorer, frozen=True):
    """The reward is 1 if the answer equals the ground truth. White space around both is ignored.

    `answer` is a regular expression. Its last match in the reply is the answer, or the first group
    of that match if there is a group. Without `answer`, the whole reply is the answer. If the
    ground truth is a list, one equal text is enough.
    """

    IS_ITS_IDENTITY = True
    answer: str = ""
    ignore_case: bool = False

    def wanted(self, ground_truth: object) -> list[str]:
        return texts_of(ground_truth, scorer="Exact")

    def score(self, reply: str, wanted: list[str]) -> Score:
        answer = answer_in(reply, self.answer)
        return scored(answer is not None and _is_in(answer, wanted, self.ignore_case), answer)


def _is_in(answer: str, texts: list[str], ignore_case: bool) -> bool:
    if ignore_case:
        return answer.casefold() in [text.casefold() for text in texts]
    return answer in texts


class Contains(ReadyScorer, frozen=True):
    """The reward is 1 if the reply contains the ground truth as whole words. For example, "142"
    does not contain 42.

    If the ground truth is a list, one contained text is enough. With `all`, the reward is the share
    of the texts that the reply contains.
    """

    IS_ITS_IDENTITY = True
    ignore_case: bool = False
    all: bool = False

    def wanted(self, ground_truth: object) -> list[str]:
        return texts_of(ground_truth, scorer="Contains")

    def score(self, reply: str, wanted: list[str]) -> Score:
        flags = re.IGNORECASE if self.ignore_case else 0
        held = [text for text in wanted if re.search(_as_words(text), reply, flags)]
        return scored(len(held) / len(wanted) if self.all else bool(held), ", ".join(held) or None)


def _as_words(text: str) -> str:
    """Returns a pattern that matches the text, but not within a word or a number. For example,
    neither 1.42 nor 42.5 contains 42."""
    return rf"(?<!\w)(?<!\d[.,]){re.escape(text)}(?!\w)(?![.,]\d)"


class Regex(ReadyScorer, frozen=True):
    """The reward is 1 if the regular expression matches somewhere in the reply.

    `pattern` is the expression. Without it, the task's ground truth is the expression.
    """

    IS_ITS_IDENTITY = True
    pattern: str = ""

    def score(self, reply: str, wanted: str) -> Score:
        match = re.search(wanted, reply)
        return scored(match is not None, match[0] if match else None)

    def wanted(self, ground_truth: object) -> str:
        if self.pattern:
            return self.pattern
        if not isinstance(ground_truth, str) or not ground_truth:
            raise UsageError(
                "Regex() takes the ground_truth as its regular expression, which is not text: "
                f"{shown(ground_truth)}; or write Regex(PATTERN)"
            )
        check_pattern("the ground_truth of Regex()", ground_truth)
        return ground_truth


class MultipleChoice(ReadyScorer, frozen=True):
    """The reward is 1 if the reply chooses the right one of several labelled choices.

    The choice is the label after the last "answer" in the reply ("The answer is B"). If no label
    follows that word, the choice is the only label in the reply. A reply that names several labels,
    or leaves the choice open ("B or C"), has chosen none. `labels` has one character for each
    label. The ground truth is a label, or the number of a choice, counted from 0. If it is a list,
    the reply has to choose all of its labels ("A and C"), and no other. `answer` works as in
    `Exact`.
    """

    IS_ITS_IDENTITY = True
    labels: str = "ABCD"
    answer: str = ""
    ignore_case: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.labels or len(set(self._plain(self.labels))) < len(self.labels):
            raise UsageError(
                f"MultipleChoice: labels are different characters, not {self.labels!r}"
            )

    def score(self, reply: str, wanted: str) -> Score:
        chosen = self._ordered(self._chosen(reply))
        return scored(chosen == wanted, ", ".join(chosen) or None)

    def _chosen(self, reply: str) -> list[str]:
        """Returns the labels that the reply chooses, or an empty list if it leaves the choice
        open."""
        reply = self._plain(answer_in(reply, self.answer) or "" if self.answer else reply)
        label = rf"(?<![\w'])[{re.escape(self._plain(self.labels))}](?![\w'])"
        several = re.compile(rf"{label}(?:{_BETWEEN}{label})*")
        behind = [
            match[0]
            for word in re.finditer(r"(?i)answer", reply)
            if (match := several.search(reply, word.end(), word.end() + NEAR))
        ]
        choices = behind[-1:] or several.findall(reply)
        is_open = len(set(choices)) != 1 or _OPEN.search(choices[0])
        return [] if is_open else re.findall(label, choices[0])

    def _plain(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text

    def _ordered(self, labels: Iterable[object]) -> str:
        plain = {self._plain(str(label)) for label in labels}
        return "".join(label for label in self.labels if self._plain(label) in plain)

    def wanted(self, ground_truth: object) -> str:
        listed = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
        numbers = dict(enumerate(self.labels))
        labels = {numbers.get(each, each) if type(each) is int else str(each) for each in listed}
        ordered = self._ordered(labels)
        if not ordered or len(ordered) < len(labels):
            raise UsageError(
                f"MultipleChoice wants a ground_truth that is one of {', '.join(self.labels)}, the "
                f"number of one, or a list of them, not {shown(ground_truth)}; write other labels: "
                "MultipleChoice('XYZ')"
            )
        return ordered
