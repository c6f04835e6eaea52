"""Claims: one for each changed feature, the only source of text about a change.

A claim holds the value of a feature today, its value in the counterfactual, and the guaranteed range
(``Explanation.guaranteed_ranges``), which is proved jointly for all features. Sentences, tables,
letters, pages and pictures are generated from claims. The text never exceeds the proof: both ends of an
interval are rounded inwards to the written digits, in decimal arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from proplace.core.text import visible
from proplace.explain.results import CERTIFIABLE
from proplace.schema.features import Binary, Continuous, Ordinal
from proplace.schema.values import amount, as_json, decimals, gap, number

if TYPE_CHECKING:
    from proplace.explain.results import Explanation
    from proplace.schema.rules import AnyFeature

_DIGITS = 6  # significant digits of an end of a feature without steps
_ALIKE = Decimal("1.5")  # largest ratio of the two sides of an interval around a value


@dataclass(frozen=True)
class Claim:
    """One changed feature with its proved values.

    Attributes
    ----------
    name, title
        Name and title of the feature.
    before, after
        Its value today and in the counterfactual, in original units.
    low, high
        The proved interval, rounded inwards. None if the value alone is proved.
    direction
        ``"up"`` or ``"down"`` for numbers, ``"switch"`` for names.
    to_end
        True if the interval ends with the declared range of the feature, in the direction of the
        change. A range drafted from a table has no declared end.
    size
        The largest change of its encoded columns.
    feature
        The feature, None if it is unknown.
    missing
        True if the person's cell was missing. ``before`` is then the imputed value.
    """

    name: str
    title: str
    before: Any
    after: Any
    low: float | None = None
    high: float | None = None
    direction: Literal["up", "down", "switch"] = "switch"
    to_end: bool = False
    size: float = 0.0
    feature: AnyFeature | None = None
    missing: bool = False

    @property
    def goal(self) -> str:
        """The new value of the feature, or the proved values ("at least ...")."""
        return visible(self._range() or format_value(self.feature, self.after))

    @property
    def was(self) -> str:
        """The value today."""
        return visible(own_value(self.feature, self.before, missing=self.missing))

    @property
    def change(self) -> str:
        """The difference of a number. Empty for names and for more than one value."""
        if self.low is not None:
            return ""
        return visible(difference(self.feature, self.before, self.after))

    @property
    def interval(self) -> str:
        """Both ends of the proved interval. Empty if the value alone is proved."""
        if self.low is None or self.high is None:
            return ""
        return visible(format_interval(self._number, _decimal(self.low), _decimal(self.high)))

    @property
    def is_cut(self) -> bool:
        """True if the goal is one value with more digits than are written."""
        return self.low is None and self.goal.count("…") > 0 and is_amount(self.feature, self.after)

    @property
    def value(self) -> str:
        """The value in the counterfactual with all its digits."""
        return visible(format_value(self.feature, self.after))

    @property
    def declared(self) -> str:
        """The range of a number, both ends: "0 to 90,000 dollars"."""
        return visible(format_range(self._number, *_range_of(self._number)))

    @property
    def phrase(self) -> str:
        """The change as a part of a sentence: "debt of at most 37% (today: 60%)"."""
        (goal, old), title = self.pair(), display_title(self.feature, self.title)
        if isinstance(self.feature, Binary) and is_yes_or_no(self.feature):
            words = f"the answer {goal} to {title}"
        elif goal.startswith("between ") or not _is_number(self.after):
            words = f"{title} {goal}"
        else:
            words = f"{title} of {goal}"
        return visible(f"{words} (today: {old})")

    def pair(self) -> tuple[str, str]:
        """Return the goal with its whole unit and the value today in short."""
        new, old = format_pair(self.feature, self.before, self.after)
        return self._range() or new, f"missing, the model uses {old}" if self.missing else old

    def to_dict(self) -> dict[str, Any]:
        """Return the claim as plain values for JSON."""
        return {
            "from": as_json(self.before),
            "to": as_json(self.after),
            "unit": getattr(self.feature, "unit", None),
            "low": self.low,
            "high": self.high,
            "direction": self.direction,
            "to_end": self.to_end,
        }

    @property
    def _number(self) -> Continuous | Ordinal:
        return cast("Continuous | Ordinal", self.feature)

    def _range(self) -> str:
        """Write the proved interval in words. Empty if the value alone is proved."""
        if self.low is None or self.high is None:
            return ""
        low, high = _decimal(self.low), _decimal(self.high)
        if self.to_end:
            words, end = ("at least", low) if self.direction == "up" else ("at most", high)
            return f"{words} {_amount(self._number, end)}"
        return _around(self._number, _decimal(self.after), low, high)


def claims_of(e: Explanation) -> tuple[Claim, ...]:
    """Return a claim for each feature that a counterfactual changes, in the order of the table."""
    features = {} if e.setting is None else e.setting.schema.by_name
    sure = e.setting is not None and is_certified(e)
    claims = []
    for key, (before, after) in e.changes_by_feature.items():
        name = str(key)
        feature = features.get(name)
        ends = e.guaranteed_ranges.get(name) if sure else None
        low, high, to_end = proved_values(feature, before, after, ends)
        rises = is_amount(feature, before) and is_amount(feature, after)
        claims.append(
            Claim(
                name,
                visible(name if feature is None else feature.title),
                before,
                after,
                low,
                high,
                ("up" if before < after else "down") if rises else "switch",
                to_end,
                _size(e, name),
                feature,
                name in e.imputed,
            )
        )
    return tuple(claims)


def is_certified(e: Explanation) -> bool:
    """Test if every network of the shift set, or of a set of one, gives the target class."""
    if e.certificate is not None and e.certificate.verdict != "robust":
        return False
    return e.status in CERTIFIABLE and e.margin >= 0.0


def proved_values(
    feature: AnyFeature | None, before: Any, after: Any, ends: tuple[float, float] | None
) -> tuple[float | None, float | None, bool]:
    """Return the proved values of a changed number, and True if they reach its declared end.

    Parameters
    ----------
    feature, before, after
        A feature, its value today and in the counterfactual.
    ends
        The proved interval, in original units.

    Examples
    --------
    >>> income = Continuous("income", 0, 200_000, step=500, unit="dollars")
    >>> proved_values(income, 48_000, 52_000, (51_999.5, 200_000))
    (52000.0, 200000.0, True)
    """
    nothing = None, None, False
    if ends is None or not is_amount(feature, after) or not is_amount(feature, before):
        return nothing
    known = cast("Continuous | Ordinal", feature)
    low, high = _inward(known, *ends)
    least, most = _range_of(known)
    if math.isnan(low) or math.isnan(high) or not ends[0] <= after <= ends[1]:
        return nothing
    rises = before < after
    to_end = ends[1] >= most if rises else ends[0] <= least
    if low <= _decimal(before) <= high:
        # The person's own value is proved too. The claim must not include the opposite direction.
        if not to_end:
            return nothing
        value = _inward(known, after, after)
        low, high = (value[0], high) if rises else (low, value[1])
    if low >= high:
        return nothing
    return float(low), float(high), to_end


def _around(feature: Continuous | Ordinal, value: Decimal, low: Decimal, high: Decimal) -> str:
    """Write an interval within the range: the value with its tolerance, or both ends."""
    middle = _rounded(feature, value, ROUND_HALF_EVEN)
    below, above = middle - low, high - middle
    both = f"between {_amount(feature, low, unit=False)} and {_amount(feature, high)}"
    if min(below, above) < 0:
        return both
    room = _rounded(feature, min(below, above), ROUND_FLOOR, digits=2)
    if room > 0 and max(below, above) <= _ALIKE * room:
        more = gap(feature, float(room), decimals(feature))
        bare = (feature.unit or "").startswith("%") or not more[:1].isdigit()
        miss = more if bare else more.partition(" ")[0]
        return f"{_amount(feature, middle)}, give or take {miss}"
    return both


def format_range(feature: Continuous | Ordinal, low: float, high: float) -> str:
    """Write an interval whose ends are rounded inwards.

    Examples
    --------
    >>> format_range(Continuous("age", 18, 90, step=1, unit="years"), 18.0, 90.0)
    '18 to 90 years'
    """
    return format_interval(feature, *_inward(feature, low, high))


def format_room(feature: AnyFeature | None, value: Any, ends: tuple[float, float]) -> str:
    """Write the guaranteed range of an unchanged number. Empty if it may not change.

    Examples
    --------
    >>> format_room(Continuous("age", 18, 90, step=1, unit="years"), 38, (36.5, 40))
    '37 to 40 years'
    """
    room = proved_room(feature, value, ends)
    if room is None:
        return ""
    return format_interval(cast("Continuous | Ordinal", feature), *map(_decimal, room))


def proved_room(
    feature: AnyFeature | None, value: Any, ends: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the guaranteed range of an unchanged number. None if it may not change."""
    if not is_amount(feature, value):
        return None
    low, high = _inward(cast("Continuous | Ordinal", feature), *ends)
    if math.isnan(low) or math.isnan(high) or not low <= _decimal(value) <= high or low == high:
        return None
    return float(low), float(high)


# -- values ----------------------------------------------------------------------------------------


def format_value(feature: AnyFeature | None, value: Any, *, quotes: bool = False) -> str:
    """Write one value for people. "…" stands for further digits.

    Examples
    --------
    >>> format_value(Binary("cosigner"), 1), format_value(None, 0.25)
    ('yes', '0.25')
    >>> format_value(None, "cook", quotes=True)
    '“cook”'
    """
    if is_amount(feature, value):
        return amount(cast("Continuous | Ordinal", feature), value)
    if isinstance(feature, Binary) and is_yes_or_no(feature):
        return "yes" if value == feature.values[1] else "no"
    if isinstance(value, str) or not _is_number(value):
        return f"“{value}”" if quotes else str(value)
    return number(value)


def format_pair(feature: AnyFeature | None, before: Any, after: Any) -> tuple[str, str]:
    """Write the new value of a feature with its whole unit, and the old one in short.

    Examples
    --------
    >>> from proplace.schema import Categorical
    >>> format_pair(Continuous("debt", 0, 100, step=1, unit="years"), 38, 31)
    ('31 years', '38')
    >>> format_pair(Categorical("job", ["cook", "clerk"]), "cook", "clerk")
    ('“clerk”', '“cook”')
    """
    if is_amount(feature, before):
        feature = cast("Continuous | Ordinal", feature)
        texts = amount(feature, after), amount(feature, before, unit=False)
        if amount(feature, after, unit=False) != texts[1]:
            return texts
        # both values have the same written digits
        return amount(feature, after, exact=True), amount(feature, before, unit=False, exact=True)
    return format_value(feature, after, quotes=True), format_value(feature, before, quotes=True)


def own_value(feature: AnyFeature | None, value: Any, *, missing: bool) -> str:
    """Write a person's value. For a missing cell, write the imputed value."""
    text = format_value(feature, value)
    return f"missing, the model uses {text}" if missing else text


def difference(feature: AnyFeature | None, before: Any, after: Any) -> str:
    """Write the difference of a number. Empty for names.

    Examples
    --------
    >>> difference(Continuous("debt", 0, 100, step=1, unit="% of income"), 38, 31)
    '7 percentage points lower'
    >>> difference(Continuous("down payment", 0, 1e6, step=100, unit="dollars"), 0, 12000)
    '12,000 dollars higher'
    """
    if not is_amount(feature, before):
        return ""
    feature = cast("Continuous | Ordinal", feature)
    # In decimals, because 0.3 - 0.1 is not 0.2 in floats.
    size = float(abs(_decimal(after) - _decimal(before)))
    if decimals(feature) is None or float(f"{size:.{decimals(feature)}f}") != size:
        size = float(f"{size:.6g}")
    return f"{gap(feature, size, decimals(feature))} {'higher' if after > before else 'lower'}"


def format_interval(feature: Continuous | Ordinal, low: Decimal, high: Decimal) -> str:
    """Write both ends of an interval, the second with the unit."""
    if not low.is_finite() or not high.is_finite():
        words, end = ("at least", low) if low.is_finite() else ("at most", high)
        return f"{words} {_amount(feature, end)}"
    return f"{_amount(feature, low, unit=False)} to {_amount(feature, high)}"


def display_title(feature: AnyFeature | None, name: str = "") -> str:
    """Return the title of a feature, in quotes for yes or no: “owns a home”.

    ``name`` is used for an unknown feature.
    """
    if feature is None:
        return name
    if isinstance(feature, Binary) and is_yes_or_no(feature):
        return f"“{feature.title}”"
    return feature.title


def is_amount(feature: AnyFeature | None, value: Any) -> bool:
    """Test if a value of a feature is an amount rather than a name."""
    return isinstance(feature, (Continuous, Ordinal)) and _is_number(value)


def is_yes_or_no(feature: Binary) -> bool:
    """Test if the two values only state that the title of the feature does or does not apply."""
    values = tuple(feature.values)
    return values == (0, 1) or [str(v).casefold() for v in values] in (
        ["no", "yes"],
        ["false", "true"],
    )


def _is_number(value: Any) -> bool:
    # includes numbers of numpy, but a bool is a name
    return hasattr(value, "__float__") and not isinstance(value, str) and str(value) not in _BOOLS


_BOOLS = ("True", "False")


# -- inside ----------------------------------------------------------------------------------------


def _size(e: Explanation, name: str) -> float:
    """Return the largest change of the encoded columns of a feature, 1 for another category."""
    if e.setting is None or e.encoded_original is None or e.encoded_counterfactual is None:
        return 0.0
    span = e.setting.schema.span(name)
    return float(np.abs(e.encoded_counterfactual[span] - e.encoded_original[span]).max())


def _inward(feature: Continuous | Ordinal, low: float, high: float) -> tuple[Decimal, Decimal]:
    """Round both ends inwards to the written digits."""
    return (
        _rounded(feature, _decimal(low), ROUND_CEILING),
        _rounded(feature, _decimal(high), ROUND_FLOOR),
    )


def _rounded(
    feature: Continuous | Ordinal, value: Decimal, how: str, digits: int = _DIGITS
) -> Decimal:
    """Round a number to the decimals of its feature, or to some digits without any."""
    if not value.is_finite() or not value:
        return value
    places = decimals(feature)
    if places is None:
        places = digits - 1 - value.adjusted()
        places = max(places, 3) if digits == _DIGITS else places
    return value.quantize(Decimal(1).scaleb(-places), rounding=how)


def _range_of(feature: Continuous | Ordinal) -> tuple[float, float]:
    """Return the declared ends of a feature. A drafted range has none."""
    if isinstance(feature, Ordinal):
        return feature.numbers[0], feature.numbers[-1]
    least, most = feature.declared
    return -math.inf if least is None else least, math.inf if most is None else most


def _decimal(value: Any) -> Decimal:
    return Decimal(repr(float(value)))


def _amount(feature: Continuous | Ordinal, value: Decimal, *, unit: bool = True) -> str:
    return amount(feature, float(value), unit=unit)
