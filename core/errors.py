"""Every error that a user can meet.

A message quotes what the user wrote, says which numbers are wrong and what would work (it never needs the
traceback). Exit status: 2 for input that is wrong, 1 for a question whose answer is no. What only our own code
can break is an ``assert``, not one of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from math import isqrt


class PartitaError(ValueError):
    """Base of all errors that a user can meet; ``exit_status`` is what the command line returns."""

    exit_status = 2


class InputError(PartitaError):
    """A file, an option or a value that can't be used as it is."""


class ModelError(PartitaError):
    """A model that can't be captured, or a value in its configuration that can't be."""


class ClusterError(PartitaError):
    """A cluster that doesn't exist or can't be built."""


class PlanError(PartitaError):
    """A plan, or a decision held by the user, that this model, cluster or target can't carry out."""


class Infeasible(PartitaError):
    """The question was right and the answer is no: nothing fits. Carries the reasons, one sentence each."""

    exit_status = 1

    def __init__(self, message: str, reasons: Sequence[str] = ()):
        super().__init__(message)
        self.reasons = tuple(reasons)


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or was caused by it: what compiled code makes of it is a chain of other errors."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def nearest(word: str, known: Iterable[str]) -> str:
    """``" (did you mean X?)"`` for the nearest known words, or the list of all when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {' or '.join(repr(name) for name in close)}?"
    return f" Known: {', '.join(names)}." if names else ""


def listed(numbers: Iterable[object]) -> str:
    """``1, 2, 3 and 6`` for a message."""
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, smallest first; fast for batches in the millions."""
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})
