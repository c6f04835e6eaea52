r"""Comparison of a returning person with their promise, and the decision of the current model.

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

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from proplace.certification import canonical
from proplace.core.errors import (
    InputError,
    LedgerError,
    ProplaceError,
    TargetError,
)
from proplace.core.network import Network
from proplace.core.text import did_you_mean, listing, short
from proplace.explain.claims import display_title, format_value
from proplace.ledger.chain import commitment, new_salt, personal_parts
from proplace.ledger.promise import Promise, current_model
from proplace.ledger.terms import Archive
from proplace.loaders.align import (
    described_as,
    with_classes_of,
    with_cutoff_of,
)
from proplace.loaders.model import Model
from proplace.schema.features import Continuous
from proplace.schema.values import amount, as_json, decimals, filled, gap, is_missing, numbers

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.ledger.database import Writer
    from proplace.ledger.tables import sa
    from proplace.ledger.terms import Document
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label


Verdict = Literal["met_exactly", "met_within_tolerance", "accepted_anyway", "not_met", "broken"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class UnmetFeature:
    """A feature that is not as promised.

    Attributes
    ----------
    feature
        Its name.
    value
        Its value today.
    low, high
        Ends of the promised interval. For categories both are the promised label.
    shortfall
        Change of the number that would reach the interval, negative if it must fall. None for
        categories.
    words
        The same in words.
    """

    feature: str
    value: Any
    low: Any
    high: Any
    shortfall: float | None
    words: str


@dataclass(frozen=True)
class Redemption:
    """The outcome of a return of the person.

    Attributes
    ----------
    promise, person
        Number of the promise, and id of the person.
    verdict
        ``met_exactly`` or ``met_within_tolerance``: the promise is met, and the current model accepts.
        ``accepted_anyway``: not met, but accepted. ``not_met``: not met, and refused. ``broken``: met,
        but refused.
    met
        ``met_exactly``, ``met_within_tolerance`` or None, whatever the current model decides.
    accepted
        True if the current model accepts. The promise is then redeemed and closed.
    label, target
        Class of the person today, and the promised class.
    unmet
        Features that are not as promised.
    model
        Name of the current model.
    borderline
        True if rounding decides, and the original model was not available.
    day
        Day of the visit.
    entry
        Number of the entry in the ledger. None if nothing was recorded.
    """

    promise: int
    person: str
    verdict: Verdict
    met: Literal["met_exactly", "met_within_tolerance"] | None
    accepted: bool
    label: Label
    target: Label
    unmet: tuple[UnmetFeature, ...]
    model: str
    borderline: bool
    day: str
    entry: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all facts for JSON."""
        return {
            "promise": self.promise,
            "person": self.person,
            "verdict": self.verdict,
            "met": self.met,
            "accepted": self.accepted,
            "class": self.label,
            "promised": self.target,
            "unmet": [vars(one) for one in self.unmet],
            "model": self.model,
            "borderline": self.borderline,
            "day": self.day,
            "entry": self.entry,
            "words": str(self),
        }

    def __str__(self) -> str:
        """Describe the outcome in a few sentences."""
        model = f"the current model ({self.model})"
        how = "exactly" if self.met == "met_exactly" else "within what was promised"
        if self.verdict == "broken":
            text = (
                f"Promise {self.promise} is BROKEN: it is met {how}, and {model} gives class "
                f"{self.label} instead of {self.target}."
            )
        elif self.met is not None:
            text = f"Promise {self.promise} is met {how}, and {model} accepts."
        else:
            lacks = "; ".join(one.words for one in self.unmet)
            end = f"and {model} gives class {self.label}, not {self.target}."
            if self.accepted:
                end = f"but {model} accepts anyway."
            text = f"Promise {self.promise} is not met as promised ({lacks}), {end}"
        if self.borderline:
            text += " Rounding may decide this row, so pass the original model as model=."
        return text


def check_open(promise: Promise, into: list[int], day: str) -> None:
    """Raise if a promise cannot be redeemed on a day, with a next step."""
    number, state = promise.id, promise.state
    if state == "expired":
        raise LedgerError(
            f"promise {number} expired after {promise.expires}; if the person came by then, give that "
            "day (as_of). Otherwise explain the person again and issue a new promise",
            name="promise",
            value=number,
        )
    closed = {
        "redeemed": f"was redeemed already; proplace ledger show {number}, or attempts({number}), "
        "shows when",
        "renewed": f"was renewed: redeem {' or '.join(map(str, into)) or 'the new one'} instead",
        "withdrawn": f"was withdrawn; entries({number}) shows the reason",
        "erased": "belongs to an erased person. Issue a new promise",
    }
    if state in closed:
        raise LedgerError(f"promise {number} {closed[state]}", name="promise", value=number)
    if day < promise.issued[:10]:
        raise LedgerError(
            f"promise {number} was issued on {promise.issued[:10]}, after {day}. Give a later day",
            name="promise",
            value=number,
        )


def compare(
    promise: Promise, person: object, model: Model, day: str
) -> tuple[Redemption, Applicant]:
    """Compare a person with a promise, and get the decision of the current model."""
    schema = promise.terms.model.schema
    row = one_row(person, [schema, model.schema])
    codes = encoded(schema, row)
    unmet = unmet_features(promise, row, codes)
    met: Literal["met_exactly", "met_within_tolerance"] | None = None
    if not unmet:
        met = "met_exactly" if np.array_equal(codes, _point(promise)) else "met_within_tolerance"
    decision = decide(model, row, promise.target)
    verdict: Verdict
    if met is not None:
        verdict = met if decision.accepted else "broken"
    else:
        verdict = "accepted_anyway" if decision.accepted else "not_met"
    found = Redemption(
        promise.id,
        str(promise.person),
        verdict,
        met,
        decision.accepted,
        as_json(decision.label),
        promise.target,
        unmet,
        model.origin.name,
        decision.borderline,
        day,
    )
    cells = {name: as_json(row[name].iloc[0]) for name in row.columns}
    return found, Applicant(cells, codes)


@dataclass(frozen=True)
class Applicant:
    """A returning person, in original units and encoded by the model of the promise."""

    row: dict[str, Any]
    codes: Array


def unmet_features(promise: Promise, row: pd.DataFrame, codes: Array) -> tuple[UnmetFeature, ...]:
    """Return features that lie outside of their promised interval, or outside of the proved box."""
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
    """Return the promised interval of a number, in original units."""
    span = promise.terms.model.schema.span(feature.name)
    answer = promise.facts["answer"].get(feature.name)
    if answer is None:  # a missing cell, which counts as the imputed value
        answer = feature.write_people(_point(promise)[span])[0]
    return promise.guaranteed_ranges.get(feature.name, (answer, answer))


def _point(promise: Promise) -> Array:
    assert promise.point is not None  # noqa: S101  (an open promise has one)
    return promise.point


def _value(feature: Continuous, cell: pd.Series[Any], code: Array) -> float:
    """Return a number as it is written, or the step of its grid that it rounds to."""
    value = float(numbers(filled(cell, feature.missing))[0])
    if (value - feature.offset) / feature.scale == code[0]:
        return value
    return float(feature.write_people(code)[0])


def _apart(feature: Continuous, value: float, ends: Interval) -> UnmetFeature:
    low, high = ends
    shortfall = _sum(low, -value) if value < low else _sum(high, -value) if value > high else 0.0
    by = gap(feature, abs(shortfall), decimals(feature))
    words = f"{feature.title} is {amount(feature, value, exact=True)}"
    words += f", promised is {_promised_words(feature, ends, value)}: "
    if shortfall:
        words += f"{by} too {'little' if shortfall > 0 else 'much'}"
    else:
        words += "at the very edge of what was proved"
    return UnmetFeature(feature.name, value, low, high, shortfall, words)


def _promised_words(feature: Continuous, ends: Interval, value: float) -> str:
    low, high = ends
    if low == high:
        return amount(feature, low, exact=True)
    lower, upper = feature.declared
    # a tolerance, or a person outside of the range, may extend the interval beyond its end
    if upper is not None and high == upper and value < low:
        return f"at least {amount(feature, low, exact=True)}"
    if lower is not None and low == lower and value > high:
        return f"at most {amount(feature, high, exact=True)}"
    return f"{amount(feature, low, unit=False, exact=True)} to {amount(feature, high, exact=True)}"


def _other(feature: AnyFeature, cell: Any, promise: Promise) -> UnmetFeature:
    value = feature.missing if is_missing(cell) else as_json(cell)
    promised = promise.facts["answer"][feature.name]
    promised = feature.missing if promised is None else promised
    words = (
        f"{display_title(feature)} is {format_value(feature, value, quotes=True)}, promised is "
        f"{format_value(feature, promised, quotes=True)}"
    )
    return UnmetFeature(feature.name, value, promised, promised, None, words)


def _sum(a: float, b: float) -> float:
    """Add two numbers as they are written: 0.3 less 0.1 is 0.2."""
    return float(Decimal(repr(float(a))) + Decimal(repr(float(b))))


# -- the entry -------------------------------------------------------------------------------------


def write(writer: Writer, found: Redemption, person: Applicant, model: list[Document]) -> int:
    """Record an outcome, with all personal data outside of the hash chain."""
    writer.store_documents(model)
    facts = {
        "row": person.row,
        "unmet": [vars(one) for one in found.unmet],
        "class": found.label,
        "words": str(found),
    }
    row = {
        "person": found.person,
        "facts": canonical(facts),
        "point": np.ascontiguousarray(person.codes, dtype="<f8").tobytes(),
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
    entry = writer.append("redeemed" if found.accepted else "attempted", body, found.promise)
    writer.add("personal", {"entry": entry.seq, "salt": salt, **row})
    return entry.seq


# -- the current model, and its decision on one row ------------------------------------------------


_DESCRIBE = (
    "describe its columns with Model.of(model).with_schema(schema), or schema in the project file"
)


class Decision(NamedTuple):
    """The decision of a model on a row.

    Attributes
    ----------
    accepted
        True if it is the promised class.
    label
        Class of the row, as the promise names it.
    borderline
        True if rounding decides, and the original model is not available.
    """

    accepted: bool
    label: Label
    borderline: bool


def reading(source: object, base: Model) -> Model:
    """Return a model for the table of ``base``, in original units."""
    model = with_cutoff_of(base, Model.of(source))
    if model.declared:
        return with_classes_of(base, model)
    same_width = model.network.inputs == base.schema.width
    if isinstance(source, Network) or not (model.has_preprocessing or base.has_preprocessing):
        if not same_width:
            raise InputError(
                f"the model takes {model.network.inputs} columns, the promises are about "
                f"{base.schema.width} encoded ones; {_DESCRIBE}",
                name="model",
            )
        known = set(model.schema.by_name) <= set(base.schema.by_name)
        if model.has_column_names and known and not _plain(base.schema):
            raise InputError(
                "the model names columns and does not encode them, but the schema of the promises does; "
                f"{_DESCRIBE}: the schema of the promises if the model takes encoded rows, otherwise "
                "one with scaling='none'",
                name="model",
            )
        twice = bool(base.network.input_transform)
        described = model.with_schema(base.schema, scaled_twice=twice)
        return with_classes_of(base, described)
    if not model.has_column_names:
        if not model.has_preprocessing:
            raise InputError(
                "the model names no columns, and the model of the promises scales or encodes the table "
                f"first. Give it with its preprocessing (a pipeline), {_DESCRIBE}, or give a Network "
                "(Model.of(model).network) that takes rows as that model encodes them",
                name="model",
            )
        model = model.with_column_names(base.columns)
    return with_classes_of(base, described_as(base, model))


def _plain(schema: Schema) -> bool:
    """Test if rows are the numbers of the table."""
    return all(
        isinstance(f, Continuous) and (f.offset, f.scale) == (0.0, 1.0) for f in schema.features
    )


# -- one row ---------------------------------------------------------------------------------------


def one_row(person: object, schemas: list[Schema]) -> pd.DataFrame:
    """Return one row with all columns of some schemas."""
    given = _cells(person)
    cells = {_composed(name): cell for name, cell in given.items()}
    if len(cells) < len(given):
        raise InputError("the row has two values of the same name. Give one", name="person")
    features = list(dict.fromkeys(name for schema in schemas for name in schema.by_name))
    known = {_composed(name) for name in features}
    unknown = [name for name in cells if name not in known]
    missing = [name for name in features if _composed(name) not in cells]
    if missing:
        hints = [f"{short(name)}{did_you_mean(name, list(cells))}" for name in missing]
        raise InputError(
            f"the row has no value for {', '.join(hints)}. Give all of {listing(features)}",
            name=missing[0],
        )
    if unknown and isinstance(person, Mapping):  # a table may have other columns, such as ids
        raise InputError(
            f"no model has a feature {listing(unknown)}. Give only values of {listing(features)}",
            name=str(unknown[0]),
            value=cells[unknown[0]],
        )
    return pd.DataFrame({name: _column(cells[_composed(name)]) for name in features})


def _column(cell: Any) -> pd.Series[Any]:
    """Return a column of one cell. A text stays as it is, whatever pandas makes of texts."""
    cell = np.nan if is_missing(cell) else cell
    return pd.Series([cell], dtype=object if isinstance(cell, str) else None)


def _composed(name: Any) -> Any:
    """Return a name with composed letters (NFC), since an accent can be written in two ways."""
    return unicodedata.normalize("NFC", name) if isinstance(name, str) else name


def _cells(person: object) -> dict[Any, Any]:
    """Return the cells of a row by name."""
    if isinstance(person, pd.DataFrame):
        if len(person) != 1:
            raise InputError(
                f"one person is a table of one row, not of {len(person)}", name="person"
            )
        person = person.iloc[0]
    if isinstance(person, pd.Series):
        return dict(person.items())
    if isinstance(person, Mapping):
        return dict(person)
    raise InputError(
        "a person is values by column name: a dictionary, a row of a table (table.loc[label]), or a "
        f"table of one row, not {type(person).__name__}",
        name="person",
    )


def encoded(schema: Schema, row: pd.DataFrame) -> Array:
    """Encode a row; a finite number may lie outside of its range."""
    found = np.empty(schema.width)
    for feature, span in zip(schema.features, schema.spans, strict=True):
        cell = row[feature.name]
        if isinstance(feature, Continuous):
            codes, ok = feature.read(cell, people=True)
        else:
            codes, ok = feature.read(cell)
        if not ok[0]:
            raise InputError(
                f"column {short(feature.name)}: {feature.why(cell.iloc[0])}",
                name=feature.name,
                value=cell.iloc[0],
            )
        found[span] = codes[0]
    return found


def decide(model: Model, row: pd.DataFrame, label: Label) -> Decision:
    """Predict a row with the original model, or with the imported network if it is not available."""
    target = _number(model, label)
    codes = encoded(model.schema, row)
    try:
        predicted = model.predict_original(row[list(model.schema.by_name)])
    except ProplaceError:  # such as a number outside of a declared range, which the network takes
        predicted = None
    if predicted is not None:
        number = _number(model, predicted[0])
        return Decision(number == target, model.classes[number], borderline=False)
    number = int(model.network.predict(codes)[0])
    logits = np.sort(model.network.logits(codes)[0])
    gap = abs(logits[0]) if len(logits) == 1 else logits[-1] - logits[-2]
    borderline = bool(gap <= np.max(model.rounding(codes[None])))
    return Decision(number == target, model.classes[number], borderline)


def _number(model: Model, label: Label) -> int:
    """Return the number of a class. True and 1 are the same label, "1" and 1 are not."""
    for number, known in enumerate(model.classes):
        if isinstance(label, str) == isinstance(known, str) and known == label:
            return number
    raise TargetError(
        f"the current model has the classes {listing(model.classes)}, but {short(label)} was promised. "
        "Give a model of the same classes",
        name="model",
        value=label,
    )


def check_named(model: Model) -> Model:
    """Return a model unless its columns have no names."""
    if not model.has_column_names:
        raise LedgerError(
            f"the columns of the model have no names, and there is no promise yet to take them from; "
            f"{_DESCRIBE}",
            name="model",
        )
    return model


def model_in_use(connection: sa.Connection, promise: Promise, model: object) -> Model:
    """Return the model that decides: the given one, the current one, or that of the promise."""
    if model is not None:
        return reading(model, promise.terms.model)
    found = current_model(connection)
    return promise.terms.model if found is None else Archive(connection).model(found[1])
