"""The request: properties that a caller wants of the counterfactuals of one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

from proplace.core.errors import OptionError
from proplace.core.options import finite, integer, not_negative, one_of
from proplace.core.text import listing, num, short

DEFAULT_GAP = 0.01
DEFAULT_TIME_LIMIT = 10.0
"""Seconds per person, in the library and on the command line."""

Preference = Literal["nearest", "sparse"]
Range = tuple[float | None, float | None]
"""Lower and upper end in original units, or None for an end that the request does not change."""
Tolerance = float | tuple[float, float]
"""Tolerance of a feature in original units: the same both ways, or a pair (less, more)."""


@dataclass(frozen=True)
class Request:
    """One request: the target class and the preferences for counterfactuals.

    Names are those of features. They are compared with the features of a model by
    :meth:`proplace.schema.Schema.restrict`.

    Attributes
    ----------
    target
        Number of the target class.
    count
        Largest number of alternatives per person.
    prefer
        ``"nearest"``: the smallest distance. ``"sparse"``: few changed features.
    max_changes
        Largest number of changed features, or None for no limit.
    immutable
        Features that may not change.
    increasing, decreasing
        Features that may not decrease, and features that may not increase.
    ranges
        Allowed range of a number, in original units.
    tolerance
        Tolerance in original units: the miss of the counterfactual up to which a person must still
        be accepted. A number, or a pair (less, more).
    typical
        True to return typical points if there are any, False to search without that filter, None to
        filter sparse requests and restricted people.
    gap
        Relative optimality gap at which a search ends, between 0 and 1.

    Examples
    --------
    >>> request = Request(1, immutable=["age"], ranges={"income": (0, 90_000)})
    >>> request.description
    'age immutable, income 0 to 90000'
    >>> Request.from_dict(request.to_dict()) == request
    True
    """

    target: int
    count: int = 1
    prefer: Preference = "nearest"
    max_changes: int | None = None
    immutable: Sequence[str] = ()
    increasing: Sequence[str] = ()
    decreasing: Sequence[str] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict)
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    typical: bool | None = None
    gap: float = DEFAULT_GAP

    def __post_init__(self) -> None:
        integer("count", self.count)
        one_of("prefer", self.prefer, ("nearest", "sparse"))
        if self.max_changes is not None:
            integer("max_changes", self.max_changes)
        for name in ("immutable", "increasing", "decreasing"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        for name in self.increasing:
            if name in self.decreasing:
                raise OptionError(
                    f"{name!r} is in increasing and in decreasing. Make a feature that may neither rise "
                    "nor fall immutable",
                    name="increasing",
                    value=name,
                )
        object.__setattr__(self, "ranges", _ranges(self.ranges))
        object.__setattr__(self, "tolerance", tolerance_pairs(self.tolerance))
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
        """True if the number of changed features is minimised."""
        return self.prefer == "sparse" or self.max_changes is not None

    @property
    def restrictions(self) -> dict[str, Any]:
        """The keywords of :meth:`proplace.schema.Schema.restrict`."""
        names = ("immutable", "increasing", "decreasing", "ranges")
        return {name: getattr(self, name) for name in names}

    @property
    def misses(self) -> Mapping[str, tuple[float, float]]:
        """The tolerance as pairs: the allowed miss below and above, per feature."""
        return cast("Mapping[str, tuple[float, float]]", self.tolerance)

    @property
    def description(self) -> str:
        """Preferences for the changes as a phrase, or empty if only the distance matters."""
        parts = ["few changes"] if self.prefer == "sparse" else []
        if self.max_changes is not None:
            parts.append(f"at most {self.max_changes} changes")
        for option in ("immutable", "increasing", "decreasing"):
            names = getattr(self, option)
            parts += [f"{', '.join(names)} {option}"] if names else []
        parts += [f"{name} {_in_words(ends)}" for name, ends in self.ranges.items()]
        parts += [f"{name} {_missed(pair)}" for name, pair in self.misses.items()]
        if self.typical is not None:
            parts.append("typical points" if self.typical else "atypical points too")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can hold."""
        facts = dataclasses.asdict(self)
        for name in ("immutable", "increasing", "decreasing"):
            facts[name] = list(facts[name])
        for name in ("ranges", "tolerance"):
            facts[name] = {feature: list(pair) for feature, pair in facts[name].items()}
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        """Read the fields of :meth:`to_dict`."""
        known = [each.name for each in dataclasses.fields(cls)]
        if not isinstance(facts, Mapping) or set(facts) != set(known):
            raise OptionError(f"a request has the fields {listing(known)}", name="request")
        return cls(**facts)


def _names(option: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return feature names without repetition, or raise if they are not a list of names."""
    if isinstance(given, (str, bytes)):
        raise OptionError(
            f"{option} must be a list of names, not one text. Write {option}=[{given!r}]",
            name=option,
            value=given,
        )
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"{option} must be a list of names of features, such as ['age'], not {short(given)}",
            name=option,
            value=given,
        )
    return tuple(dict.fromkeys(str(name) for name in names))


def _ranges(given: Mapping[str, Range]) -> dict[str, Range]:
    if not isinstance(given, Mapping):
        raise OptionError(
            "ranges must give two ends by feature name, in original units, such as "
            f"{{'income': (0, 90_000)}}, not {short(given)}",
            name="ranges",
            value=given,
        )
    return {str(name): _ends(name, ends) for name, ends in given.items()}


def _ends(name: str, given: Range) -> Range:
    """Return the ends of the range of a feature as plain numbers."""
    pair = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(pair) != 2 or pair == (None, None):
        raise OptionError(
            f"the range of {name!r} must be a pair of its lower and upper end, such as (0, 90_000) or "
            f"(0, None), not {short(given)}",
            name="ranges",
            value=given,
        )
    low, high = (None if end is None else finite(f"the range of {name!r}", end) for end in pair)
    if low is not None and high is not None and not low < high:
        raise OptionError(
            f"the range of {name!r} must have a lower end below its upper end, not {num(low)} and "
            f"{num(high)}. To keep the value of a feature, make it immutable",
            name="ranges",
            value=given,
        )
    return low, high


def _missed(pair: tuple[float, float]) -> str:
    """Describe the tolerance of a feature."""
    less, more = pair
    if less == more:
        return f"{num(less)} less or more"
    parts = [f"{num(t)} {word}" for t, word in ((less, "less"), (more, "more")) if t]
    return " or ".join(parts) or "met exactly"


def tolerance_pairs(given: Mapping[str, Tolerance]) -> dict[str, tuple[float, float]]:
    """Return the allowed miss of each feature below and above, as plain numbers."""
    if not isinstance(given, Mapping):
        raise OptionError(
            "tolerance must give numbers or pairs (less, more) by feature name, in original units, such "
            f"as {{'income': 500, 'age': (0, 1)}}, not {short(given)}",
            name="tolerance",
            value=given,
        )
    return {str(name): _pair(name, missed) for name, missed in given.items()}


def _pair(name: str, given: object) -> tuple[float, float]:
    """Return the allowed miss of a feature below and above, or raise if it is neither form."""
    both = isinstance(given, Sequence) and not isinstance(given, str)
    pair: tuple[Any, ...] = tuple(cast("Sequence[Any]", given)) if both else (given, given)
    try:
        less, more = (not_negative(f"the tolerance of {name!r}", t) for t in pair)
    except (OptionError, ValueError):
        raise OptionError(
            f"the tolerance of {name!r} must be a number of its unit, 0 or more, or a pair such as "
            f"(0, 1) for 0 less and 1 more, not {short(given)}",
            name="tolerance",
            value=given,
        ) from None
    return less, more


def _in_words(ends: Range) -> str:
    """Describe the range of a feature."""
    low, high = ends
    if low is None or high is None:
        return f"at least {num(low)}" if low is not None else f"at most {num(high or 0.0)}"
    return f"{num(low)} to {num(high)}"
