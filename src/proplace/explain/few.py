r"""Answers that change few features.

For a set S of features let :math:`R(S)` be the region of the person with all other features kept, as
if they were immutable (neighbours are made to fit the kept values and tested again), and :math:`d(S)`
the distance of its nearest robust point. With :math:`d^*` the distance of the nearest answer, of all
features that may be changed, ``prefer="few"`` asks for

.. math::
    \min |S| \quad\text{over all S with } d(S) \le 1.25 \cdot d^* ,

and of the sets with as few features for the one with the least :math:`d(S)`; ``max_changes`` asks for
the least :math:`d(S)` of all S with at most so many features. The region of a smaller set need not lie
in that of a larger one, so no set is ruled out by another. What is ruled out is whatever cannot reach
the margin at all (:mod:`proplace.search.subsets`); the sets that are left are searched, the most
promising first, each for something nearer than the best so far.

That is exact as long as the work stays within ``MOST_SETS`` searches and ``MOST_WORK``. Beyond, the
nearest answer is shortened: what it needs most comes first, then every change that can be left out is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from proplace.explain.findings import Finding
from proplace.search.subsets import MOST_WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from proplace.core.network import Array
    from proplace.explain.proving import Clock
    from proplace.schema import Schema
    from proplace.search.subsets import Features, OpenSets, SubsetBounds

STRETCH = 1.25
"""Largest ratio of the distance of an answer with few changes to the smallest distance."""

MOST_SETS = 40
"""Sets of features whose regions are searched for one answer, at most."""

_HOW_NEAR = "with steps it is not proved how near the nearest answer is"
_EQUAL = 1e-9  # relative difference of distances that count as equal
_WIDER = (1.25, 2.0, 4.0, math.inf)  # times the least distance: where answers are sought in turn
_NEARER = "that none with as few changes is nearer is not proved"


class Tried(NamedTuple):
    """What a search of one region gave; ``settled``: nothing nearer is there, which is proved.

    ``rounded``: the counterfactual is written in steps, so that the bound is the hull's.
    """

    finding: Finding
    settled: bool
    rounded: bool = False


@dataclass
class _Level:
    """The sets of one size: the nearest answer so far, whether that is proved, what was searched."""

    cutoff: float
    best: Finding | None = None
    proved: bool = True
    searched: set[Features] = field(default_factory=set)


@dataclass(eq=False)
class FewChanges:
    """The search for answers with few changes, for one person.

    Attributes
    ----------
    schema, near
        The features, and the nearest answer.
    solve
        Searches the region of a set of features for a point nearer than a cutoff.
    bounds
        Excludes sets.
    clock
        When to end.
    rounded
        Whether ``near`` was rounded to steps without a proof that it is the nearest. Then sets are
        excluded up to ``STRETCH`` times its distance, which is more than is asked, and an answer is
        proved to lie that near where it does so of the bound of ``near``.
    """

    schema: Schema
    near: Finding
    solve: Callable[[Features, float], Tried]
    bounds: SubsetBounds
    clock: Clock
    rounded: bool = False

    def __post_init__(self) -> None:
        self.searched, self.within = 0, math.inf

    # -- what is asked -----------------------------------------------------------------------------

    def at_most(self, most: int) -> Finding | None:
        """The nearest answer with at most so many changes; None: there is none, which is proved."""
        near = self.near
        few = len(changed(near, self.schema)) <= most
        best, proved = (near, near.status == "optimal") if few else (None, True)
        for factor in (1.0,) if few else _WIDER:
            for size in range(1, min(most, len(self.schema.features)) + 1):
                if self.clock.over:
                    proved = False
                    break
                cutoff = factor * near.distance if best is None else best.distance
                level = self._level(size, cutoff)
                proved &= level.proved
                best = level.best or best
            if best is not None or not proved:
                break
        if best is None and proved:
            return None
        if best is None:
            best = self._shortened(most, math.inf)
        if len(changed(best, self.schema)) > most:
            why = (
                "the time limit came" if self.clock.over else "there are too many sets of features"
            )
            reason = f"{why} before an answer with at most {most} changes was found or excluded"
            return Finding("not_found", f"{reason}; raise max_changes", x=near.x)
        why = (
            "" if proved else f"that no answer with at most {most} changes is nearer is not proved"
        )
        return self._said(best, why)

    def fewest(self) -> Finding:
        """The answer with the fewest changes within ``STRETCH`` times the least distance."""
        cutoff, self.within = STRETCH * self.near.distance, STRETCH * self.near.bound
        count = len(changed(self.near, self.schema))
        for size in range(1, count + 1):
            level = self._level(size, cutoff if size < count else self.near.distance)
            if level.best is not None:
                return self._said(level.best, "" if level.proved else _NEARER)
            if not level.proved:
                break
        else:
            return self._said(self.near, "")
        best = self._shortened(size, cutoff)
        count = len(changed(best, self.schema))
        if size >= count:
            return self._said(best, _NEARER)
        least = f"; at least {size} are needed" if size > 1 else ""
        return self._said(
            best, f"that fewer than {count} changes are not enough is not proved{least}"
        )

    def _said(self, best: Finding, why: str) -> Finding:
        """An answer with what is proved of it; the bound is that of the nearest one."""
        near = self.near
        bound = min(near.bound, best.distance)
        if near.status != "optimal" and not (self.rounded and best is not near):
            why = "; ".join(part for part in (why, near.reason) if part)
        elif not why and best.status != "optimal":
            why = best.reason
        elif not why and self.rounded and best.distance > self.within * (1.0 + _EQUAL):
            why = _HOW_NEAR
        return replace(
            best,
            status="feasible" if why else "optimal",
            reason=why,
            bound=bound,
        )

    # -- all sets of one size ----------------------------------------------------------------------

    def _level(self, size: int, cutoff: float) -> _Level:
        """The nearest answer of all sets of a size that lies within a cutoff.

        The first sets that are met are searched at once, until there is an answer: with a smaller
        cutoff much more is excluded.
        """
        level = _Level(cutoff * (1.0 + _EQUAL))

        def tried(features: Features) -> float:
            if level.best is None and not self._over:
                self._try(level, features)
            return level.cutoff

        found = self._open(size, level.cutoff, tried=tried)
        level.proved &= found.complete
        todo = self._still_open(size, level, found.sets)
        while todo:
            if self._over:
                level.proved = False
                break
            features, *todo = todo
            if self._try(level, features):
                todo = self._still_open(size, level, todo)
        return level

    def _open(self, size: int, cutoff: float, **options: Any) -> OpenSets:
        left = MOST_WORK - self.bounds.work
        return self.bounds.open_sets(size, cutoff, most=left, deadline=self.clock.search, **options)

    def _still_open(self, size: int, level: _Level, sets: Iterable[Features]) -> list[Features]:
        """The sets that may have something nearer, the most promising first."""
        sets = [each for each in sets if each not in level.searched]
        if not sets:
            return []
        found = self._open(size, level.cutoff, among=sets)
        left = found.sets if found.complete else {each: found.sets.get(each, 0.0) for each in sets}
        return sorted(left, key=lambda each: (left[each], sorted(each)))

    def _try(self, level: _Level, features: Features) -> bool:
        """Search the region of a set; whether it has something nearer."""
        self.searched += 1
        level.searched.add(features)
        finding, settled, _ = self.solve(features, level.cutoff)
        level.proved &= settled
        if not (finding.found and finding.distance <= level.cutoff):
            return False
        level.best, level.cutoff = finding, finding.distance
        return True

    @property
    def _over(self) -> bool:
        return self.searched >= MOST_SETS or self.clock.over

    # -- where there are too many sets ---------------------------------------------------------------

    def _shortened(self, least: int, cutoff: float) -> Finding:
        """An answer with fewer changes, not proved the shortest: of which none can be left out.

        The features that matter most for the nearest answer come first; then what can go, goes.
        """
        best = self.near
        order = self._by_weight(best)
        for size in _growing(least, len(order)):
            features = frozenset(order[:size])
            found = self._shorter([features], cutoff)
            if found is not None:
                best = found
                break
        while True:
            now = changed(best, self.schema)
            order = self._by_weight(best)
            shorter = self._shorter([now - {each} for each in reversed(order)], cutoff)
            if shorter is None:
                return best
            best = shorter

    def _shorter(self, sets: list[Features], cutoff: float) -> Finding | None:
        """An answer of the first of some sets of a size that has one within the cutoff."""
        cutoff *= 1.0 + _EQUAL
        sets = [each for each in sets if each]
        for features in self.bounds.not_excluded(sets, cutoff, self.clock.search):
            if self.clock.over:
                return None
            finding = self.solve(features, cutoff).finding
            if finding.found and finding.distance <= cutoff:
                return finding
        return None

    def _by_weight(self, finding: Finding) -> list[int]:
        """The changed features, those first without which the margin would be least."""
        (x, point), features = _ends(finding), sorted(changed(finding, self.schema))
        rows = np.tile(point, (len(features), 1))
        for row, feature in zip(rows, features, strict=True):
            span = self.schema.spans[feature]
            row[span] = x[span]
        values = self.bounds.values(rows)
        return [features[i] for i in np.argsort(values, kind="stable")]


def changed(finding: Finding, schema: Schema) -> Features:
    """The features that an answer changes."""
    x, point = _ends(finding)
    return frozenset(schema.columns[int(j)].feature for j in np.flatnonzero(x != point))


def _ends(finding: Finding) -> tuple[Array, Array]:
    assert finding.x is not None and finding.point is not None  # noqa: S101, PT018
    return finding.x, finding.point


def _growing(first: int, end: int) -> Iterator[int]:
    """Sizes from the first on, in steps that double, below the end."""
    size, step = first, 1
    while size < end:
        yield size
        size, step = size + step, 2 * step
