r"""Compare a returning person with their promise, and ask the current model.

A promise is proved for a box of encoded inputs and stated in original units: each number may lie in an
interval (its guaranteed range or tolerance); everything else must equal the counterfactual. With the
cells :math:`v_j` of the person as the schema reads them and their codes :math:`e`, the promise is met

- *exactly*, if :math:`e` is the counterfactual, bit for bit;
- *within tolerance*, if :math:`v_j` lies in the interval of each number and
  :math:`\underline{e} \le e \le \overline{e}` in the box that is proved.

Neither condition follows from the other: the proof may cover more than was promised, and nothing counts
as promised that is not proved. Then the current model decides between the verdicts:

=============  ============================================  =================
promise        the model accepts                             the model refuses
=============  ============================================  =================
met            ``met_exactly`` or ``met_within_tolerance``   ``broken``
not met        ``accepted_anyway``                           ``not_met``
=============  ============================================  =================

If the model accepts, the promise is redeemed and closed. A refusal is recorded too, and the promise
stays open.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from proplace.certification import canonical
from proplace.core.errors import LedgerError
from proplace.explain.claims import display_title, format_value
from proplace.ledger.chain import commitment, new_salt
from proplace.ledger.in_use import decide, encoded, one_row
from proplace.ledger.issuing import personal_parts
from proplace.schema.features import Continuous
from proplace.schema.values import amount, as_json, decimals, filled, gap, is_missing, numbers

if TYPE_CHECKING:
    import pandas as pd

    from proplace.core.network import Array
    from proplace.ledger.database import Writer
    from proplace.ledger.promise import Promise
    from proplace.ledger.terms import Document
    from proplace.loaders.model import Model
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label

Verdict = Literal["met_exactly", "met_within_tolerance", "accepted_anyway", "not_met", "broken"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Missing:
    """A feature that is not what was promised.

    Attributes
    ----------
    feature
        Its name.
    value
        What it is.
    low, high
        The ends of what the promise asks for: both are the answer where that alone is promised. For
        categories both are the label.
    short
        By how much the number would have to rise, or to fall (below 0), to lie in the interval; None
        for categories.
    words
        The same in words.
    """

    feature: str
    value: Any
    low: Any
    high: Any
    short: float | None
    words: str


@dataclass(frozen=True)
class Redemption:
    """What became of a promise when the person came back.

    Attributes
    ----------
    promise, person
        Number of the promise, and the id of the person.
    verdict
        ``met_exactly`` or ``met_within_tolerance``: the promise is met and the current model accepts.
        ``accepted_anyway``: not met, but accepted. ``not_met``: not met, and refused. ``broken``: met,
        and refused.
    met
        ``met_exactly``, ``met_within_tolerance`` or None, whatever the current model decides.
    accepted
        Whether the model in use accepts.
    label, target
        The class that it gives, and the one that was promised.
    missing
        Features that are not as promised.
    model
        Name of the model in use.
    near
        Whether the row lies so near to a boundary of the model that rounding decides; the model
        itself, given as ``model=``, tells.
    day
        The day on which the person came.
    entry
        Number of the entry in the ledger; None where nothing was written.
    """

    promise: int
    person: str
    verdict: Verdict
    met: Literal["met_exactly", "met_within_tolerance"] | None
    accepted: bool
    label: Label
    target: Label
    missing: tuple[Missing, ...]
    model: str
    near: bool
    day: str
    entry: int | None = None

    @property
    def closes(self) -> bool:
        """Whether the promise is redeemed by it; else it stays open."""
        return self.accepted

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {
            "promise": self.promise,
            "person": self.person,
            "verdict": self.verdict,
            "met": self.met,
            "accepted": self.accepted,
            "class": self.label,
            "promised": self.target,
            "missing": [vars(one) for one in self.missing],
            "model": self.model,
            "near": self.near,
            "day": self.day,
            "entry": self.entry,
            "words": str(self),
        }

    def __str__(self) -> str:
        """What it is, in a few sentences."""
        model = f"the model in use ({self.model})"
        how = "exactly" if self.met == "met_exactly" else "within what was promised"
        if self.verdict == "broken":
            said = (
                f"Promise {self.promise} is BROKEN: it is met {how}, and {model} gives class "
                f"{self.label} instead of {self.target}."
            )
        elif self.met is not None:
            said = f"Promise {self.promise} is met {how}, and {model} accepts."
        else:
            lacks = "; ".join(one.words for one in self.missing)
            end = f"and {model} gives class {self.label}, not {self.target}."
            if self.accepted:
                end = f"but {model} accepts all the same."
            said = f"Promise {self.promise} is not met as promised ({lacks}), {end}"
        if self.near:
            said += (
                " This is so near to a boundary of the model that rounding may decide: give the model "
                "itself as model=."
            )
        return said


def check_open(promise: Promise, into: list[int], day: str) -> None:
    """Refuse what can no longer be redeemed, or not yet, and say what can be done."""
    number, state = promise.id, promise.state
    if state == "expired":
        raise LedgerError(
            f"promise {number} held until {promise.expires}; if the person came by then, give that day "
            "(as_of), else explain the person again and issue a new promise",
            name="promise",
            value=number,
        )
    why = {
        "redeemed": "was redeemed already; history() tells when, and how",
        "renewed": f"was renewed: redeem {' or '.join(map(str, into)) or 'the new one'} instead",
        "withdrawn": "was withdrawn; history() has the reason",
        "erased": "is of a person who was erased: nothing is known of it any more",
    }
    if state in why:
        raise LedgerError(f"promise {number} {why[state]}", name="promise", value=number)
    if day < promise.issued[:10]:
        raise LedgerError(
            f"promise {number} was issued on {promise.issued[:10]}, after {day}; give a later day",
            name="promise",
            value=number,
        )


def presented(promise: Promise, person: object, model: Model, day: str) -> tuple[Redemption, Seen]:
    """Compare what a person is now with what was promised, and ask the model in use."""
    schema = promise.terms.model.schema
    row = one_row(person, [schema, model.schema])
    codes = encoded(schema, row)
    missing = missing_of(promise, row, codes)
    met: Literal["met_exactly", "met_within_tolerance"] | None = None
    if not missing:
        met = "met_exactly" if np.array_equal(codes, _point(promise)) else "met_within_tolerance"
    said = decide(model, row, promise.target)
    verdict: Verdict
    if met is not None:
        verdict = met if said.accepted else "broken"
    else:
        verdict = "accepted_anyway" if said.accepted else "not_met"
    found = Redemption(
        promise.id,
        str(promise.person),
        verdict,
        met,
        said.accepted,
        as_json(said.label),
        promise.target,
        missing,
        model.origin.name,
        said.near,
        day,
    )
    return found, Seen({name: as_json(row[name].iloc[0]) for name in row.columns}, codes)


@dataclass(frozen=True)
class Seen:
    """A person, when they came back: original units, and as the model of the promise encodes them."""

    row: dict[str, Any]
    codes: Array


def missing_of(promise: Promise, row: pd.DataFrame, codes: Array) -> tuple[Missing, ...]:
    """Features that are not as promised: outside of their interval, or of what is proved."""
    schema, point = promise.terms.model.schema, _point(promise)
    low = point if promise.low is None else promise.low
    high = point if promise.high is None else promise.high
    found = []
    for feature, span in zip(schema.features, schema.spans, strict=True):
        if np.array_equal(codes[span], point[span]):
            continue
        if not isinstance(feature, Continuous):
            found.append(_other(feature, row[feature.name].iloc[0], promise))
            continue
        value = _value(feature, row[feature.name], codes[span])
        ends = interval(promise, feature)
        proved = bool((low[span] <= codes[span]).all() and (codes[span] <= high[span]).all())
        if not (proved and ends[0] <= value <= ends[1]):
            found.append(_apart(feature, value, ends))
    return tuple(found)


def interval(promise: Promise, feature: Continuous) -> Interval:
    """Values of a number that were promised, in original units."""
    span = promise.terms.model.schema.span(feature.name)
    answer = promise.facts["answer"].get(feature.name)
    if answer is None:  # a missing cell that stays, and counts as what the model fills
        answer = feature.write_people(_point(promise)[span])[0]
    less, more = promise.terms.request.misses.get(feature.name, (0.0, 0.0))
    low, high = promise.guaranteed_ranges.get(feature.name, (answer, answer))
    return min(low, _sum(answer, -less)), max(high, _sum(answer, more))


def _point(promise: Promise) -> Array:
    assert promise.point is not None  # noqa: S101  (an open promise has one)
    return promise.point


def _value(feature: Continuous, cell: pd.Series[Any], code: Array) -> float:
    """A number as it is written, or as the schema reads it where it takes noise off."""
    value = float(numbers(filled(cell, feature.missing))[0])
    if (value - feature.offset) / feature.scale == code[0]:
        return value
    return float(feature.write_people(code)[0])


def _apart(feature: Continuous, value: float, ends: Interval) -> Missing:
    low, high = ends
    short = _sum(low, -value) if value < low else _sum(high, -value) if value > high else 0.0
    by = gap(feature, abs(short), decimals(feature))
    words = f"{feature.title} is {amount(feature, value, exact=True)}"
    words += f", promised is {_asked(feature, ends, value)}: "
    if short:
        words += f"{by} too {'little' if short > 0 else 'much'}"
    else:
        words += "at the very edge of what was proved"
    return Missing(feature.name, value, low, high, short, words)


def _asked(feature: Continuous, ends: Interval, value: float) -> str:
    low, high = ends
    if low == high:
        return amount(feature, low, exact=True)
    upper = None if feature.drafted else feature.upper
    lower = None if feature.drafted else feature.lower
    if upper is not None and high >= upper and value < low:
        return f"at least {amount(feature, low, exact=True)}"
    if lower is not None and low <= lower and value > high:
        return f"at most {amount(feature, high, exact=True)}"
    return f"{amount(feature, low, unit=False, exact=True)} to {amount(feature, high, exact=True)}"


def _other(feature: AnyFeature, cell: Any, promise: Promise) -> Missing:
    value = feature.missing if is_missing(cell) else as_json(cell)
    asked = promise.facts["answer"][feature.name]
    asked = feature.missing if asked is None else asked
    words = (
        f"{display_title(feature)} is {format_value(feature, value, quotes=True)}, promised is "
        f"{format_value(feature, asked, quotes=True)}"
    )
    return Missing(feature.name, value, asked, asked, None, words)


def _sum(a: float, b: float) -> float:
    """The sum of two numbers as they are written: 0.3 less 0.1 is 0.2."""
    return float(Decimal(repr(float(a))) + Decimal(repr(float(b))))


# -- the entry -------------------------------------------------------------------------------------


def write(writer: Writer, found: Redemption, seen: Seen, model: list[Document]) -> int:
    """Write down what was found; everything about the person stands beside the chain."""
    writer.keep(model)
    facts = {
        "row": seen.row,
        "missing": [vars(one) for one in found.missing],
        "class": found.label,
        "words": str(found),
    }
    row = {
        "person": found.person,
        "facts": canonical(facts),
        "point": np.ascontiguousarray(seen.codes, dtype="<f8").tobytes(),
        "low": None,
        "high": None,
        "certificate": None,
    }
    salt = new_salt()
    body = {
        "verdict": found.verdict,
        "day": found.day,
        "model": model[-1].digest,
        "commitment": commitment(salt, personal_parts(row)),
    }
    entry = writer.append("redeemed" if found.closes else "presented", body, found.promise)
    writer.add("personal", {"entry": entry.seq, "salt": salt, **row})
    return entry.seq
