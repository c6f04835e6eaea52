r"""The plausible region of a person: robust neighbours, grouped into convex pieces.

:math:`S(k, \Delta)` are the k nearest distinct rows of the training data that the person may become
and that are robust at the margin of the search, for every member of the guarantee. If a rule
forbids a row, the row is first adapted: an immutable feature takes the person's value. Adapted rows
are tested again. A counterfactual therefore exists whenever the data contain one admissible robust
row. Rows that share the person's immutable categories without a change are preferred.

Binary and one-hot columns are 0 or 1 at every vertex, so a convex combination is legal there only
if all of its vertices agree. The region is therefore one hull for each *profile* (combination of
their values), and the person is one more vertex of the hull of its own profile.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from scipy.spatial import KDTree

from proplace.certification import Budget, prove
from proplace.core.guarantee import Guarantee

if TYPE_CHECKING:
    from proplace.core.distances import L1
    from proplace.core.network import Array
    from proplace.region.typical import Typical
    from proplace.schema import Schema
    from proplace.schema.person import Person

Mask = npt.NDArray[np.bool_]
RegionKind = Literal["hull", "box"]

_BLOCK = 256
BUDGET = Budget(2_000, 50)
"""Work limit for the robustness test of a row. A row that needs more is not a neighbour."""
_MOST_SCANNED = 20_000  # rows among which typical ones are sought
_TRIED, _HALVINGS = 50, 12  # rows and sizes that are tried to name a smaller shift set


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Robust rows for one person, nearest first. ``reason`` explains an empty result.

    ``timed_out``: the deadline came before all rows were tested, so nearer ones may be missing.
    ``typical``: False if typical rows were requested and none exists.
    """

    rows: Array
    status: Literal["found", "no_robust_neighbour", "infeasible_rules"]
    reason: str = ""
    timed_out: bool = False
    typical: bool = True


class _Found:
    """Collected robust rows: up to k of them, and up to k atypical ones as a fallback."""

    def __init__(self, k: int, typical: Typical | None) -> None:
        self.k, self.typical = k, typical
        self.good: dict[bytes, Array] = {}
        self.atypical: dict[bytes, Array] = {}

    @property
    def full(self) -> bool:
        """True if there are k rows."""
        return len(self.good) >= self.k

    def add(self, rows: Array) -> None:
        """Add rows in their order."""
        passes = [True] * len(rows) if self.typical is None else self.typical.test(rows).tolist()
        for row, good in zip(rows, passes, strict=True):
            found = self.good if good else self.atypical
            if len(found) < self.k:
                found.setdefault(row.tobytes(), row)


@dataclass(eq=False)
class RobustRows:
    """The training rows, with a mask of those that are robust for every member of a guarantee.

    ``slack`` is required in addition to the margin of each member.
    """

    guarantee: Guarantee
    target: int
    slack: float
    rows: Array
    distance: L1
    target_label: str = ""  # the target by name, if it has one
    progress: bool = False  # show a bar while the rows are tested
    robust: Array = field(init=False)
    _none: str = field(init=False, default="")  # reason for an empty set
    _tree: KDTree = field(init=False)
    _asked: Guarantee = field(init=False)

    def __post_init__(self) -> None:
        self._asked = self.guarantee.with_slack(self.slack)
        self.robust = self.rows[self.test(self.rows, progress=self.progress)]
        if not len(self.robust):
            self._none = self._no_robust_rows()
        self._tree = KDTree(self.robust * self.distance.weights)

    def test(self, rows: Array, deadline: float = math.inf, *, progress: bool = False) -> Mask:
        """Test which rows are robust at the margin of the search, until the deadline."""
        found = prove(
            self._asked.cheapest_first(),
            rows,
            self.target,
            deadline=deadline,
            budget=BUDGET,
            certificates=False,
            progress=progress,
        )
        return found.robust

    def nearest(self, x: Array, k: int, typical: Typical | None = None) -> Neighbours:
        """Return the k nearest robust rows for a person whom no rule restricts.

        With ``typical``, atypical rows are left out, unless all rows are atypical.
        """
        if not len(self.robust):
            return Neighbours(self.robust, "no_robust_neighbour", self._none)
        count, rows = min(k, len(self.robust)), self.robust[:0]
        wanted = count
        while True:
            # A few more than k, so that rows at equal distance are ordered by their position.
            more = min(len(self.robust), count + 8)
            _, found = self._tree.query(x * self.distance.weights, k=more, p=1.0)
            near = self.robust[np.sort(np.atleast_1d(found))]
            near = near[np.argsort(self.distance.between(x, near), kind="stable")]
            rows = near if typical is None else near[typical.test(near)]
            if len(rows) >= wanted or more >= min(len(self.robust), _MOST_SCANNED):
                break
            count = 4 * more
        if not len(rows):
            return Neighbours(near[:wanted], "found", typical=False)
        return Neighbours(rows[:wanted], "found")

    def admissible(
        self,
        person: Person,
        k: int,
        deadline: float = math.inf,
        typical: Typical | None = None,
    ) -> Neighbours:
        """Return the k nearest rows that the person may become and that are robust then.

        Rows with the person's immutable categories come first. If they are fewer than k, other rows
        follow with these categories set to the person's. With ``typical``, atypical rows are left
        out, unless all rows are atypical.
        """
        found = _Found(k, typical)
        adapted = person.adapt(self.rows)
        allowed = person.allowed(adapted)
        timed_out = self._collect(person, adapted[allowed], found, deadline)
        if not (found.full or timed_out):
            others = person.adapt(self.rows[~allowed], overwrite_categories=True)
            timed_out = self._collect(person, others[person.allowed(others)], found, deadline)
        rows = found.good or found.atypical
        if rows or timed_out:
            stacked = np.array(list(rows.values())).reshape(-1, self.rows.shape[1])
            return Neighbours(stacked, "found", timed_out=timed_out, typical=bool(found.good))
        return self._why_none(person, deadline)

    def _collect(self, person: Person, rows: Array, found: _Found, deadline: float) -> bool:
        """Add robust rows, nearest first, until there are k; True if the deadline comes first."""
        order = np.argsort(self.distance.between(person.x, rows), kind="stable")
        for start in range(0, len(order), _BLOCK):
            block = rows[order[start : start + _BLOCK]]
            block = block[self.test(block, deadline)]
            timed_out = time.monotonic() >= deadline
            found.add(block)
            if found.full or (found.atypical and start >= _MOST_SCANNED):
                return timed_out and not found.full
            if timed_out:
                return True
        return False

    def _why_none(self, person: Person, deadline: float) -> Neighbours:
        none, main = self.rows[:0], self.guarantee.current
        if not len(self.robust):
            return Neighbours(none, "no_robust_neighbour", self._none)
        broken = person.broken_rules(person.adapt(self.robust, overwrite_categories=True))
        if broken:
            rules = "; ".join(f"{label} ({count})" for label, count in list(broken.items())[:3])
            reason = (
                f"of {len(self.robust)} robust rows none fits the limits of this person; "
                f"rows excluded by each limit: {rules}"
            )
        else:
            rules = "; ".join(list(person.broken_rules(self.robust))[:3])
            rows = person.adapt(self.rows, overwrite_categories=True)
            each = self._for_each(rows[person.allowed(rows)], deadline) or f" {main.description}"
            reason = (
                f"within the limits of this person no row of the data is robust{each} "
                f"({rules}); {main.advice} or loosen a limit"
            )
        return Neighbours(none, "infeasible_rules", reason)

    def _no_robust_rows(self) -> str:
        """Explain that no training row is robust, and how to change that."""
        main = self.guarantee.current
        reached = int((main.network.predict(self.rows) == self.target).sum())
        target_label = self.target_label or f"class {self.target}"
        each = self._for_each(self.rows) or f" {main.description}"
        return (
            f"none of {len(self.rows)} training rows is robust for {target_label}{each} "
            f"({reached} have the class); {self._smaller() or main.advice} or add data"
        )

    def _smaller(self) -> str:
        """Return the advice to take a smaller shift set, at which some rows are robust."""
        main = self.guarantee.current
        if len(self.guarantee.members) > 1:
            return ""
        nearest = np.argsort(-main.network.margin(self.rows, self.target))[:_TRIED]
        for t in 0.5 ** np.arange(1, _HALVINGS):
            asked = Guarantee((replace(main, shifts=main.shifts.scaled(float(t))),))
            found = prove(
                asked.with_slack(self.slack),
                self.rows[nearest],
                self.target,
                budget=BUDGET,
                certificates=False,
            )
            if count := int(found.robust.sum()):
                size = f"{t:g} times as large" if main.radius is None else f"{t * main.radius:.6g}"
                one = f"lower delta, for example to {size}"
                if main.has_parameter_intervals:
                    one = f"take a smaller shift set, such as shifts.scaled({t:g})"
                rows = f"{len(nearest)} rows with the largest margins"
                return f"{one} ({count} of the {rows} are robust then),"
        return ""

    def _for_each(self, rows: Array, deadline: float = math.inf) -> str:
        """Count the robust rows for the first member, for the first two, and so on."""
        members = self.guarantee.members
        if len(members) == 1:
            return ""
        names = [member.name or f"network {i}" for i, member in enumerate(members, start=1)]
        found = prove(
            self._asked,
            rows,
            self.target,
            deadline=deadline,
            budget=BUDGET,
            certificates=False,
        )
        counts = [int((found.failed > i).sum()) for i in range(len(members))]
        also = ["", *(["also "] * len(names[1:]))]
        parts = [f"{n} {a}for {name}" for n, a, name in zip(counts, also, names, strict=True)]
        return f" for every network: {', '.join(parts)}"


def unrestricted(schema: Schema) -> bool:
    """Test if no rule and no bound depends on the person."""
    return not schema.rules and not any(
        feature.immutable
        or getattr(feature, "direction", None)
        or getattr(feature, "max_increase", None) is not None
        or getattr(feature, "max_decrease", None) is not None
        for feature in schema.features
    )
