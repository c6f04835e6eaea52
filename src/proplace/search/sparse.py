r"""Sparse counterfactuals: robust points, typical if requested, that change few features.

The search starts from robust training rows and restores the person's own values of changed
features. All points are tested in batches: first the margin under the networks themselves, then the
exact robustness test, then the plausibility. Values are those of accepted training rows.

1. *Singles*: change one feature. The nearest point that passes ends the search for fewer changes.
2. *Put back*: from each of the nearest robust rows, restore one changed feature after another, with
   the largest margin first, as long as the point passes.
3. *Compress* the points with the fewest changes: restore one feature and move another one, or
restore
   two and move or add one. After a success, put back again.
4. *Pairs*: if more than two changes remain, try two features on a small grid of values.
5. *Polish* the smallest sets of features: find the nearest point that passes on a finer grid, then
   bring single values nearer.

Nothing is proved about points that the search has not tried: fewer changes may be possible.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.core.network import Array
    from proplace.region.typical import Typical
    from proplace.schema import Schema
    from proplace.search.problem import SearchProblem

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

VALUES = 25  # of a feature, for singles
FINE_VALUES = 256  # of a feature, for polishing
_MOVES = 8  # values of a moved feature
_COMPRESSED = 3  # points that are compressed or polished
_MAX_ROWS = 40_000  # points of one step that are screened by their margin
_MOST_TESTS = 1_500  # of these, the ones that get the exact test
_PAIRED, _PAIR_VALUES = 14, 12  # features and values of each, for pairs
_GRID = 4_000  # points of one polishing
_SAMPLE = 20_000  # accepted rows from which values are chosen
_BEYOND = 1.3  # largest ratio of a polished change to the change before
_BLOCK, _TYPICAL_BLOCK = 300, 50  # points of one exact test, and of one test of plausibility


@dataclass(frozen=True, eq=False)
class Values:
    """The values of accepted training rows that features may take.

    Attributes
    ----------
    coarse, fine
        Encoded values of each feature, one row per value; ``fine`` of numbers alone.
    """

    coarse: tuple[Array, ...]
    fine: tuple[Array, ...]

    @classmethod
    def of(cls, schema: Schema, rows: Array) -> Values:
        """Choose values of accepted rows: half are quantiles, half spread over distinct values."""
        coarse, fine = [], []
        rows = _some(rows, _SAMPLE)
        for feature, span in zip(schema.features, schema.spans, strict=True):
            if feature.kind in ("continuous", "ordinal"):
                column = np.sort(rows[:, span.start])
                coarse.append(_spread(column, VALUES)[:, None])
                fine.append(_spread(column, FINE_VALUES)[:, None])
            else:
                found = np.unique(rows[:, span], axis=0)
                coarse.append(found)
                fine.append(found[:0])
        return cls(tuple(coarse), tuple(fine))

    def within(self, schema: Schema, lower: Array, upper: Array) -> Values:
        """Return the values within bounds of the columns."""

        def kept(parts: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(
                values[((values >= lower[span]) & (values <= upper[span])).all(axis=1)]
                for values, span in zip(parts, schema.spans, strict=True)
            )

        return Values(kept(self.coarse), kept(self.fine))


def _spread(column: Array, count: int) -> Array:
    """Return values of a sorted column: quantiles of its rows and of its distinct values."""
    distinct = np.unique(column)
    if len(distinct) <= count:
        return distinct
    half = count // 2 + 1
    return np.unique(np.concatenate([_some(column, half), _some(distinct, half)]))


@dataclass(frozen=True, eq=False)
class SparseSearch:
    """The search for one person.

    Attributes
    ----------
    problem
        The person, the networks and the distance.
    schema
        The features.
    values
        Values that features may take.
    free
        Numbers of the features that may change.
    allowed
        Test of rows against the bounds and rules of the person.
    robust
        Exact test of rows at the margin of the search.
    typical
        The reference for typical points, or None for no filter.
    deadline
        End of the search, by ``time.monotonic``.
    """

    problem: SearchProblem
    schema: Schema
    values: Values
    free: Sequence[int]
    allowed: Callable[[Array], Mask]
    robust: Callable[[Array], Mask]
    typical: Typical | None
    deadline: float = math.inf

    # -- the steps ---------------------------------------------------------------------------------

    def run(self, starts: Array, most: int | None, *, nearest: bool) -> list[Array]:
        """Return points that pass, best first, or none if all of them change more than ``most``.

        Parameters
        ----------
        starts
            Robust rows that pass the filter, nearest first.
        most
            Largest number of changes.
        nearest
            Prefer a small distance to few changes.
        """
        found = self._singles()
        if found is None or nearest:
            points = self._put_back(starts)
            points = points if found is None else np.vstack([points, found])
            points = self._compressed(points)
            if self._fewest(points) > 2 or nearest:
                pair = self._pairs()
                points = points if pair is None else np.vstack([points, pair])
        else:
            points = found[None]
        points = np.unique(points, axis=0)
        counts = self._counts(points)
        if most is not None:
            points, counts = points[counts <= most], counts[counts <= most]
        if not nearest:
            points = points[counts == counts.min(initial=len(self.schema.features))]
        points = self._by_distance(points)[:_COMPRESSED]
        return list(self._by_distance(np.array([self._polished(point) for point in points])))

    def _singles(self) -> Array | None:
        """Return the nearest point with one change that passes."""
        rows = self._with_values(self.problem.x, [(f, self.values.coarse[f]) for f in self.free])
        return self._nearest(rows)

    def _put_back(self, starts: Array) -> Array:
        """Restore one feature after another in each row, as long as the row passes."""
        points = starts.copy()
        active = list(range(len(points)))
        while active and not self._over:
            options = {i: self._restored(points[i]) for i in active}
            done = dict.fromkeys(active, 0)
            size = 1
            chosen: dict[int, Array] = {}
            while done and not self._over:
                wave = {i: options[i][start : start + size] for i, start in done.items()}
                rows = np.vstack([part for part in wave.values() if len(part)] or [points[:0]])
                passed, start = self._passing(rows), 0
                for i, part in wave.items():
                    good = np.flatnonzero(passed[start : start + len(part)])
                    start += len(part)
                    done[i] += len(part)
                    if len(good):
                        chosen[i] = part[good[0]]
                done = {i: n for i, n in done.items() if i not in chosen and n < len(options[i])}
                size *= 2
            for i, row in chosen.items():
                points[i] = row
            active = list(chosen)
        return points

    def _restored(self, point: Array) -> Array:
        """Return the point with one changed feature restored, the largest margin first."""
        rows = np.array([self._restore(point, [f]) for f in self._changes(point)]).reshape(
            -1, len(point)
        )
        return self._screened(rows, len(rows))

    def _compressed(self, points: Array) -> Array:
        """Reduce the changes of the points with the fewest changes."""
        found = []
        points = np.unique(points, axis=0)
        order = np.lexsort((self._distance(points), self._counts(points)))
        for point in points[order[:_COMPRESSED]]:
            best = point
            while not self._over:
                shorter = self._shorter(best)
                if shorter is None:
                    break
                best = self._put_back(shorter[None])[0]
            found.append(best)
        return np.vstack([*found, points])

    def _shorter(self, point: Array) -> Array | None:
        """Return a point with fewer changes that passes, near a point that passes."""
        changed = self._changes(point)
        if len(changed) < 2:
            return None
        steps = [
            (without, [f for f in changed if f not in without])
            for without in ([g] for g in changed)
        ]
        found = self._moved(point, steps)
        if found is None and len(changed) > 2:
            pairs = itertools.combinations(changed, 2)
            steps = [(list(pair), [f for f in self.free if f not in pair]) for pair in pairs]
            found = self._moved(point, steps)
        return found

    def _moved(self, point: Array, steps: list[tuple[list[int], list[int]]]) -> Array | None:
        """Restore some features and move one: the first point that passes, by its margin."""
        per_step = max(1, _MAX_ROWS // max(1, len(steps)))
        parts = []
        for without, moving in steps:
            base = self._restore(point, without)
            options = [(f, _some(self.values.coarse[f], _MOVES)) for f in moving]
            parts.append(self._with_values(base, options)[:per_step])
        rows = self._screened(np.vstack([*parts, point[None][:0]]), _MOST_TESTS)
        return self._first(rows)

    def _pairs(self) -> Array | None:
        """Return the nearest point with two changes that passes, on a small grid."""
        chosen = self._promising()
        x, parts = self.problem.x, []
        for f, g in itertools.combinations(chosen, 2):
            some = _some(self.values.coarse[f], _PAIR_VALUES)
            for row in self._with_values(x, [(f, some)]):
                parts.append(
                    self._with_values(row, [(g, _some(self.values.coarse[g], _PAIR_VALUES))])
                )
        return self._nearest(np.vstack(parts)) if parts else None

    def _promising(self) -> list[int]:
        """Return features whose single change raises the margin, or the plausibility, most."""
        margin, usual = [], []
        for f in self.free:
            rows = self._with_values(self.problem.x, [(f, _some(self.values.coarse[f], 6))])
            margin.append(self._margin(rows).max(initial=-math.inf))
            known = self.typical is not None and len(rows)
            usual.append(self.typical.plausibility(rows).max() if known and self.typical else 0.0)
        orders = [np.argsort(-np.array(gain), kind="stable").tolist() for gain in (margin, usual)]
        mixed = [n for pair in zip(*orders, strict=True) for n in pair]
        return sorted(self.free[n] for n in list(dict.fromkeys(mixed))[:_PAIRED])

    def _polished(self, point: Array) -> Array:
        """Return a nearer point with the same changed features, if one passes."""
        x = self.problem.x
        changed = self._changes(point)
        numbers = [f for f in changed if len(self.values.fine[f])]
        if not numbers:
            return point
        each = int(_GRID ** (1.0 / len(numbers)))
        best = point
        if each >= 3:
            columns = [self.schema.spans[f].start for f in numbers]
            grids = [
                self._around(float(x[j]), float(point[j]), f, each)
                for f, j in zip(numbers, columns, strict=True)
            ]
            choices = np.array(list(itertools.product(*grids)))
            rows = np.repeat(point[None], len(choices), axis=0)
            rows[:, columns] = choices
            nearer = self._nearest(rows[self._distance(rows) < self._distance(point[None])[0]])
            best = point if nearer is None else nearer
        for _ in range(2):
            before = best
            for f in numbers:
                best = self._nearer_value(best, f)
            if best is before:
                break
        return best

    def _around(self, own: float, value: float, feature: int, count: int) -> Array:
        """Return values of a feature in the direction of its change, that of the point included."""
        ends = sorted((own, own + _BEYOND * (value - own)))
        fine = self.values.fine[feature][:, 0]
        fine = fine[(fine >= ends[0]) & (fine <= ends[1]) & (fine != own)]
        found: Array = np.unique([*_some(fine, count - 1), value])
        return found

    def _nearer_value(self, point: Array, feature: int) -> Array:
        """Return the point with a nearer value of one feature, the nearest that passes."""
        x, j = self.problem.x, self.schema.spans[feature].start
        fine = self.values.fine[feature][:, 0]
        between = (fine - x[j]) * (fine - point[j]) < 0.0
        rows = np.repeat(point[None], int(between.sum()), axis=0)
        rows[:, j] = fine[between]
        nearer = self._nearest(rows)
        return point if nearer is None else nearer

    # -- tests of rows -----------------------------------------------------------------------------

    def _screened(self, rows: Array, most: int) -> Array:
        """Return the allowed rows with the largest margins, none negative, in their order."""
        rows = rows[self.allowed(rows)] if len(rows) else rows
        margins = self._margin(rows)
        order = np.argsort(-margins, kind="stable")
        return rows[order[margins[order] >= 0.0][:most]]

    def _nearest(self, rows: Array) -> Array | None:
        """Return the nearest row that passes."""
        rows = self._screened(rows, len(rows))
        return self._first(self._by_distance(rows)[:_GRID])

    def _first(self, rows: Array) -> Array | None:
        """Return the first row that passes, as long as few robust rows are atypical."""
        atypical = 0
        for start in range(0, len(rows), _BLOCK):
            if self._over or atypical > _MOST_TESTS:
                return None
            block = rows[start : start + _BLOCK]
            block = block[self.robust(block)]
            for first in range(0, len(block), _TYPICAL_BLOCK):
                part = block[first : first + _TYPICAL_BLOCK]
                good = np.flatnonzero(self._is_typical(part))
                if len(good):
                    row: Array = part[good[0]]
                    return row
                atypical += len(part)
        return None

    def _passing(self, rows: Array) -> Mask:
        """Test if each row is robust and passes the filter."""
        if not len(rows):
            return np.zeros(0, dtype=bool)
        passed = self.robust(rows)
        passed[passed] = self._is_typical(rows[passed])
        return passed

    def _is_typical(self, rows: Array) -> Mask:
        return np.ones(len(rows), dtype=bool) if self.typical is None else self.typical.test(rows)

    def _margin(self, rows: Array) -> Array:
        """Bound the excess of rows over the required margins from above, without shifts."""
        if not len(rows):
            return np.zeros(0)
        target = self.problem.target
        known = [each for each in self.problem.guarantee.members if each.contains_network]
        found: Array = np.min(
            [each.network.margin(rows, target) - each.margin for each in known], axis=0
        )
        return found - self.problem.slack

    # -- rows ----------------------------------------------------------------------------------------

    def _with_values(self, row: Array, options: list[tuple[int, Array]]) -> Array:
        """Return the row with one feature changed to each of its values, without the row itself."""
        parts = []
        for f, values in options:
            span = self.schema.spans[f]
            rows = np.repeat(row[None], len(values), axis=0)
            rows[:, span] = values
            parts.append(
                rows[
                    (values != row[span]).any(axis=1) & (values != self.problem.x[span]).any(axis=1)
                ]
            )
        return np.vstack([*parts, row[None][:0]])

    def _restore(self, point: Array, features: list[int]) -> Array:
        """Return the point with the person's own values of some features."""
        row = point.copy()
        for f in features:
            row[self.schema.spans[f]] = self.problem.x[self.schema.spans[f]]
        return row

    def _changed(self, rows: Array) -> Mask:
        """Mark the features that differ from the person's, one column per feature."""
        starts = [span.start for span in self.schema.spans]
        result: Mask = np.logical_or.reduceat(rows != self.problem.x, starts, axis=1)
        return result

    def _changes(self, point: Array) -> list[int]:
        """Return the numbers of the changed features of a point."""
        return [int(f) for f in np.flatnonzero(self._changed(point[None])[0])]

    def _counts(self, rows: Array) -> Numbers:
        result: Numbers = self._changed(rows).sum(axis=1)
        return result

    def _fewest(self, rows: Array) -> int:
        return int(self._counts(rows).min(initial=len(self.schema.features)))

    def _distance(self, rows: Array) -> Array:
        return self.problem.distance.between(self.problem.x, rows)

    def _by_distance(self, rows: Array) -> Array:
        return rows[np.argsort(self._distance(rows), kind="stable")] if len(rows) else rows

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self.deadline


def _some(values: Array, count: int) -> Array:
    """Return some values, spread evenly."""
    if len(values) <= count:
        return values
    chosen: Array = values[np.linspace(0, len(values) - 1, count).astype(int)]
    return chosen
