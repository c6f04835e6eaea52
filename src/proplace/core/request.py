"""What a caller wants of the counterfactuals of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from proplace.core.errors import OptionError
from proplace.core.options import integer, not_negative, one_of
from proplace.core.text import short

DEFAULT_GAP = 0.01
DEFAULT_TIME_LIMIT = 10.0
"""Seconds per person, in the library and on the command line."""

Preference = Literal["nearest", "sparse"]


@dataclass(frozen=True)
class Request:
    """One request: the target class, and what makes a counterfactual a good one.

    Attributes
    ----------
    target
        Number of the target class.
    count
        Largest number of alternatives per person.
    prefer
        ``"nearest"``: the smallest distance. ``"sparse"``: few changed features.
    max_changes
        Largest number of changed features; None for any number.
    typical
        True to return typical points only if there are any, False to search without that filter,
        None to filter sparse requests and restricted people.
    gap
        Relative optimality gap at which a search ends, between 0 and 1.
    """

    target: int
    count: int = 1
    prefer: Preference = "nearest"
    max_changes: int | None = None
    typical: bool | None = None
    gap: float = DEFAULT_GAP

    def __post_init__(self) -> None:
        integer("count", self.count)
        one_of("prefer", self.prefer, ("nearest", "sparse"))
        if self.max_changes is not None:
            integer("max_changes", self.max_changes)
        if self.typical not in (None, True, False):
            raise OptionError(
                f"typical must be True, False or None, not {short(self.typical)}",
                name="typical",
                value=self.typical,
            )
        if not_negative("gap", self.gap) > 1.0:
            raise OptionError(
                f"gap must be a number between 0 and 1, such as 0.01, not {short(self.gap)}",
                name="gap",
                value=self.gap,
            )

    @property
    def sparse(self) -> bool:
        """True if the number of changed features matters."""
        return self.prefer == "sparse" or self.max_changes is not None

    @property
    def description(self) -> str:
        """The wishes for the changes in words; empty if the distance alone matters."""
        parts = ["few changes"] if self.prefer == "sparse" else []
        if self.max_changes is not None:
            parts.append(f"at most {self.max_changes} changes")
        if self.typical is not None:
            parts.append("typical points" if self.typical else "atypical points too")
        return ", ".join(parts)
