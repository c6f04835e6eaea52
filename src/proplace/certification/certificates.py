"""From verdicts to certificates, for whole tables.

While rows are decided, a :class:`Notes` keeps what proves them: the leaves of their trees with their
multipliers, or the activations of a shift that misses the margin. Afterwards the multipliers are
rounded to few digits and every proof is tested at once, by outward-rounded floats; what fails gets
more digits, and in the end the exact checker. A row without a proof has no verdict. The JSON of a
certificate is written when it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from proplace.certification import proof
from proplace.certification.batched_bnb import Nodes, root_nodes
from proplace.certification.bounds import Root, start_slopes
from proplace.certification.proof import Certificate
from proplace.certification.rounding import Enclosure
from proplace.certification.shift_recovery import shifted_network

if TYPE_CHECKING:
    from proplace.certification.bounds import Index, Mask
    from proplace.network import Array, Network
    from proplace.shifts import Shifts

_DIGITS = (4, 8, None)  # of multipliers: as few as prove the margin; None is all of them


@dataclass(eq=False)
class Notes:
    """What was learnt about a batch of rows while they were decided."""

    root: Root | None = None  # None: no hidden layer
    tight: Mask | None = None  # rows whose ranges were tightened
    leaves: list[list[Nodes]] = field(default_factory=list)  # per objective
    hidden: list[Array] = field(default_factory=list)  # of the worst shift found for each row
    worst: Index | None = None  # the objective that this shift is for

    def begin(self, root: Root | None, rows: int) -> None:
        """Start with the ranges of the rows."""
        self.root = root
        self.tight = np.zeros(rows, dtype=bool)
        self.worst = np.zeros(rows, dtype=np.intp)
        if root is not None:
            widths = [root.low.shape[1], *(level.L_min.shape[1] for level in root.levels)]
            self.hidden = [np.zeros((rows, width)) for width in widths]

    def attack(self, rows: Index, hidden: Sequence[Array], objective: int) -> None:
        """Keep the activations of a better attack on the given rows."""
        assert self.worst is not None  # noqa: S101  (begin comes first)
        self.worst[rows] = objective
        for kept, layer in zip(self.hidden, hidden, strict=True):
            kept[rows] = layer

    def tightened(self, rows: Index, root: Root) -> None:
        """Replace the ranges of the given rows."""
        assert self.root is not None  # noqa: S101  (begin comes first)
        assert self.tight is not None  # noqa: S101
        self.tight[rows] = True
        if len(rows) == len(self.root):
            self.root = root
            return
        levels = zip(self.root.levels, root.levels, strict=True)
        self.root = Root(
            self.root.low, self.root.high, tuple(level.put(rows, new) for level, new in levels)
        )


class Proofs:
    """Proofs of a batch of rows, tested; ``proved`` says for which rows there is one."""

    def __init__(
        self,
        net: Network,
        shifts: Shifts,
        target: int,
        X: Array,
        margin: Array,
        notes: Notes,
        robust: Index,
        missed: Index,
        risky: Index,
        deadline: float = np.inf,
    ) -> None:
        self.net, self.shifts, self.target = net, shifts, target
        self.X, self.margin, self.notes, self.deadline = X, margin, notes, deadline
        self.objectives = net.objectives(target)
        self.robust = np.zeros(len(X), dtype=bool)
        self.robust[robust] = True
        self.proved = self.robust.copy()
        self.proved[missed] = True
        self._prove(robust, risky)

    # -- robust rows -------------------------------------------------------------------------

    def _prove(self, robust: Index, risky: Index) -> None:
        """Find the fewest digits with which the proof of each robust row passes.

        What is decided by a hair is seen by the exact checker. If it does not agree, the opposite may be
        true: rounding can have turned the verdict.
        """
        root = self.notes.root
        if root is None or not root.levels:
            self.lower: list[Array] = []
            self.upper: list[Array] = []
        else:
            self.lower = start_slopes(root)
            self.upper = [level.chord[0].copy() for level in root.levels]
        self.nodes = [self._gathered(o, robust, risky) for o in range(len(self.objectives))]
        left = robust
        for digits in _DIGITS:
            if not len(left):
                break
            left = self._test(left, digits)
        for row in (*left, *risky):  # too near for floats, perhaps not for integers
            self.proved[row] = self._checked(int(row))
            if not self.proved[row]:
                self.robust[row] = ~self.robust[row]
                self.proved[row] = self._checked(int(row))

    def _checked(self, row: int) -> bool:
        """Whether the exact checker accepts the proof of a row; after the deadline it is not asked."""
        if time.monotonic() >= self.deadline:
            return False
        try:
            return self.certificate(row).check(self.net).accepted
        except ValueError:  # the shift, or a slope, overflowed
            return False

    def _gathered(self, objective: int, robust: Index, risky: Index) -> Nodes:
        """Leaves of all robust rows for one objective, sorted by row; a first glance has one.

        The trees of risky rows were not grown to their end, so they have that one.
        """
        root = self.notes.root
        if root is None:
            return Nodes(np.sort(np.concatenate([robust, risky])), [], [], [])
        wanted = self._mask(robust)
        kept = [
            nodes.take(np.flatnonzero(wanted[nodes.row])) for nodes in self.notes.leaves[objective]
        ]
        seen = self._mask(*(nodes.row for nodes in kept))
        parts = [root_nodes(root, np.concatenate([robust[~seen[robust]], risky])), *kept]
        nodes = Nodes(
            np.concatenate([part.row for part in parts]),
            [np.concatenate(layers) for layers in zip(*(p.splits for p in parts), strict=True)],
            [np.concatenate(layers) for layers in zip(*(p.alpha for p in parts), strict=True)],
            [np.concatenate(layers) for layers in zip(*(p.gamma for p in parts), strict=True)],
        )
        return nodes.take(np.argsort(nodes.row, kind="stable"))

    def _mask(self, *rows: Index) -> Mask:
        mask = np.zeros(len(self.X), dtype=bool)
        for some in rows:
            mask[some] = True
        return mask

    def _test(self, rows: Index, digits: int | None) -> Index:
        """Round the multipliers of the rows, keep what passes, return the rows that fail."""
        lower = [layer[rows] for layer in self.lower]
        upper = [_rounded(layer[rows], digits) for layer in self.upper]
        failed = np.zeros(len(self.X), dtype=bool)
        assert self.notes.tight is not None  # noqa: S101  (begin came first)
        is_tight = self.notes.tight[rows] & (len(self.upper) > 1)
        chosen = self._mask(rows)
        where = [np.flatnonzero(chosen[nodes.row]) for nodes in self.nodes]
        parts = [nodes.take(which) for nodes, which in zip(self.nodes, where, strict=True)]
        for part in parts:
            part.alpha = [_rounded(layer, digits) for layer in part.alpha]
            part.gamma = [_significant(layer, digits) for layer in part.gamma]
        for tighten in (False, True):
            group = np.flatnonzero(is_tight == tighten)
            if not len(group):
                continue
            place = np.full(len(self.X), -1)
            place[rows[group]] = np.arange(len(group))
            enclosure = Enclosure(
                self.net,
                self.shifts,
                self.X[rows[group]],
                [layer[group] for layer in lower],
                [layer[group] for layer in upper],
                tighten=tighten,
            )
            for c, part in zip(self.objectives, parts, strict=True):
                mine = np.flatnonzero(place[part.row] >= 0)
                leaves = part.take(mine)
                leaves.row = place[leaves.row]
                value, used = enclosure.bounds(c, leaves)
                failed[part.row[mine[value < self.margin[part.row[mine]]]]] = True
                for i, mask in enumerate(used):  # what is not used need not be written
                    usual = lower[i][group][leaves.row]
                    part.alpha[i][mine] = np.where(mask, part.alpha[i][mine], usual)
        for nodes, which, part in zip(self.nodes, where, parts, strict=True):
            keep = np.ones(len(which), dtype=bool) if digits is None else ~failed[part.row]
            for kept, layer in zip(nodes.alpha + nodes.gamma, part.alpha + part.gamma, strict=True):
                kept[which[keep]] = layer[keep]
        passed = ~failed[rows]
        for kept, layer in zip(self.upper, upper, strict=True):
            kept[rows[passed]] = layer[passed]
        return rows[~passed]

    # -- one certificate ---------------------------------------------------------------------

    def certificate(self, row: int) -> Certificate:
        """Write down the proof of one row."""
        robust = bool(self.robust[row])
        facts = proof.claim(
            proof.digest(self.net),
            self.shifts,
            self.X[row],
            self.target,
            float(self.margin[row]),
            "robust" if robust else "not robust",
        )
        facts |= self._tree(row) if robust else self._shift(row)
        return Certificate.of(facts)

    def _tree(self, row: int) -> dict[str, Any]:
        lower, upper = ([layer[row] for layer in layers] for layers in (self.lower, self.upper))
        trees = []
        for nodes in self.nodes:
            first, last = np.searchsorted(nodes.row, [row, row + 1])
            trees.append(proof.tree(nodes.take(np.arange(first, last)), lower))
        assert self.notes.tight is not None  # noqa: S101  (begin came first)
        return {
            "tighten": bool(len(upper) > 1 and self.notes.tight[row]),
            "lower": [[proof.short(value) for value in layer] for layer in lower],
            "upper": [[proof.short(value) for value in layer] for layer in upper],
            "trees": trees,
        }

    def _shift(self, row: int) -> dict[str, Any]:
        assert self.notes.worst is not None  # noqa: S101  (begin came first)
        u = self.net.transform(self.X[row])[0]
        hidden = [layer[row] for layer in self.notes.hidden]
        c = self.objectives[self.notes.worst[row]]
        with np.errstate(all="ignore"):
            worst = shifted_network(self.net, self.shifts, u, hidden, c)
        return {"shifted": proof.shifted_fields(worst)}


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a test of one point has proved: at least ``lower`` over all of Delta."""

    point: Array
    lower: float
    notes: Notes

    def certificate(
        self, net: Network, shifts: Shifts, target: int, margin: float
    ) -> Certificate | None:
        """Write down, and test, the proof that the point keeps a margin; None if there is none."""
        if not self.lower >= margin:
            return None
        row, none = np.zeros(1, np.intp), np.zeros(0, np.intp)
        X, wanted = self.point[None], np.array([margin])
        proofs = Proofs(net, shifts, target, X, wanted, self.notes, row, none, none)
        return proofs.certificate(0) if proofs.proved[0] and proofs.robust[0] else None


class Certificates(Sequence[Certificate | None]):
    """Certificates of a table, one per row; None where a row has no verdict."""

    def __init__(self, parts: Sequence[Proofs]) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *(len(part.X) for part in parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, i: int) -> Certificate | None: ...
    @overload
    def __getitem__(self, i: slice) -> list[Certificate | None]: ...
    def __getitem__(self, i: int | slice) -> Certificate | list[Certificate | None] | None:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        i %= len(self)
        part = int(np.searchsorted(self._starts, i, side="right")) - 1
        proofs, row = self._parts[part], i - int(self._starts[part])
        return proofs.certificate(row) if proofs.proved[row] else None

    def __repr__(self) -> str:
        return f"Certificates({sum(int(part.proved.sum()) for part in self._parts)} of {len(self)})"


def _rounded(values: Array, digits: int | None) -> Array:
    if digits is None:
        return values.copy()
    return np.minimum(np.maximum(np.round(values, digits), 0.0), 1.0)


def _significant(values: Array, digits: int | None) -> Array:
    values = values.copy()
    if digits is not None:
        where = np.nonzero(values)
        values[where] = [float(f"{value:.{digits}g}") for value in values[where]]
    return values
