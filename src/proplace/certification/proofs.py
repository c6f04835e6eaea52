"""Certificates from verdicts, for whole tables.

While rows are decided, the engine stores their proofs (:class:`ProofTrace`): the leaves of their
trees with their multipliers, or the activations of a shift below the threshold. Here the
multipliers are rounded to few digits and all proofs are tested at once, by outward-rounded floats.
Failed proofs get more digits, and in the end the exact checker decides. A row without a proof has
no verdict. The JSON of a certificate is written on demand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from proplace.certification import certificate as documents
from proplace.certification import checker
from proplace.certification.batched_bnb import Nodes, root_nodes
from proplace.certification.bounds import start_slopes
from proplace.certification.certificate import Certificate
from proplace.certification.enclosure import FLOATS_PER_PASS, Enclosure, TimedOut, cut_unit
from proplace.certification.input_boxes import InputBoxes
from proplace.core.shifts import shifted_network

if TYPE_CHECKING:
    from proplace.certification.bounds import Index, Mask
    from proplace.certification.engine import ProofTrace
    from proplace.certification.input_boxes import InputBox
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts


_DIGITS = (4, 8, None)  # of multipliers: as few as prove the threshold, None for all


@dataclass(frozen=True, eq=False)
class Claims:
    """Subject of certificates: rows, a target class, and the required margin of each row.

    ``box`` holds the ends of a box around each row, if all of its points must be accepted.
    ``larger`` is then the network that takes such boxes, and traces refer to it.
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
        """Rows over the logits whose minimum is the margin."""
        return self.net.objectives(self.target)

    @property
    def seen(self) -> Array:
        """Rows as inputs of the first layer, of the larger network if there is one."""
        if self.box is None or self.larger is None:
            return self.net.transform(self.X)
        return self.larger.rows(*self.box)

    def take(self, rows: Index | slice) -> Claims:
        """Return the claims about some of the rows."""
        box = None if self.box is None else (self.box[0][rows], self.box[1][rows])
        return replace(self, X=self.X[rows], threshold=self.threshold[rows], box=box)

    def ends(self, row: int) -> InputBox | None:
        """Return the ends of the box around one row."""
        return None if self.box is None else (self.box[0][row], self.box[1][row])

    def shifted(self, row: int, hidden: Sequence[Array], c: Array) -> tuple[Network, Array]:
        """Return the network of Delta with these activations at a row, or at a point of its box.

        The second result is that point. Among such networks, this one minimises ``c . logits``.
        """
        x, ends = self.X[row], self.ends(row)
        if ends is not None and self.larger is not None:
            x, hidden = np.clip(self.larger.point(hidden), *ends), self.larger.behind(hidden)
        return shifted_network(self.net, self.shifts, self.net.transform(x)[0], hidden, c), x

    def enclosure(
        self,
        rows: Index,
        lower: Sequence[Array],
        upper: Sequence[Array],
        *,
        tighten: bool,
        deadline: float = np.inf,
    ) -> Enclosure:
        """Enclose the activations of some rows."""
        model, inputs = self.larger or self, self.X[rows]
        if self.box is not None:
            inputs = InputBoxes.rows(*(end[rows] for end in self.box))
        return Enclosure.of(
            model.net,
            model.shifts,
            inputs,
            lower,
            upper,
            tighten=tighten,
            unit=cut_unit(self.net, self.shifts),
            deadline=deadline,
        )

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True, eq=False)
class Decided:
    """Rows sorted by their bounds, up to rounding.

    Attributes
    ----------
    robust
        Rows that reach their threshold.
    refuted
        Rows for which a concrete shift misses it.
    risky
        Refuted rows whose shift may reach the threshold again after it is written.
    """

    robust: Index
    refuted: Index
    risky: Index


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Multipliers of the proofs of robust rows.

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
    """Verdicts on a batch of rows, and their proofs.

    Attributes
    ----------
    robust
        The verdicts.
    proved
        Rows that have a proof. The others have no verdict.
    """

    claims: Claims
    trace: ProofTrace
    multipliers: Multipliers
    robust: Mask
    proved: Mask

    def __len__(self) -> int:
        return len(self.claims)

    def certificate(self, row: int) -> Certificate | None:
        """Write the proof of one row, or return None if there is none."""
        if not self.proved[row]:
            return None
        return _certificate(
            self.claims, self.trace, self.multipliers, row, robust=bool(self.robust[row])
        )


def prove(claims: Claims, trace: ProofTrace, decided: Decided, deadline: float = np.inf) -> Proofs:
    """Prove the decided rows, with the fewest digits that pass for each row.

    The exact checker decides the narrowest verdicts. If it disagrees, the opposite may be true,
    because rounding can reverse a verdict. The opposite is then proved if possible. A row without a
    complete proof at the deadline has none.
    """
    search = _FewestDigits.of(claims, trace, decided, deadline)
    left = decided.robust
    for digits in _DIGITS:
        left = search.round(left, digits)
        if not len(left) or time.monotonic() >= deadline:
            break
    multipliers = search.multipliers
    robust = _mask(len(claims), decided.robust)
    proved = _mask(len(claims), decided.robust, decided.refuted)

    def accepted(row: int) -> bool:
        """Test if the exact checker accepts the proof in the remaining time."""
        left = deadline - time.monotonic()
        if left <= 0.0:
            return False
        try:
            written = _certificate(claims, trace, multipliers, row, robust=bool(robust[row]))
        except ValueError:  # the shift, or a slope, overflowed
            return False
        box = documents.parameters_of_shifts(claims.shifts) if claims.shifts.radii is None else None
        most = int(min(checker.MAX_WORK, 1e9 * left))
        verdict = checker.check(
            written.text, documents.parameters(claims.net), shifts=box, most_work=most
        )
        return verdict.accepted

    near = np.concatenate([left, decided.risky])  # too near for floats, perhaps not for integers
    proved[near] = False
    for row in map(int, near):
        if time.monotonic() >= deadline:
            break
        proved[row] = accepted(row)
        if not proved[row]:
            robust[row] = ~robust[row]
            proved[row] = accepted(row)
    return Proofs(claims, trace, multipliers, robust, proved)


# -- multipliers of robust rows ----------------------------------------------------------------------


class _FewestDigits:
    """The multipliers of the robust rows of a batch, during their rounding to fewer digits."""

    def __init__(
        self, claims: Claims, tight: Mask, multipliers: Multipliers, deadline: float
    ) -> None:
        self.claims, self.tight, self.multipliers = claims, tight, multipliers
        self.deadline = deadline
        widest = max((layer.shape[1] for layer in multipliers.upper), default=1)
        self.leaves_at_once = max(1, FLOATS_PER_PASS // (2 * widest))

    @classmethod
    def of(
        cls, claims: Claims, trace: ProofTrace, decided: Decided, deadline: float
    ) -> _FewestDigits:
        """Start with the unrounded multipliers."""
        lower: list[Array] = []
        upper: list[Array] = []
        if trace.activations is not None:
            lower = start_slopes(trace.activations)
            upper = [ranges.chord[0].copy() for ranges in trace.activations.preactivations]
        objectives = range(len(claims.objectives))
        leaves = [_gathered(trace, objective, decided, len(claims)) for objective in objectives]
        return cls(claims, trace.tight, Multipliers(lower, upper, leaves), deadline)

    def round(self, rows: Index, digits: int | None) -> Index:
        """Round the multipliers of the rows, store those that pass, and return the rows that fail.

        Rows with and without tightened ranges are tested separately. Rows that are not tested
        before the deadline fail, but the first leaves are always tested.
        """
        is_tight = self.tight[rows] & (len(self.multipliers.upper) > 1)
        failed = [
            self._round(rows[is_tight == tighten], digits, tighten=tighten)
            for tighten in (False, True)
        ]
        return np.sort(np.concatenate(failed))

    def _round(self, rows: Index, digits: int | None, *, tighten: bool) -> Index:
        if not len(rows):
            return rows
        multipliers, failed = self.multipliers, np.zeros(len(self.claims), dtype=bool)
        lower = [layer[rows] for layer in multipliers.lower]
        upper = [_rounded(layer[rows], digits) for layer in multipliers.upper]
        place = np.full(len(self.claims), -1)
        place[rows] = np.arange(len(rows))
        tested: list[tuple[Nodes, Index, Nodes]] = []
        try:
            enclosure = self.claims.enclosure(
                rows, lower, upper, tighten=tighten, deadline=self.deadline
            )
            for c, nodes in zip(self.claims.objectives, multipliers.leaves, strict=True):
                leaves = np.flatnonzero(place[nodes.row] >= 0)
                for start in range(0, len(leaves), self.leaves_at_once):
                    some = leaves[start : start + self.leaves_at_once]
                    if digits is not None:  # more digits follow, so one failed leaf is enough
                        some = some[~failed[nodes.row[some]]]
                    if not len(some):
                        continue
                    if start and time.monotonic() >= self.deadline:
                        raise TimedOut
                    tried = _rounded_nodes(nodes.take(some), digits)
                    here = replace(tried, row=place[tried.row])
                    value, used = enclosure.bounds(c, here)
                    failed[tried.row[value < self.claims.threshold[tried.row]]] = True
                    tested.append((nodes, some, _without_unused(here, used, lower)))
        except TimedOut:
            return rows
        for nodes, some, tried in tested:
            keep = np.flatnonzero(~failed[nodes.row[some]] | (digits is None))
            for kept, layer in zip(
                nodes.alpha + nodes.gamma, tried.alpha + tried.gamma, strict=True
            ):
                kept[some[keep]] = layer[keep]
        passed = ~failed[rows]
        for kept, layer in zip(multipliers.upper, upper, strict=True):
            kept[rows[passed]] = layer[passed]
        return rows[~passed]


def _gathered(trace: ProofTrace, objective: int, decided: Decided, count: int) -> Nodes:
    """Return the leaves of all robust rows for one objective, sorted by row.

    A root node is one leaf. The trees of risky rows are unfinished, so they have only that leaf.
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
    is_sorted = bool((nodes.row[1:] >= nodes.row[:-1]).all())
    return nodes if is_sorted else nodes.take(np.argsort(nodes.row, kind="stable"))


def _without_unused(nodes: Nodes, used: Sequence[Mask], usual: Sequence[Array]) -> Nodes:
    """Set unused slopes to the usual ones, which are not written."""
    alpha = [
        np.where(mask, layer, slopes[nodes.row])
        for mask, layer, slopes in zip(used, nodes.alpha, usual, strict=True)
    ]
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
    """Write the proof that a row is robust, or that it is not."""
    facts = documents.claim(
        documents.digest(claims.net),
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
        trees.append(documents.tree(nodes.take(np.arange(first, last)), lower))
    return {
        "tighten": bool(len(upper) > 1 and trace.tight[row]),
        "lower": [[documents.short(value) for value in layer] for layer in lower],
        "upper": [[documents.short(value) for value in layer] for layer in upper],
        "trees": trees,
    }


def _shift(claims: Claims, trace: ProofTrace, row: int) -> dict[str, Any]:
    hidden = [layer[row] for layer in trace.hidden]
    with np.errstate(all="ignore"):
        worst, point = claims.shifted(row, hidden, claims.objectives[trace.worst[row]])
    fields: dict[str, Any] = {"shifted": documents.shifted_fields(worst)}
    return fields if claims.box is None else fields | {"point": point.tolist()}


@dataclass(frozen=True, eq=False)
class Evidence:
    """Result of the test of one point: bounds on its worst-case margin over Delta, and their proof.

    ``box`` holds the ends of a box around the point if the bounds cover all of its points. The
    trace is then that of the larger network of :class:`InputBoxes`.
    """

    point: Array
    lower: float
    upper: float
    trace: ProofTrace
    box: InputBox | None = None

    def certificate(
        self,
        net: Network,
        shifts: Shifts,
        target: int,
        threshold: float,
        deadline: float = np.inf,
    ) -> Certificate | None:
        """Test and write the proof that the margin reaches a threshold.

        Returns None if there is no proof, or if the test is not complete at the deadline, a time by
        ``time.monotonic``.
        """
        if not self.lower >= threshold:
            return None
        none = np.zeros(0, np.intp)
        claims = Claims(net, shifts, target, self.point[None], np.array([threshold]))
        if self.box is not None:
            box = self.box[0][None], self.box[1][None]
            claims = replace(claims, box=box, larger=InputBoxes(net, shifts))
        proofs = prove(claims, self.trace, Decided(np.zeros(1, np.intp), none, none), deadline)
        return proofs.certificate(0) if proofs.robust[0] else None


class Certificates(Sequence[Certificate | None]):
    """Certificates of a table, one per row, or None for a row without a verdict.

    Each part proves the given rows. For a row in several parts, the last one counts.
    """

    def __init__(self, parts: Sequence[tuple[Index, Proofs]], rows: int) -> None:
        self._parts = [part for _, part in parts]
        self._part, self._place = np.full(rows, -1), np.zeros(rows, dtype=np.intp)
        for number, (index, _) in enumerate(parts):
            self._part[index], self._place[index] = number, np.arange(len(index))

    def __len__(self) -> int:
        return len(self._part)

    @overload
    def __getitem__(self, i: int) -> Certificate | None: ...
    @overload
    def __getitem__(self, i: slice) -> list[Certificate | None]: ...
    def __getitem__(self, i: int | slice) -> Certificate | list[Certificate | None] | None:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        part = int(self._part[i])
        return None if part < 0 else self._parts[part].certificate(int(self._place[i]))

    def __repr__(self) -> str:
        pairs = zip(self._part, self._place, strict=True)
        proved = sum(bool(self._parts[part].proved[place]) for part, place in pairs if part >= 0)
        return f"Certificates({proved} of {len(self)})"
