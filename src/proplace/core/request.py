"""The wishes of a caller for the counterfactuals of one call."""

from __future__ import annotations

from dataclasses import dataclass

from proplace.core.errors import OptionError
from proplace.core.options import integer, not_negative
from proplace.core.text import short

DEFAULT_GAP = 0.01
DEFAULT_TIME_LIMIT = 10.0
"""Seconds per person, in the library and on the command line."""


@dataclass(frozen=True)
class Request:
    """One request: the class that is wanted, how many alternatives, and how near to the optimum.

    Attributes
    ----------
    target
        Number of the target class.
    count
        Largest number of alternatives per person.
    gap
        Relative optimality gap at which a search ends, between 0 and 1.
    """

    target: int
    count: int = 1
    gap: float = DEFAULT_GAP

    def __post_init__(self) -> None:
        integer("count", self.count)
        if not_negative("gap", self.gap) > 1.0:
            raise OptionError(
                f"gap must be a number between 0 and 1, such as 0.01, not {short(self.gap)}",
                name="gap",
                value=self.gap,
            )
