r"""What a retrained model makes of some promises: the verdicts.

A promise is a point, or a box :math:`B` of inputs around it, and a class.

``proved``
    The new network lies in a promised set, for which the promise was proved.
``holds``
    The new network gives every input of :math:`B` the class:
    :math:`\min_{x \in B} \mathrm{margin}(x) \ge m`, with m what its arithmetic can lose by rounding;
    and > 0, since frameworks differ in what they make of a tie. A point has the class that it gets.
``broken``
    Some input of :math:`B` gets another class, or the model itself says so of the point.
``undecided``
    Neither could be established. It is never counted as holding.

The model itself, where it is at hand, is asked about every answer in original units and has the last
word: what it refuses is broken, whatever was proved about what was read of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
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
from proplace.loaders.coordinates import (
    in_coordinates_of,
    rounding_in_coordinates_of,
    taking_rows_of,
    with_classes_of,
)
from proplace.retrain.promised import NO_TIE, Mask
from proplace.schema import Continuous

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from proplace.certification import GuaranteeResult
    from proplace.core.guarantee import Member
    from proplace.core.network import Array
    from proplace.ledger.promise import OpenPromises
    from proplace.ledger.terms import Terms
    from proplace.loaders.model import Model
    from proplace.schema.values import Label


Verdict = Literal["proved", "holds", "broken", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("proved", "holds", "broken", "undecided")
PROVED, HOLDS, BROKEN, UNDECIDED = range(4)

NOTES = (
    "",
    "the answer itself is still accepted; another input that was promised is not",
    "point only: the answer is accepted, and so are the ends of what was promised around it; nothing is "
    "proved in between",
    "so near to the boundary of the class that rounding, or a tie, decides",
    "ALARM: the network lies in the promised set and the model refuses the answer all the same; keep "
    "both, and report it",
    "ALARM: what was read of the model accepts the answer, the model itself refuses it",
    "ALARM: what was read of the model refuses the answer, the model itself accepts it",
    "the model cannot read the answer (a value or a label that it does not know)",
    "the model cannot be asked about it",
    "with a cell missing, as it was when the promise was made: the model fills it in another way now",
)
"""What can be said about a verdict; a number stands for each."""
PART, POINT_ONLY, ROUNDING, IN_SET, READ_YES, READ_NO, UNREADABLE, NOT_ASKED, FILLED = range(
    1, len(NOTES)
)
ALARMS = (IN_SET, READ_YES, READ_NO)

_RANK = np.array([0, 1, 3, 2])  # how bad: proved, holds, broken, undecided
_MOST_CORNERS = 5  # numbers whose ends are asked in all combinations
_FIRST, _DECODER = '{"answer":', json.JSONDecoder()


@dataclass(frozen=True, eq=False)
class Judgement:
    """Verdicts on some promises, side by side.

    Attributes
    ----------
    verdict
        Numbers of :data:`VERDICTS`.
    margin
        The least margin that is left over what was promised, or a lower bound of it; NaN where it is
        not known.
    note
        Numbers of :data:`NOTES`.
    """

    verdict: npt.NDArray[np.int8]
    margin: Array
    note: npt.NDArray[np.int8]

    @classmethod
    def of(cls, count: int) -> Judgement:
        """Nothing is known of any promise yet."""
        return cls(
            np.full(count, UNDECIDED, dtype=np.int8),
            np.full(count, np.nan),
            np.full(count, NOT_ASKED, dtype=np.int8),
        )


def judge(compared: Comparison, group: OpenPromises) -> Judgement:
    """Say what becomes of promises that have their terms in common."""
    count = len(group.ids)
    found = Judgement.of(count)
    if compared.target is None:
        return found
    if compared.on_rows is None:
        if compared.model.has_column_names:  # else nobody knows which column is which
            _judge_table(compared, group, _answers(group.facts), found)
            _judge_filled(compared, group, found)
        return found
    table = _answers(group.facts) if compared.model.has_original else None
    _judge_rows(compared, group, table, found)
    _judge_filled(compared, group, found)
    return found


def _judge_filled(compared: Comparison, group: OpenPromises, found: Judgement) -> None:
    """Judge promises to people with missing cells once more, with what the new model fills in."""
    again = refilled(group, compared.model)
    if again is None:
        return
    lost = again.unreadable[found.verdict[again.unreadable] != BROKEN]
    found.verdict[lost], found.note[lost] = UNDECIDED, UNREADABLE
    rows = again.rows
    if not len(rows):
        return
    count = len(rows)
    part = Judgement.of(count)
    some = group._replace(ids=group.ids[rows], points=again.points, low=again.low, high=again.high)
    outside = replace(compared, inside=None)  # other inputs than those of the proof
    if compared.on_rows is None or compared.target is None:
        _judge_table(outside, some, again.table, part)
    else:
        _judge_rows(outside, some, again.table, part)
    worse = _RANK[part.verdict] > _RANK[found.verdict[rows]]
    here = rows[worse]
    found.verdict[here] = part.verdict[worse]
    found.note[here] = FILLED
    found.margin[rows] = np.fmin(found.margin[rows], part.margin)


# -- on encoded rows -------------------------------------------------------------------------------


def _judge_rows(
    compared: Comparison, group: OpenPromises, table: pd.DataFrame | None, found: Judgement
) -> None:
    """Judge promises whose boxes the new network takes.

    ``table`` has the answers in original units; None if the model itself cannot be asked.
    """
    model, target = compared.on_rows, compared.target
    assert model is not None and target is not None  # noqa: S101, PT018  (as was asked before)
    said = np.full(len(group.ids), -1, dtype=np.int8)
    if table is not None:
        said = _said(compared.model, compared.label, table, np.ones(len(table), dtype=bool))
    rounding = _judge_points(model, target, group.points, said, found)
    covered = compared.inside is not None and not compared.coarser
    boxed = np.flatnonzero((found.verdict == HOLDS) & group.boxed)
    if not covered and len(boxed):
        _judge_boxes(model, target, group, boxed, found)
    if compared.inside is not None:
        refused = found.verdict == BROKEN
        by_rounding = compared.coarser & (np.abs(found.margin) <= rounding)
        found.note[refused] = np.where(by_rounding, ROUNDING, IN_SET)[refused]
        found.verdict[found.verdict == HOLDS] = PROVED
        if covered:  # the points that rounding decides are proved as well
            near = (found.verdict == UNDECIDED) & (found.note == ROUNDING)
            found.verdict[near], found.note[near] = PROVED, 0


def _judge_points(
    model: Model, target: int, points: Array, said: npt.NDArray[np.int8], found: Judgement
) -> Array | float:
    """Judge the points alone, by what was read of the model and by the model itself.

    ``said`` is 1 where the model itself accepts a point, 0 where it refuses it, -1 where it was not
    asked. Returns what the arithmetic of the model can do to the margin of each point.
    """
    margin = model.network.margin(points, target)
    accepted = model.network.predict(points) == target
    rounding = required_margins(_alone(model), points)
    found.margin[:] = margin
    near = (np.abs(margin) <= rounding) & (rounding > 0.0)
    referee = np.maximum(model.rounding(points), rounding)
    yes = np.where(said >= 0, said == 1, accepted & ~near)
    no = np.where(said >= 0, said == 0, ~accepted & ~near)
    found.verdict[:] = np.select([yes, no], [HOLDS, BROKEN], UNDECIDED)
    found.note[:] = np.where(yes | no, 0, ROUNDING)
    apart = (said >= 0) & ((said == 1) != accepted) & (np.abs(margin) > referee)
    found.verdict[apart] = BROKEN
    found.note[apart] = np.where(accepted[apart], READ_YES, READ_NO)
    return rounding


def _alone(model: Model) -> Member:
    """The model by itself, with the margin that its arithmetic can lose."""
    return model.member(Shifts.of(model.network, 0.0))


def _judge_boxes(
    model: Model,
    target: int,
    group: OpenPromises,
    rows: npt.NDArray[np.intp],
    found: Judgement,
) -> None:
    """Judge the boxes around points that are accepted."""
    member = replace(_alone(model), margin=NO_TIE)  # inside a box, a tie may be decided either way
    points, low, high = (part[rows] for part in (group.points, group.low, group.high))
    # One pass decides most boxes, in a tenth of the time of a proof.
    lower = lower_margins(member.network, member.shifts, target, low, high)
    good = lower >= required_margins(member, points, (low, high))
    refused = np.zeros(len(rows), dtype=bool)

    def proved(some: npt.NDArray[np.intp], what: Member) -> GuaranteeResult:
        box = low[some], high[some]
        return prove(Guarantee((what,)), points[some], target, box, certificates=False)

    if not good.all():
        some = np.flatnonzero(~good)
        kept = proved(some, member)
        good[some], lower[some] = kept.robust, np.maximum(lower[some], kept.lower)
        some = some[~kept.robust]
    if not good.all():
        asked = proved(some, replace(member, margin=0.0, deployment=None))
        ((_, result),) = asked.tested
        refused[some] = ~asked.robust & ~asked.undecided
        lower[some] = np.where(asked.robust, result.lower, result.upper)
    found.margin[rows] = np.minimum(lower, found.margin[rows])
    found.verdict[rows] = np.select([good, refused], [HOLDS, BROKEN], UNDECIDED)
    found.note[rows] = np.select([good, refused], [0, PART], ROUNDING)


# -- through the table -----------------------------------------------------------------------------


def _judge_table(
    compared: Comparison,
    group: OpenPromises,
    table: pd.DataFrame,
    found: Judgement,
) -> None:
    """Judge promises by asking the model about tables in original units, point by point."""
    model, target = compared.model, compared.target
    assert target is not None  # noqa: S101  (as was asked before)
    try:
        rows, problems = model.schema.encode_people(table)
    except ProplaceError:
        return
    readable = np.ones(len(table), dtype=bool)
    readable[list(problems)] = False
    found.note[~readable] = UNREADABLE
    good = np.flatnonzero(readable)
    if not len(good):
        return
    part = Judgement(*(field[good] for field in vars(found).values()))
    said = _said(model, compared.label, table, readable)[good]
    _judge_points(model, target, rows[good], said, part)
    held = np.flatnonzero((part.verdict == HOLDS) & group.boxed[good])
    if len(held):
        part.note[held] = POINT_ONLY
        corners = _corners(group, table, good[held])
        if corners is None:  # too many to ask about
            part.verdict[held], part.note[held] = UNDECIDED, NOT_ASKED
        for other in corners or ():
            _judge_corner(compared, other, held, part)
    for field, values in zip(vars(found).values(), vars(part).values(), strict=True):
        field[good] = values


def _judge_corner(
    compared: Comparison,
    table: pd.DataFrame,
    rows: npt.NDArray[np.intp],
    found: Judgement,
) -> None:
    """Judge one more input of each box, which must be accepted as well."""
    model, target = compared.model, compared.target
    assert target is not None  # noqa: S101
    encoded, problems = model.schema.encode_people(table)
    asked = np.ones(len(table), dtype=bool)
    asked[list(problems)] = False
    lost = rows[~asked]
    lost = lost[found.verdict[lost] != BROKEN]
    found.verdict[lost], found.note[lost] = UNDECIDED, UNREADABLE
    if not asked.any():
        return
    here = np.flatnonzero(asked)
    part = Judgement(*(field[rows[here]].copy() for field in vars(found).values()))
    said = _said(model, compared.label, table, asked)[here]
    _judge_points(model, target, encoded[here], said, part)
    refused = part.verdict == BROKEN
    near = rows[here[part.verdict == UNDECIDED]]
    near = near[found.verdict[near] != BROKEN]
    found.verdict[near], found.note[near] = UNDECIDED, ROUNDING
    bad = rows[here[refused]]
    found.verdict[bad], found.note[bad] = BROKEN, PART
    found.margin[rows[here]] = np.minimum(found.margin[rows[here]], part.margin)


def _corners(
    group: OpenPromises, table: pd.DataFrame, rows: npt.NDArray[np.intp]
) -> list[pd.DataFrame] | None:
    """All corners of the boxes in original units; None where there are too many."""
    schema = group.terms.model.schema
    ends: dict[str, tuple[Array, Array]] = {}
    for feature in schema.features:
        if not isinstance(feature, Continuous):
            continue
        column = schema.span(feature.name).start
        low, high = group.low[rows, column], group.high[rows, column]
        if (low < high).any():
            own = table[feature.name].to_numpy(dtype=np.float64)[rows]
            sides = [
                np.where(low < high, feature.offset + feature.scale * end, own)
                for end in (low, high)
            ]
            ends[feature.name] = (np.minimum(*sides), np.maximum(*sides))
    if len(ends) > _MOST_CORNERS:
        return None
    here = table.iloc[rows].reset_index(drop=True)
    return [
        here.assign(**dict(zip(ends, corner, strict=True)))
        for corner in itertools.product(*ends.values())
    ]


def _answers(facts: Iterable[str]) -> pd.DataFrame:
    """The answers of some promises as a table in original units."""
    return pd.DataFrame([_answer(text) for text in facts])


def _answer(facts: str) -> dict[str, Any]:
    """The answer among facts, of which it comes first: the others need not be read."""
    if facts.startswith(_FIRST):
        found: dict[str, Any] = _DECODER.raw_decode(facts, len(_FIRST))[0]
        return found
    return dict(json.loads(facts)["answer"])


# -- the model itself ------------------------------------------------------------------------------


def _said(model: Model, label: Any, table: pd.DataFrame, readable: Mask) -> npt.NDArray[np.int8]:
    """1 where the model itself gives a row the class, 0 where it does not, -1 where it is not asked."""
    found = np.full(len(table), -1, dtype=np.int8)
    rows = np.flatnonzero(readable)
    if not len(rows):
        return found
    said = model.predict_original(table.iloc[rows].reset_index(drop=True))
    if said is not None:
        found[rows] = np.array([one == label for one in said.tolist()], dtype=np.int8)
    return found


# -- the new model beside the promised one ---------------------------------------------------------


_ROUNDED = 2.0**-23  # relative: what rounding to float32 does


@dataclass(frozen=True, eq=False)
class Comparison:
    """A retrained model, seen from the terms of promises.

    Attributes
    ----------
    model
        The model, its columns described as those of the terms; it takes tables in original units.
    target
        Number of the promised class in it; None where it has no such class.
    on_rows
        The same model on the encoded rows of the terms; None where there is no way from these to its
        own.
    inside
        Member of the promised guarantee in which it lies; None if it lies in none.
    why
        Why something of this is not so, in words.
    """

    model: Model
    target: int | None
    on_rows: Model | None
    inside: Member | None = None
    why: str = ""

    @property
    def coarser(self) -> bool:
        """True if it is deployed in a coarser arithmetic than the one for which it lies inside."""
        if self.inside is None:
            return False
        used, proved = self.model.network.precision, self.inside.network.precision
        return (used, proved) == ("float32", "float64")

    @property
    def label(self) -> Label:
        """What the model itself calls the promised class."""
        assert self.target is not None  # noqa: S101  (whoever asks has looked)
        return self.model.classes[self.target]

    @classmethod
    def of(cls, source: object, model: Model, terms: Terms) -> Comparison:
        """Compare what was read of a source with the terms."""
        base, why = terms.model, ""
        try:
            model = described(base, source, model, base.schema)
        except SchemaError:
            pass  # it describes its columns otherwise, and may take these rows all the same
        except ProplaceError as error:
            why = str(error)
        try:
            model = with_classes_of(base, model)
            target = model.target(terms.label)
        except TargetError as error:
            labelled = f"the new model has the classes {listing(model.classes)}, none of which is "
            own = f"{labelled}{terms.label!r}, which was promised"
            return cls(model, None, None, None, own if model.labelled else str(error))
        on_rows = None
        if not why:
            try:
                # What counts is the promised class, which both know by its label.
                on_rows = taking_rows_of(base, dataclasses.replace(model, classes=base.classes))
            except (InputError, SchemaError) as error:
                why = str(error)
        if on_rows is None or model.classes != base.classes:
            return cls(model, target, on_rows, None, why)
        named = dataclasses.replace(model, classes=base.classes)
        for member in terms.guarantee.members:
            try:
                inside = _lies_in(member, base, named)
            except (InputError, NetworkError) as error:
                why = str(error)
                continue
            if inside:
                return cls(model, target, on_rows, member)
            why = why or _outside(member, base, named)
        return cls(model, target, on_rows, None, why)


def _outside(member: Member, base: Model, other: Model) -> str:
    """By how much a network that is of the right shape lies outside of a set, in words."""
    there = dataclasses.replace(base, network=member.network)
    other = other if other.has_column_names else other.with_column_names(base._columns)
    try:
        far = outside(member.shifts, in_coordinates_of(there, other))
    except (DeltaError, ValueError):
        return ""
    if not far:
        return "the new network lies outside of the promised set by less than the last digit"
    said = (
        f"{len(far)} parameters of the new network lie outside of the promised set, by at most "
        f"{far[0].beyond:.3g} ({far[0].name})"
    )
    rounded = far[0].beyond <= _ROUNDED * max(1.0, abs(far[0].value))
    return f"{said}: as rounding to float32 does" if rounded else said


def _lies_in(member: Member, base: Model, other: Model) -> bool:
    """Whether a model, as a network behind the input transform of a set, lies in the set for certain.

    Where nothing was fitted again this is exact. Else the parameters were computed, and all that they
    may be in real numbers must lie inside.
    """
    there = dataclasses.replace(base, network=member.network)
    other = other if other.has_column_names else other.with_column_names(base._columns)
    net = in_coordinates_of(there, other)
    if net is other.network:
        return member.shifts.contains(net)
    first, *rest = net.layers
    if member.network.input_transform.matrix is not None or first.b is None:
        return False  # what was solved for holds to rounding only, and no parameter can bear it
    W, b = rounding_in_coordinates_of(there, other)
    behind = [(layer.W, layer.b) for layer in rest]
    ends = [(first.W + sign * W, first.b + sign * b) for sign in (-1.0, 1.0)]
    return all(member.shifts.contains(net.with_layers([end, *behind])) for end in ends)


# -- missing cells ---------------------------------------------------------------------------------


class Refilled(NamedTuple):
    """Promises with missing cells that another model fills in another way.

    Attributes
    ----------
    rows
        Which promises.
    unreadable
        Which promises the model cannot read at all, since it fills nothing in.
    points, low, high
        Of ``rows``, as the model of the promises encodes them, with what the other one fills in.
    table
        The answers of ``rows`` in original units, with the cells missing.
    """

    rows: npt.NDArray[np.intp]
    unreadable: npt.NDArray[np.intp]
    points: Array
    low: Array
    high: Array
    table: pd.DataFrame


def refilled(group: OpenPromises, model: Model) -> Refilled | None:
    """Promises with cells that a model fills in another way; None where there are none."""
    base, own = group.terms.model.schema, model.schema.by_name
    other = {
        name
        for name, feature in base.by_name.items()
        if feature.missing is not None and name in own and own[name].missing != feature.missing
    }
    facts = [json.loads(text) for text in group.facts] if other else []
    gaps = [other.intersection(_still_missing(one)) for one in facts]
    silent = {name for name in other if own[name].missing is None}
    unreadable = [n for n, names in enumerate(gaps) if names & silent]
    rows = [n for n, names in enumerate(gaps) if names and not names & silent]
    if not rows and not unreadable:
        return None
    filled, missing = [], []
    for n in rows:
        answer = facts[n]["answer"]
        filled.append(answer | {name: own[name].missing for name in gaps[n]})
        missing.append(answer | dict.fromkeys(gaps[n], np.nan))
    points, low, high = (part[rows].copy() for part in (group.points, group.low, group.high))
    if rows:
        codes, problems = base.encode_people(pd.DataFrame(filled).infer_objects())
        unreadable += [rows[n] for n in problems]
        good = [n for n in range(len(rows)) if n not in problems]
        for n in good:
            for name in gaps[rows[n]]:
                span = base.span(name)
                for part in (points, low, high):
                    part[n, span] = codes[n, span]
        rows = [rows[n] for n in good]
        points, low, high = points[good], low[good], high[good]
        missing = [missing[n] for n in good]
    where = np.array(rows, dtype=np.intp)
    table = pd.DataFrame(missing).infer_objects()
    return Refilled(where, np.array(unreadable, dtype=np.intp), points, low, high, table)


def _still_missing(facts: dict[str, Any]) -> list[str]:
    """Features whose cell the person left missing and the answer does not fill."""
    before, after = facts["original"], facts["answer"]
    return [name for name in facts["imputed"] if before[name] == after[name]]
