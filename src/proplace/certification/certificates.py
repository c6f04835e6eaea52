"""From verdicts to certificates, for whole tables.

While rows are decided, the engine keeps what proves them (:class:`ProofTrace`): the leaves of their
trees with their multipliers, or the activations of a shift that misses the threshold. Here the
multipliers are rounded to few digits and every proof is tested at once, by outward-rounded floats;
what fails gets more digits, and in the end the exact checker. A row without a proof has no verdict.
The JSON of a certificate is written when it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from proplace.certification import proof
from proplace.certification.batched_bnb import Nodes, root_nodes
from proplace.certification.bounds import start_slopes
from proplace.certification.input_boxes import InputBoxes
from proplace.certification.proof import Certificate
from proplace.certification.rounding import Enclosure, cut_unit
from proplace.certification.shift_recovery import shifted_network

if TYPE_CHECKING:
    from proplace.certification.bounds import Index, Mask
    from proplace.certification.engine import ProofTrace
    from proplace.certification.input_boxes import InputBox
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts

_DIGITS = (4, 8, None)  # of multipliers: as few as prove the threshold; None is all of them


@dataclass(frozen=True, eq=False)
class Claims:
    """What certificates are about: rows, a target class, and the margin that each row must keep.

    ``box`` holds the ends of a box around each row, where that is to be kept at every point of it;
    ``larger`` then is the network that takes such boxes, of which a trace speaks.
    """

    net: Network
    shifts: Shifts
    target: int
    X: Array
    threshold: Array
    box: InputBox | None = None
    larger: InputBoxes | None = None

    @property
    def objectives(self) -> Array:
        """Rows over the logits of which the margin is the least."""
        return self.net.objectives(self.target)

    @property
    def seen(self) -> Array:
        """Rows as the first layer sees them, of the larger network if there is one."""
        if self.box is None or self.larger is None:
            return self.net.transform(self.X)
        return self.larger.rows(*self.box)

    def take(self, rows: Index | slice) -> Claims:
        """The claims about some of the rows."""
        box = None if self.box is None else (self.box[0][rows], self.box[1][rows])
        return replace(self, X=self.X[rows], threshold=self.threshold[rows], box=box)

    def ends(self, row: int) -> InputBox | None:
        """Ends of the box around one row."""
        return None if self.box is None else (self.box[0][row], self.box[1][row])

    def shifted(self, row: int, hidden: Sequence[Array], c: Array) -> tuple[Network, Array]:
        """The network of Delta with these activations at a row, or at the point of its box they are for.

        Also returns that point. Among such networks it is the one with the least ``c . logits``.
        """
        x, ends = self.X[row], self.ends(row)
        if ends is not None and self.larger is not None:
            x, hidden = np.clip(self.larger.point(hidden), *ends), self.larger.behind(hidden)
        return shifted_network(self.net, self.shifts, self.net.transform(x)[0], hidden, c), x

    def enclosure(
        self, rows: Index, lower: Sequence[Array], upper: Sequence[Array], *, tighten: bool
    ) -> Enclosure:
        """Enclose the activations of some rows."""
        if self.box is None or self.larger is None:
            return Enclosure.of(self.net, self.shifts, self.X[rows], lower, upper, tighten=tighten)
        inputs = self.larger.rows(*(end[rows] for end in self.box))
        unit = cut_unit(self.net, self.shifts)
        return Enclosure.of(
            self.larger.net, self.larger.shifts, inputs, lower, upper, tighten=tighten, unit=unit
        )

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True, eq=False)
class Decided:
    """Rows by what their bounds say of them, up to rounding.

    Attributes
    ----------
    robust
        Rows that keep their threshold.
    refuted
        Rows for which a concrete shift misses it.
    risky
        Of the refuted: those whose shift, once it is written down, may miss it no longer.
    """

    robust: Index
    refuted: Index
    risky: Index


@dataclass(frozen=True, eq=False)
class Multipliers:
    """What the proofs of robust rows are made of.

    Attributes
    ----------
    lower, upper
        Slopes of the lower and upper sides of each inner layer, arrays (rows, width).
    leaves
        For each objective the leaves of all trees, sorted by row.
    """

    lower: list[Array]
    upper: list[Array]
    leaves: list[Nodes]


@dataclass(frozen=True, eq=False)
class Proofs:
    """Verdicts about a batch of rows, and their proofs.

    Attributes
    ----------
    robust
        The verdicts.
    proved
        Rows that have a proof; the others have no verdict.
    """

    claims: Claims
    trace: ProofTrace
    multipliers: Multipliers
    robust: Mask
    proved: Mask

    def __len__(self) -> int:
        return len(self.claims)

    def certificate(self, row: int) -> Certificate | None:
        """Write down the proof of one row; None if there is none."""
        if not self.proved[row]:
            return None
        return _certificate(
            self.claims, self.trace, self.multipliers, row, robust=bool(self.robust[row])
        )


def prove(claims: Claims, trace: ProofTrace, decided: Decided, deadline: float = np.inf) -> Proofs:
    """Prove what was decided, with the fewest digits with which the proof of each row passes.

    What is decided by a hair is given to the exact checker. If it does not agree, the opposite may be
    true, since rounding can have turned the verdict: then that is proved, if it can be.
    """
    search = _FewestDigits.of(claims, trace, decided)
    left = decided.robust
    for digits in _DIGITS:
        if not len(left):
            break
        left = search.round(left, digits)
    multipliers = search.multipliers
    robust = _mask(len(claims), decided.robust)
    proved = _mask(len(claims), decided.robust, decided.refuted)

    def accepted(row: int) -> bool:
        """Whether the exact checker accepts the proof; after the deadline it is not asked."""
        if time.monotonic() >= deadline:
            return False
        try:
            written = _certificate(claims, trace, multipliers, row, robust=bool(robust[row]))
            box = claims.shifts if claims.shifts.radii is None else None
            return written.check(claims.net, box).accepted
        except ValueError:  # the shift, or a slope, overflowed
            return False

    for row in map(int, (*left, *decided.risky)):  # too near for floats, perhaps not for integers
        proved[row] = accepted(row)
        if not proved[row]:
            robust[row] = ~robust[row]
            proved[row] = accepted(row)
    return Proofs(claims, trace, multipliers, robust, proved)


# -- multipliers of robust rows ----------------------------------------------------------------------


class _FewestDigits:
    """The multipliers of the robust rows of a batch, while they are rounded to fewer digits."""

    def __init__(self, claims: Claims, tight: Mask, multipliers: Multipliers) -> None:
        self.claims, self.tight, self.multipliers = claims, tight, multipliers

    @classmethod
    def of(cls, claims: Claims, trace: ProofTrace, decided: Decided) -> _FewestDigits:
        """Start with the multipliers as they were found."""
        lower: list[Array] = []
        upper: list[Array] = []
        if trace.activations is not None:
            lower = start_slopes(trace.activations)
            upper = [ranges.chord[0].copy() for ranges in trace.activations.preactivations]
        objectives = range(len(claims.objectives))
        leaves = [_gathered(trace, objective, decided, len(claims)) for objective in objectives]
        return cls(claims, trace.tight, Multipliers(lower, upper, leaves))

    def round(self, rows: Index, digits: int | None) -> Index:
        """Round the multipliers of the rows, keep what passes, return the rows that fail."""
        before = self.multipliers
        chosen = _mask(len(self.claims), rows)
        where = [np.flatnonzero(chosen[nodes.row]) for nodes in before.leaves]
        tried = Multipliers(
            [layer[rows] for layer in before.lower],
            [_rounded(layer[rows], digits) for layer in before.upper],
            [
                _rounded_nodes(nodes.take(which), digits)
                for nodes, which in zip(before.leaves, where, strict=True)
            ],
        )
        tried, failed = self._tested(rows, tried)
        for nodes, which, part in zip(before.leaves, where, tried.leaves, strict=True):
            keep = np.ones(len(which), dtype=bool) if digits is None else ~failed[part.row]
            for kept, layer in zip(nodes.alpha + nodes.gamma, part.alpha + part.gamma, strict=True):
                kept[which[keep]] = layer[keep]
        passed = ~failed[rows]
        for kept, layer in zip(before.upper, tried.upper, strict=True):
            kept[rows[passed]] = layer[passed]
        return rows[~passed]

    def _tested(self, rows: Index, tried: Multipliers) -> tuple[Multipliers, Mask]:
        """Test the proofs of the rows; return them without what they do not use, and what fails.

        Rows whose ranges were tightened, and rows whose ranges were not, are tested apart.
        """
        failed = np.zeros(len(self.claims), dtype=bool)
        is_tight = self.tight[rows] & (len(tried.upper) > 1)
        leaves = tried.leaves
        for tighten in (False, True):
            group = np.flatnonzero(is_tight == tighten)
            if not len(group):
                continue
            place = np.full(len(self.claims), -1)
            place[rows[group]] = np.arange(len(group))
            lower = [layer[group] for layer in tried.lower]
            upper = [layer[group] for layer in tried.upper]
            enclosure = self.claims.enclosure(rows[group], lower, upper, tighten=tighten)
            tested = []
            for c, nodes in zip(self.claims.objectives, leaves, strict=True):
                mine = np.flatnonzero(place[nodes.row] >= 0)
                here = replace(nodes.take(mine), row=place[nodes.row[mine]])
                value, used = enclosure.bounds(c, here)
                threshold = self.claims.threshold[nodes.row[mine]]
                failed[nodes.row[mine[value < threshold]]] = True
                tested.append(_without_unused(nodes, mine, used, [v[here.row] for v in lower]))
            leaves = tested
        return replace(tried, leaves=leaves), failed


def _gathered(trace: ProofTrace, objective: int, decided: Decided, count: int) -> Nodes:
    """Leaves of all robust rows for one objective, sorted by row; a root node is one leaf.

    The trees of risky rows were not grown to their end, so they have that one.
    """
    robust, risky = decided.robust, decided.risky
    if trace.activations is None:
        return Nodes(np.sort(np.concatenate([robust, risky])), [], [], [])
    wanted = _mask(count, robust)
    kept = [nodes.take(np.flatnonzero(wanted[nodes.row])) for nodes in trace.leaves[objective]]
    seen = _mask(count, *(nodes.row for nodes in kept))
    rows = np.concatenate([robust[~seen[robust]], risky])
    parts = [root_nodes(trace.activations, rows), *kept]
    nodes = Nodes(
        np.concatenate([part.row for part in parts]),
        [np.concatenate(layers) for layers in zip(*(p.splits for p in parts), strict=True)],
        [np.concatenate(layers) for layers in zip(*(p.alpha for p in parts), strict=True)],
        [np.concatenate(layers) for layers in zip(*(p.gamma for p in parts), strict=True)],
    )
    return nodes.take(np.argsort(nodes.row, kind="stable"))


def _without_unused(
    nodes: Nodes, where: Index, used: Sequence[Mask], usual: Sequence[Array]
) -> Nodes:
    """Set slopes that are not used to the usual ones: these need not be written down."""
    alpha = list(nodes.alpha)
    for i, mask in enumerate(used):
        alpha[i] = alpha[i].copy()
        alpha[i][where] = np.where(mask, alpha[i][where], usual[i])
    return replace(nodes, alpha=alpha)


def _mask(count: int, *rows: Index) -> Mask:
    mask = np.zeros(count, dtype=bool)
    for some in rows:
        mask[some] = True
    return mask


def _rounded_nodes(nodes: Nodes, digits: int | None) -> Nodes:
    return replace(
        nodes,
        alpha=[_rounded(layer, digits) for layer in nodes.alpha],
        gamma=[_significant(layer, digits) for layer in nodes.gamma],
    )


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


# -- one certificate ---------------------------------------------------------------------------------


def _certificate(
    claims: Claims, trace: ProofTrace, multipliers: Multipliers, row: int, *, robust: bool
) -> Certificate:
    """Write down the proof that a row is robust, or that it is not."""
    facts = proof.claim(
        proof.digest(claims.net),
        claims.shifts,
        claims.X[row],
        claims.target,
        float(claims.threshold[row]),
        "robust" if robust else "not robust",
        box=claims.ends(row),
    )
    facts |= _tree(trace, multipliers, row) if robust else _shift(claims, trace, row)
    return Certificate.of(facts)


def _tree(trace: ProofTrace, multipliers: Multipliers, row: int) -> dict[str, Any]:
    lower = [layer[row] for layer in multipliers.lower]
    upper = [layer[row] for layer in multipliers.upper]
    trees = []
    for nodes in multipliers.leaves:
        first, last = np.searchsorted(nodes.row, [row, row + 1])
        trees.append(proof.tree(nodes.take(np.arange(first, last)), lower))
    return {
        "tighten": bool(len(upper) > 1 and trace.tight[row]),
        "lower": [[proof.short(value) for value in layer] for layer in lower],
        "upper": [[proof.short(value) for value in layer] for layer in upper],
        "trees": trees,
    }


def _shift(claims: Claims, trace: ProofTrace, row: int) -> dict[str, Any]:
    hidden = [layer[row] for layer in trace.hidden]
    with np.errstate(all="ignore"):
        worst, point = claims.shifted(row, hidden, claims.objectives[trace.worst[row]])
    fields: dict[str, Any] = {"shifted": proof.shifted_fields(worst)}
    return fields if claims.box is None else fields | {"point": point.tolist()}


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a test of one point has found: bounds on its worst margin over Delta, and their proof.

    ``box`` holds the ends of a box around the point, where the bounds are those over all points of it;
    the trace then is that of the larger network of :class:`InputBoxes`.
    """

    point: Array
    lower: float
    upper: float
    trace: ProofTrace
    box: InputBox | None = None

    def certificate(
        self, net: Network, shifts: Shifts, target: int, threshold: float
    ) -> Certificate | None:
        """Write down, and test, the proof that the margin reaches a threshold; None if there is none."""
        if not self.lower >= threshold:
            return None
        none = np.zeros(0, np.intp)
        claims = Claims(net, shifts, target, self.point[None], np.array([threshold]))
        if self.box is not None:
            box = self.box[0][None], self.box[1][None]
            claims = replace(claims, box=box, larger=InputBoxes(net, shifts))
        proofs = prove(claims, self.trace, Decided(np.zeros(1, np.intp), none, none))
        return proofs.certificate(0) if proofs.robust[0] else None


class Certificates(Sequence[Certificate | None]):
    """Certificates of a table, one per row; None where a row has no verdict.

    Rows behind those of the last part were not looked at.
    """

    def __init__(self, parts: Sequence[Proofs], rows: int) -> None:
        self._parts, self._rows = tuple(parts), rows
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return self._rows

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
        if part == len(self._parts):
            return None
        return self._parts[part].certificate(i - int(self._starts[part]))

    def __repr__(self) -> str:
        return f"Certificates({sum(int(part.proved.sum()) for part in self._parts)} of {len(self)})"
