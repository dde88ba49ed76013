"""How an answer is scored: from 0 (wrong) to 1 (right), best over the answers that count."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ecokv_local.errors import UsageError

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MARKS = re.compile(r"[^\w\s.%-]")
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")
_ANLS_THRESHOLD = 0.5
_RELATIVE_ERROR = 0.05


def normalise(text: str) -> str:
    """Lower case, without articles, punctuation and double spaces."""
    text = _MARKS.sub(" ", text.casefold()).strip(" .\t\n")
    return " ".join(_ARTICLES.sub(" ", text).split()).rstrip(".")


def exact(said: str, answer: str) -> float:
    """Equal after ``normalise``."""
    return float(normalise(said) == normalise(answer))


def contains(said: str, answer: str) -> float:
    """The answer stands in what was said, as whole words."""
    wanted = re.escape(normalise(answer))
    return float(re.search(rf"(?<!\w){wanted}(?!\w)", normalise(said)) is not None)


def anls(said: str, answer: str) -> float:
    """Normalised Levenshtein similarity, 0 below one half (Biten et al. 2019, DocVQA)."""
    a, b = normalise(said), normalise(answer)
    longest = max(len(a), len(b))
    similarity = 1.0 if longest == 0 else 1 - levenshtein(a, b) / longest
    return similarity if similarity >= _ANLS_THRESHOLD else 0.0


def levenshtein(a: str, b: str) -> int:
    """Edits (insert, delete, replace) between two texts."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def relaxed(said: str, answer: str) -> float:
    """Numbers within 5 %, anything else exact (Methani et al. 2020, ChartQA)."""
    wanted, found = _number(answer), _number(said)
    if wanted is None or found is None:
        return exact(said, answer)
    return float(abs(found - wanted) <= _RELATIVE_ERROR * abs(wanted))


def _number(text: str) -> float | None:
    """The only number of a text; None if there is none, or several."""
    found = _NUMBER.findall(text)
    return float(found[0].replace(",", "")) if len(found) == 1 else None


def choice(said: str, answer: str) -> float:
    """The letter of an option: the first one that stands alone in what was said."""
    found = re.search(r"(?<!\w)([A-Za-z])(?!\w)", said)
    return float(found is not None and found[1].casefold() == answer.strip().casefold())


METRICS: dict[str, Callable[[str, str], float]] = {
    "exact": exact,
    "contains": contains,
    "anls": anls,
    "relaxed": relaxed,
    "choice": choice,
}


def score(metric: str, said: str, answers: Sequence[str]) -> float:
    """The best score over ``answers``. Raises UsageError for an unknown metric."""
    if metric not in METRICS:
        raise UsageError(
            f"metric {metric!r} does not exist", hint=f"choose from {', '.join(METRICS)}"
        )
    return max(METRICS[metric](said, answer) for answer in answers)
