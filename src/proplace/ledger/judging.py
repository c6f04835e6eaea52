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

import itertools
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from proplace.certification import lower_margins, prove, required_margins
from proplace.core.errors import ProplaceError
from proplace.core.guarantee import Guarantee
from proplace.core.shifts import Shifts
from proplace.ledger.fills import refilled
from proplace.retrain.keeping import NO_TIE
from proplace.schema import Continuous

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from proplace.certification import GuaranteeResult
    from proplace.core.guarantee import Member
    from proplace.core.network import Array
    from proplace.ledger.comparing import Comparison
    from proplace.ledger.promise import OpenPromises
    from proplace.loaders.model import Model

    Mask = npt.NDArray[np.bool_]

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
