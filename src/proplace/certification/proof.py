"""Certificates: what a verdict rests on, as a file that anyone can check.

The format is described in ``docs/certificates.md``; the rules by which a certificate is accepted are
those of :mod:`proplace.certification.checker`, which needs nothing but the standard library.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from proplace.certification import checker
from proplace.certification.document import Document, canonical
from proplace.core.errors import CertificateError
from proplace.core.network import Network
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.batched_bnb import Nodes
    from proplace.certification.checker import Statement, Verdict
    from proplace.certification.input_boxes import InputBox
    from proplace.core.network import Array


@dataclass(frozen=True)
class Certificate(Document):
    """A verdict about one input, or every point of a box around it, with its proof.

    Examples
    --------
    >>> from proplace import Network, certify
    >>> net = Network([([[1.0, -1.0], [0.5, 2.0]], [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
    >>> report = certify(net, [[1.0, 0.0], [0.0, 1.0]], delta=0.05, certificates=True)
    >>> [certificate.verdict for certificate in report.certificates]
    ['robust', 'not robust']
    >>> verdict = report.certificates[0].check(net)
    >>> verdict.accepted, verdict.statement.target, verdict.statement.input
    (True, 1, [1.0, 0.0])
    """

    text: str
    """The certificate as canonical JSON: sorted keys, no spaces, shortest decimals."""

    _called = "a certificate"

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Certificate:
        """Make a certificate from its fields."""
        return cls(canonical(facts))

    @property
    def verdict(self) -> Literal["robust", "not robust"]:
        """What is claimed."""
        verdict: Literal["robust", "not robust"] = self.facts["verdict"]
        return verdict

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> Certificate:
        if facts.get("format") == checker.FORMAT_BUNDLE:
            raise checker.Rejected("it is a bundle of several; read it with pp.Bundle.load")
        if facts.get("verdict") not in ("robust", "not robust"):
            raise checker.Rejected("no known verdict")
        return cls.of(facts)

    def check(
        self, net: Network, shifts: Shifts | None = None, *, box: InputBox | None = None
    ) -> Verdict:
        """Check every step of the proof against the network, in exact arithmetic.

        Parameters
        ----------
        net
            The network that the certificate speaks of.
        shifts
            The box of networks that must be covered. It is needed where the certificate names a box by
            its digest: then the intervals are not in it.
        box
            The ends of a box of inputs, as the network takes them, that must be covered.

        Returns
        -------
        Verdict
            Its ``statement`` is what was proved: target, delta or box, input and margin, and the ends
            of the box of inputs where it speaks of one.
        """
        kind, named = self.facts.get("format"), "shifts" in self.facts
        named = named and kind in (checker.FORMAT_BOX, checker.FORMAT_INPUTS)
        if named and shifts is None:
            raise CertificateError(
                "the certificate speaks of a box of networks, which it names by its digest alone; give "
                "the box: certificate.check(net, shifts), with shifts = Shifts.load(...) from its file",
                name="shifts",
            )
        intervals = parameters_of_shifts(shifts) if named and shifts is not None else None
        verdict = checker.check(self.text, parameters(net), demanded(box), intervals)
        if verdict.statement is None or shifts is None or covers(verdict.statement, net, shifts):
            return verdict
        reason = f"it does not cover the box of shifts; proved is only: {verdict.statement}"
        return verdict._replace(accepted=False, reason=reason)

    def __repr__(self) -> str:
        return f"Certificate({self.verdict}, {len(self.text)} bytes)"


def parameters(net: Network) -> checker.Parameters:
    """Return the network as the checker takes it."""
    return checker.Parameters(
        [(layer.W.tolist(), None if layer.b is None else layer.b.tolist()) for layer in net.layers],
        **{name: part.tolist() for name, part in net.input_map.parts.items()},
    )


def covers(proved: Statement, net: Network, shifts: Shifts) -> bool:
    """Whether all networks of a box are among those that a statement about ``net`` speaks of."""
    if proved.shifts is not None:
        return proved.shifts == shifts.digest
    # Radii of a certificate are about the parameters of the file, with batch norm folded in or not.
    pairs = [(layer.W, layer.b) for layer in net.layers]
    plain = Network(pairs, **net.input_map.parts, precision=net.precision, folds=None)
    ball = Shifts.of(plain, [(weight, bias) for weight, bias in proved.delta])
    shifts = Shifts.of(net, shifts)
    if ball.radii is None or shifts.radii is None:
        return ball.contains(shifts.low) and ball.contains(shifts.high)
    radii = zip(chain(*ball.radii), chain(*shifts.radii), strict=True)
    return all(mine >= theirs for mine, theirs in radii)


def demanded(box: InputBox | None) -> checker.Demand:
    """Return the demand for a box of inputs, if there is one."""
    if box is None:
        return checker.Demand()
    low, high = (np.asarray(end, dtype=np.float64).ravel().tolist() for end in box)
    return checker.Demand(low=low, high=high)


def parameters_of_shifts(shifts: Shifts) -> checker.Shifts:
    """Return the box as the checker takes it: by its ends, as they are in its file."""
    return checker.Shifts(parameters(shifts.low), parameters(shifts.high))


@functools.lru_cache(maxsize=16)
def digest(net: Network) -> str:
    """Return the digest by which certificates name the network."""
    return checker.digest(parameters(net))


def claim(
    net_digest: str,
    shifts: Shifts,
    x: Array,
    target: int,
    margin: float,
    verdict: str,
    *,
    box: InputBox | None = None,
) -> dict[str, Any]:
    """Fields that every certificate has; a box that is not given by radii is named by its digest.

    ``box`` holds the ends of the box of inputs that it speaks of.
    """
    facts: dict[str, Any] = {
        "format": checker.FORMAT,
        "network": net_digest,
        "input": x.tolist(),
        "target": target,
        "margin": margin,
        "verdict": verdict,
    }
    if shifts.radii is None:
        facts |= {"format": checker.FORMAT_BOX, "shifts": shifts.digest}
    else:
        facts["delta"] = [list(pair) for pair in shifts.radii]
    if box is not None:
        low, high = box
        facts |= {"format": checker.FORMAT_INPUTS, "low": low.tolist(), "high": high.tolist()}
    return facts


def shifted_fields(net: Network) -> list[dict[str, Any]]:
    """Field ``shifted`` of a certificate that a row is not robust."""
    return [
        {"W": layer.W.tolist(), "b": None if layer.b is None else layer.b.tolist()}
        for layer in net.layers
    ]


def short(value: float) -> float:
    """Return a whole number as an int: 1 takes less room than 1.0."""
    value = float(value)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def tree(nodes: Nodes, lower: Sequence[Array]) -> list[Any]:
    """Leaves of one row as a tree in preorder: a split, then its side U <= 0, then U >= 0.

    A set of leaves that covers all signs has a neuron that all leaves split (the activations of the tree
    they came from, or any other such neuron: both of its sides are covered too).
    """
    fields = _leaves(nodes, lower)
    if len(nodes) == 1:
        return fields
    widths = [layer.shape[1] for layer in nodes.splits]
    names = [(i + 1, k) for i, width in enumerate(widths) for k in range(width)]
    signs = np.concatenate(nodes.splits, axis=1)
    todo = [np.arange(len(nodes))]
    found: list[Any] = []
    while todo:
        leaves = todo.pop()
        if len(leaves) == 1:
            found.append(fields[leaves[0]])
            continue
        here = signs[leaves]
        common = np.flatnonzero((here != 0).all(axis=0))
        mixed = common[(here[:, common] != here[0, common]).any(axis=0)]
        pick = int(mixed[0])
        found.append(list(names[pick]))
        todo += [leaves[here[:, pick] > 0], leaves[here[:, pick] < 0]]
    return found


def _leaves(nodes: Nodes, lower: Sequence[Array]) -> list[Any]:
    """Return, of each leaf, what differs from the multipliers that all leaves share."""
    fields: list[Any] = [{} for _ in range(len(nodes))]
    for name, values, usual in (
        ("lower", nodes.alpha, lower),
        ("gamma", nodes.gamma, [0.0] * len(nodes.gamma)),
    ):
        for i, (layer, common) in enumerate(zip(values, usual, strict=True)):
            where = np.nonzero(layer != common)
            for leaf, k, value in zip(*(a.tolist() for a in (*where, layer[where])), strict=True):
                fields[leaf].setdefault(name, []).append([i + 1, k, short(value)])
    return fields
