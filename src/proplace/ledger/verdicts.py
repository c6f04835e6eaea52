r"""Verdicts on promises under a retrained model.

A promise is a point, or a box :math:`B` of inputs around it, and a class.

``proved``
    The new network lies in a promised shift set, for which the promise was proved.
``holds``
    The new network gives every input of :math:`B` the class:
    :math:`\min_{x \in B} \mathrm{margin}(x) \ge m`, with m the rounding error of its arithmetic. In a
    box the margin is also > 0, since frameworks treat ties differently. A point needs the class alone.
``broken``
    Some input of :math:`B` gets another class, or the original model refuses the point.
``undecided``
    Neither was established. It never counts as holding.

The original model, if it is available, predicts every counterfactual in original units. Its prediction
decides: a refused counterfactual is broken, although the imported network accepts it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.certification import lower_margins, prove, required_margins
from proplace.core.errors import (
    DeltaError,
    InputError,
    NetworkError,
    ProplaceError,
    SchemaError,
    TargetError,
)
from proplace.core.guarantee import Guarantee
from proplace.core.shifts import Shifts, outside
from proplace.core.text import listing
from proplace.explain.required_models import described
from proplace.loaders.align import (
    in_coordinates_of,
    rounding_in_coordinates_of,
    taking_rows_of,
    with_classes_of,
)
from proplace.retrain.promised import NO_TIE
from proplace.schema import Continuous

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proplace.certification import GuaranteeResult
    from proplace.core.guarantee import Member
    from proplace.core.network import Array
    from proplace.ledger.promise import OpenPromises
    from proplace.ledger.terms import Terms
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.schema.values import Label


Verdict = Literal["proved", "holds", "broken", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("proved", "holds", "broken", "undecided")
PROVED, HOLDS, BROKEN, UNDECIDED = range(4)

NOTES = (
    "",
    "the counterfactual itself is still accepted; another input that was promised is not",
    "point only: the counterfactual is accepted; nothing is proved of the numbers around it, which the "
    "new model encodes as categories",
    "so near to the boundary of the class that rounding, or a tie, decides",
    "ALARM: the network lies in the promised shift set, but the model refuses the counterfactual. Keep "
    "both, and report it",
    "ALARM: the imported network accepts the counterfactual, the original model refuses it",
    "ALARM: the imported network refuses the counterfactual, the original model accepts it",
    "the model cannot read the counterfactual (an unknown value or label)",
    "the model cannot evaluate it",
    "with a missing cell, as on the day of the promise: the new model imputes another value",
)
"""Notes on a verdict, by their number."""
PART, POINT_ONLY, ROUNDING, IN_SET = range(1, 5)
NETWORK_ACCEPTS, NETWORK_REFUSES, UNREADABLE, NOT_EVALUATED, IMPUTED = range(5, len(NOTES))
ALARMS = (IN_SET, NETWORK_ACCEPTS, NETWORK_REFUSES)

_ROUNDING = 2.0**-49  # relative: of two affine maps
_SEVERITY = np.array([0, 1, 3, 2])  # of proved, holds, broken, undecided
_START, _DECODER = '{"answer":', json.JSONDecoder()

Rows = npt.NDArray[np.intp]
Replies = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Verdicts on some promises, side by side.

    Attributes
    ----------
    verdict
        Numbers of :data:`VERDICTS`.
    margin
        Smallest margin over the promised inputs, or a lower bound of it. NaN if it is unknown.
    note
        Numbers of :data:`NOTES`.
    """

    verdict: npt.NDArray[np.int8]
    margin: Array
    note: npt.NDArray[np.int8]

    @classmethod
    def undecided(cls, count: int, note: int) -> Verdicts:
        """Return undecided verdicts with one note."""
        verdict, notes = (np.full(count, number, dtype=np.int8) for number in (UNDECIDED, note))
        return cls(verdict, np.full(count, np.nan), notes)

    def with_rows(self, rows: Rows, part: Verdicts) -> Verdicts:
        """Return the verdicts with some rows replaced."""
        fields = []
        for own, new in zip(vars(self).values(), vars(part).values(), strict=True):
            fields.append(own.copy())
            fields[-1][rows] = new
        return Verdicts(*fields)


def evaluate(compared: Comparison, group: OpenPromises) -> Verdicts:
    """Return the verdicts on promises that share their terms."""
    if compared.target is None:
        return Verdicts.undecided(len(group.ids), NOT_EVALUATED)
    if compared.aligned is not None:
        table = _answers(group.facts) if compared.model.has_original else None
        found = _on_encoded_rows(compared, group, table)
    elif compared.model.has_column_names:
        found = _through_table(compared, group, _answers(group.facts))
    else:  # the order of the columns is unknown
        return Verdicts.undecided(len(group.ids), NOT_EVALUATED)
    return _with_missing_cells(compared, group, found)


def _with_missing_cells(compared: Comparison, group: OpenPromises, found: Verdicts) -> Verdicts:
    """Evaluate promises with missing cells again, with the values that the new model imputes."""
    again = reimputed(group, compared.model)
    if again is None:
        return found
    lost = again.unreadable[found.verdict[again.unreadable] != BROKEN]
    unreadable = replace(Verdicts.undecided(len(lost), UNREADABLE), margin=found.margin[lost])
    found = found.with_rows(lost, unreadable)
    rows = again.rows
    if not len(rows):
        return found
    some = group._replace(ids=group.ids[rows], points=again.points, low=again.low, high=again.high)
    compared = replace(compared, inside=None)  # the proof covers other inputs
    if compared.aligned is None:
        part = _through_table(compared, some, again.table)
    else:
        part = _on_encoded_rows(compared, some, again.table)
    old, note = found.verdict[rows], found.note[rows]
    worse = _SEVERITY[part.verdict] > _SEVERITY[old]
    worst = Verdicts(
        np.where(worse, part.verdict, old),
        np.fmin(found.margin[rows], part.margin),
        np.where(worse, IMPUTED, note),
    )
    return found.with_rows(rows, worst)


# -- on encoded rows -------------------------------------------------------------------------------


def _on_encoded_rows(
    compared: Comparison, group: OpenPromises, table: pd.DataFrame | None
) -> Verdicts:
    """Evaluate promises as the promised model encodes them.

    ``table`` holds the counterfactuals in original units. Without it the original model is not used.
    """
    model, target = compared.aligned, compared.target
    assert model is not None and target is not None  # noqa: S101, PT018  (the caller tests this)
    replies = np.full(len(group.ids), -1, dtype=np.int8)
    if table is not None:
        replies = _replies(compared, table)
    found = _at_points(model, target, group.points, replies)
    if compared.inside is None or compared.lower_precision:
        boxed = np.flatnonzero((found.verdict == HOLDS) & group.boxed)
        points, low, high = (part[boxed] for part in (group.points, group.low, group.high))
        if len(boxed):
            part = _over_boxes(model, target, points, low, high)
            margin = np.minimum(part.margin, found.margin[boxed])
            found = found.with_rows(boxed, replace(part, margin=margin))
    return found if compared.inside is None else _inside_set(compared, group, found)


def _inside_set(compared: Comparison, group: OpenPromises, found: Verdicts) -> Verdicts:
    """Raise *holds* to *proved* for a network in the promised set, and note contradictions."""
    assert compared.aligned is not None  # noqa: S101  (the caller tests this)
    verdict, note = found.verdict.copy(), found.note.copy()
    rounding = required_margins(_alone(compared.aligned), group.points)
    by_rounding = compared.lower_precision & (np.abs(found.margin) <= rounding)
    refused = verdict == BROKEN
    note[refused] = np.where(by_rounding, ROUNDING, IN_SET)[refused]
    verdict[verdict == HOLDS] = PROVED
    if not compared.lower_precision:  # points that rounding decides are proved as well
        near = (verdict == UNDECIDED) & (note == ROUNDING)
        verdict[near], note[near] = PROVED, 0
    return Verdicts(verdict, found.margin, note)


def _at_points(model: Model, target: int, points: Array, replies: Replies) -> Verdicts:
    """Evaluate the counterfactuals alone, by the imported network and the original model.

    ``replies`` is 1 if the original model accepts a point, 0 if it refuses it, -1 if it is not used.
    """
    margin = model.network.margin(points, target)
    accepted = model.network.predict(points) == target
    rounding = required_margins(_alone(model), points)
    near = (np.abs(margin) <= rounding) & (rounding > 0.0)
    yes = np.where(replies >= 0, replies == 1, accepted & ~near)
    no = np.where(replies >= 0, replies == 0, ~accepted & ~near)
    verdict = np.select([yes, no], [HOLDS, BROKEN], UNDECIDED).astype(np.int8)
    note = np.where(yes | no, 0, ROUNDING).astype(np.int8)
    original = np.maximum(model.rounding(points), rounding)
    apart = (replies >= 0) & ((replies == 1) != accepted) & (np.abs(margin) > original)
    verdict[apart] = BROKEN
    note[apart] = np.where(accepted[apart], NETWORK_ACCEPTS, NETWORK_REFUSES)
    return Verdicts(verdict, margin, note)


def _alone(model: Model) -> Member:
    """Return the model without a shift, with the margin that its arithmetic can lose."""
    return model.member(Shifts.of(model.network, 0.0))


def _over_boxes(model: Model, target: int, points: Array, low: Array, high: Array) -> Verdicts:
    """Evaluate boxes around points that are accepted."""
    member = replace(_alone(model), margin=NO_TIE)
    # One pass decides most boxes, in a tenth of the time of a proof.
    lower = lower_margins(member.network, member.shifts, target, low, high)
    good = lower >= required_margins(member, points, (low, high))
    refused = np.zeros(len(points), dtype=bool)

    def proved(rows: Rows, member: Member) -> GuaranteeResult:
        box = low[rows], high[rows]
        return prove(Guarantee((member,)), points[rows], target, box, certificates=False)

    if not good.all():
        rows = np.flatnonzero(~good)
        kept = proved(rows, member)
        good[rows], lower[rows] = kept.robust, np.maximum(lower[rows], kept.lower)
        rows = rows[~kept.robust]
    if not good.all():
        exact = proved(rows, replace(member, margin=0.0, deployment=None))
        ((_, result),) = exact.tested
        refused[rows] = ~exact.robust & ~exact.undecided
        lower[rows] = np.where(exact.robust, result.lower, result.upper)
    verdict = np.select([good, refused], [HOLDS, BROKEN], UNDECIDED)
    return Verdicts(verdict, lower, np.select([good, refused], [0, PART], ROUNDING))


# -- in original units -----------------------------------------------------------------------------


def _through_table(compared: Comparison, group: OpenPromises, table: pd.DataFrame) -> Verdicts:
    """Evaluate promises in original units, for a model that encodes its table differently.

    Each box is encoded by itself: its categories are fixed, and its numbers are affine in both models.
    """
    model, target = compared.model, compared.target
    assert target is not None  # noqa: S101  (the caller tests this)
    try:
        encoded, problems = model.schema.encode_people(table)
    except ProplaceError:
        return Verdicts.undecided(len(table), NOT_EVALUATED)
    good = np.setdiff1d(np.arange(len(table)), list(problems))
    found = Verdicts.undecided(len(table), UNREADABLE)
    if not len(good):
        return found
    replies = _replies(compared, table.iloc[good].reset_index(drop=True))
    part = _at_points(model, target, encoded[good], replies)
    boxed = np.flatnonzero((part.verdict == HOLDS) & group.boxed[good])
    if len(boxed):
        rows = good[boxed]
        over = _over_own_boxes(model, target, group, rows, encoded[rows])
        margin = np.minimum(over.margin, part.margin[boxed])
        part = part.with_rows(boxed, replace(over, margin=margin))
    return found.with_rows(good, part)


def _over_own_boxes(
    model: Model, target: int, group: OpenPromises, rows: Rows, points: Array
) -> Verdicts:
    """Evaluate the boxes of some promises as a model encodes them."""
    low, high, known = _own_boxes(model.schema, group, rows, points)
    found = _over_boxes(model, target, points, low, high)
    # The ends are rounded outwards, so a refusal in the last digits is none of the promise.
    near = np.abs(found.margin) <= required_margins(_alone(model), points, (low, high))
    unsure = (found.verdict == BROKEN) & near
    found.verdict[unsure], found.note[unsure] = UNDECIDED, ROUNDING
    unknown = ~known & (found.verdict == HOLDS)
    found.verdict[unknown], found.note[unknown] = UNDECIDED, POINT_ONLY
    return found


def _own_boxes(
    schema: Schema, group: OpenPromises, rows: Rows, points: Array
) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Return boxes in the encoding of a schema, and whether they hold all that was promised."""
    base, low, high = group.terms.model.schema, points.copy(), points.copy()
    known = np.ones(len(rows), dtype=bool)
    for name, feature in base.by_name.items():
        own = schema.by_name.get(name)
        if own is None or not isinstance(feature, Continuous):
            continue
        j = base.span(name).start
        ends = np.array([group.low[rows, j], group.high[rows, j]])
        wide = ends[0] < ends[1]
        if not isinstance(own, Continuous):  # a number that the model encodes as a category
            known &= ~wide
            continue
        codes = (feature.offset + feature.scale * ends - own.offset) / own.scale
        size = np.abs(feature.offset) + np.abs(feature.scale * ends) + np.abs(own.offset)
        slack = _ROUNDING * size / np.abs(own.scale)
        k = schema.span(name).start
        low[wide, k] = np.minimum(low[:, k], (codes - slack).min(axis=0))[wide]
        high[wide, k] = np.maximum(high[:, k], (codes + slack).max(axis=0))[wide]
    return low, high, known


def _answers(facts: Iterable[str]) -> pd.DataFrame:
    """Return the counterfactuals of some promises as a table in original units."""
    return pd.DataFrame([_answer(text) for text in facts])


def _answer(facts: str) -> dict[str, Any]:
    """Read the counterfactual, which comes first, without the other facts."""
    if facts.startswith(_START):
        found: dict[str, Any] = _DECODER.raw_decode(facts, len(_START))[0]
        return found
    return dict(json.loads(facts)["answer"])


def _replies(compared: Comparison, table: pd.DataFrame) -> Replies:
    """Return 1 if the original model accepts a row, 0 if it refuses it, -1 if it is not available."""
    predicted = compared.model.predict_original(table)
    if predicted is None:
        return np.full(len(table), -1, dtype=np.int8)
    return np.array([label == compared.label for label in predicted.tolist()], dtype=np.int8)


# -- the new model beside the promised one ---------------------------------------------------------


_ROUNDED = 2.0**-23  # relative change by a rounding to float32


@dataclass(frozen=True, eq=False)
class Comparison:
    """A retrained model beside the terms of promises.

    Attributes
    ----------
    model
        The model with its columns described as those of the terms. It takes tables in original units.
    target
        Number of the promised class in it. None if it has no such class.
    aligned
        The model on encoded rows of the terms. None if these rows do not determine its own.
    inside
        Member of the promised guarantee in whose shift set it lies. None if it lies in no set.
    reason
        Why it is not aligned, or not inside.
    """

    model: Model
    target: int | None
    aligned: Model | None
    inside: Member | None = None
    reason: str = ""

    @property
    def lower_precision(self) -> bool:
        """True if its arithmetic is coarser than that of the set in which it lies."""
        if self.inside is None:
            return False
        used, proved = self.model.network.precision, self.inside.network.precision
        return (used, proved) == ("float32", "float64")

    @property
    def label(self) -> Label:
        """Name of the promised class in the model."""
        assert self.target is not None  # noqa: S101  (the caller tests this)
        return self.model.classes[self.target]

    @classmethod
    def of(cls, source: object, model: Model, terms: Terms) -> Comparison:
        """Compare an imported model with the terms."""
        base, reason = terms.model, ""
        try:
            model = described(base, source, model, base.schema)
        except SchemaError:
            pass  # its columns are described differently, but it may take these rows
        except ProplaceError as error:
            reason = str(error)
        try:
            model = with_classes_of(base, model)
            target = model.target(terms.label)
        except TargetError as error:
            return cls(model, None, None, None, _no_class(model, terms, error))
        aligned = None
        if not reason:
            try:
                # The promised class has the same label in both models. Others may differ.
                aligned = taking_rows_of(base, dataclasses.replace(model, classes=base.classes))
            except (InputError, SchemaError) as error:
                reason = str(error)
        if aligned is None or model.classes != base.classes:
            return cls(model, target, aligned, None, reason)
        inside, reason = _member_around(model, terms, reason)
        return cls(model, target, aligned, inside, reason)


def _no_class(model: Model, terms: Terms, error: TargetError) -> str:
    if not model.labelled:
        return str(error)
    return (
        f"the new model has the classes {listing(model.classes)}, none of which is "
        f"{terms.label!r}, which was promised"
    )


def _member_around(model: Model, terms: Terms, reason: str) -> tuple[Member | None, str]:
    """Return the member of the guarantee in whose shift set a model lies, or the reason why not."""
    for member in terms.guarantee.members:
        try:
            if _lies_in(member, terms.model, model):
                return member, ""
        except (InputError, NetworkError) as error:
            reason = str(error)
        else:
            reason = reason or _distance_outside(member, terms.model, model)
    return None, reason


def _distance_outside(member: Member, base: Model, other: Model) -> str:
    """Describe how far a network of the same shape lies outside a shift set."""
    there, other = _beside(member, base, other)
    try:
        far = outside(member.shifts, in_coordinates_of(there, other))
    except (DeltaError, ValueError):
        return ""
    if not far:
        return "the new network lies outside of the promised set by less than the last digit"
    text = (
        f"{len(far)} parameters of the new network lie outside of the promised set, by at most "
        f"{far[0].beyond:.3g} ({far[0].name})"
    )
    rounded = far[0].beyond <= _ROUNDED * max(1.0, abs(far[0].value))
    return f"{text}: as rounding to float32 does" if rounded else text


def _beside(member: Member, base: Model, other: Model) -> tuple[Model, Model]:
    """Return a member and another model with the same names of columns."""
    named = other if other.has_column_names else other.with_column_names(base._columns)
    return dataclasses.replace(base, network=member.network), named


def _lies_in(member: Member, base: Model, other: Model) -> bool:
    """Test if a model certainly lies in the shift set, as a network after its input transform.

    The test is exact unless a scaler was fitted again. Then the parameters were computed, and all real
    numbers that they may stand for must lie inside.
    """
    there, other = _beside(member, base, other)
    net = in_coordinates_of(there, other)
    if net is other.network:
        return member.shifts.contains(net)
    first, *rest = net.layers
    if member.network.input_transform.matrix is not None or first.b is None:
        return False  # a solved transform holds only to rounding, and no parameter can absorb it
    W, b = rounding_in_coordinates_of(there, other)
    after = [(layer.W, layer.b) for layer in rest]
    ends = [(first.W + sign * W, first.b + sign * b) for sign in (-1.0, 1.0)]
    return all(member.shifts.contains(net.with_layers([end, *after])) for end in ends)


# -- missing cells ---------------------------------------------------------------------------------


class Reimputed(NamedTuple):
    """Promises with missing cells for which another model imputes other values.

    Attributes
    ----------
    rows
        Places of the promises.
    unreadable
        Places of the promises that the model cannot read, since it imputes nothing.
    points, low, high
        Encoded by the model of the promises, with the values that the other model imputes.
    table
        The counterfactuals in original units, with the cells missing.
    """

    rows: Rows
    unreadable: Rows
    points: Array
    low: Array
    high: Array
    table: pd.DataFrame


def reimputed(group: OpenPromises, model: Model) -> Reimputed | None:
    """Return the promises for which a model imputes other values, or None."""
    base, own = group.terms.model.schema, model.schema.by_name
    other = {
        name
        for name, feature in base.by_name.items()
        if feature.missing is not None and name in own and own[name].missing != feature.missing
    }
    facts = [json.loads(text) for text in group.facts] if other else []
    gaps = [other.intersection(_still_missing(one)) for one in facts]
    not_imputed = {name for name in other if own[name].missing is None}
    unreadable = [n for n, names in enumerate(gaps) if names & not_imputed]
    rows = [n for n, names in enumerate(gaps) if names and not names & not_imputed]
    if not rows and not unreadable:
        return None
    points, low, high = (part[rows].copy() for part in (group.points, group.low, group.high))
    missing = []
    if rows:
        answers = [facts[n]["answer"] for n in rows]
        filled = [
            answer | {name: own[name].missing for name in gaps[n]}
            for n, answer in zip(rows, answers, strict=True)
        ]
        codes, problems = base.encode_people(pd.DataFrame(filled).infer_objects())
        unreadable += [rows[n] for n in problems]
        good = [n for n in range(len(rows)) if n not in problems]
        for n in good:
            for name in gaps[rows[n]]:
                span = base.span(name)
                for part in (points, low, high):
                    part[n, span] = codes[n, span]
        missing = [answers[n] | dict.fromkeys(gaps[rows[n]], np.nan) for n in good]
        rows = [rows[n] for n in good]
        points, low, high = points[good], low[good], high[good]
    places = np.array(rows, dtype=np.intp)
    table = pd.DataFrame(missing).infer_objects()
    return Reimputed(places, np.array(unreadable, dtype=np.intp), points, low, high, table)


def _still_missing(facts: dict[str, Any]) -> list[str]:
    """Return features with a missing cell that the counterfactual does not change."""
    before, after = facts["original"], facts["answer"]
    return [name for name in facts["imputed"] if before[name] == after[name]]
