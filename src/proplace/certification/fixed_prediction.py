"""Certificates of fixed predictions: a class that no network of Delta gives anywhere in some spaces.

The format is described in ``docs/certificates.md``; the rules by which it is accepted are those of
:mod:`proplace.certification.checker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from proplace.certification import checker
from proplace.certification.document import Document, canonical
from proplace.certification.proof import covers, digest, parameters, parameters_of_shifts
from proplace.core.errors import CertificateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification.checker import Verdict
    from proplace.certification.refusal import Node, Space
    from proplace.core.network import Network
    from proplace.core.shifts import Shifts


@dataclass(frozen=True)
class FixedPrediction(Document):
    """A proof that no network of a set gives a class to any input of some spaces.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Shifts
    >>> from proplace.certification import Refusal, Space
    >>> net = Network([([[1.0, -1.0]], [-0.5])])
    >>> refusal = Refusal(net, Shifts.of(net, 0.05), target=1)
    >>> space = Space.of(np.array([0.0, 0.5]), np.array([0.75, 0.5]))
    >>> proof = refusal.certificate(refusal.prove([space]))
    >>> verdict = proof.check(net)
    >>> verdict.accepted, verdict.reason
    (True, 'fixed: no network within delta 0.05 gives class 1 at any input of the box [0.0, 0.75], 0.5')
    """

    text: str
    """The certificate as canonical JSON: sorted keys, no spaces, shortest decimals."""

    _called = "a certificate of a fixed prediction"

    @classmethod
    def of(
        cls, net: Network, shifts: Shifts, target: int, trees: Sequence[Node]
    ) -> FixedPrediction:
        """Write down the trees of cuts, the leaves of which are proved."""
        named = {"shifts": shifts.digest}
        radii = {} if shifts.radii is None else {"delta": [list(pair) for pair in shifts.radii]}
        facts = (radii or named) | {
            "format": checker.FORMAT_FIXED,
            "network": digest(net),
            "target": target,
            "spaces": [written(tree.space) for tree in trees],
            "trees": [[_node(node) for node in tree.preorder()] for tree in trees],
        }
        return cls(canonical(facts))

    @property
    def verdict(self) -> Literal["fixed"]:
        """What is claimed."""
        return "fixed"

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> FixedPrediction:
        if facts.get("format") != checker.FORMAT_FIXED:
            raise checker.Rejected(f"its format is not {checker.FORMAT_FIXED!r}")
        return cls(canonical(facts))

    def check(
        self, net: Network, shifts: Shifts | None = None, *, spaces: Sequence[Space] | None = None
    ) -> Verdict:
        """Check every step of the proof against the network, in exact arithmetic.

        Parameters
        ----------
        net
            The network that the certificate speaks of.
        shifts
            The box of networks that must be covered. It is needed where the certificate names a box by
            its digest: then the intervals are not in it.
        spaces
            The spaces of inputs that it must be about.

        Returns
        -------
        Verdict
            Its ``statement`` is what was proved: target, delta or box, and the spaces.
        """
        named = "shifts" in self.facts
        if named and shifts is None:
            raise CertificateError(
                "the certificate speaks of a box of networks, which it names by its digest alone; give "
                "the box: certificate.check(net, shifts), with shifts = Shifts.load(...) from its file",
                name="shifts",
            )
        box = parameters_of_shifts(shifts) if named and shifts is not None else None
        verdict = checker.check(self.text, parameters(net), shifts=box)
        proved = verdict.statement
        if proved is None or not verdict.accepted:
            return verdict
        wrong = ""
        if shifts is not None and not covers(proved, net, shifts):
            wrong = "it does not cover the box of shifts"
        elif spaces is not None and proved.spaces != [written(space) for space in spaces]:
            wrong = "it is about other inputs"
        if not wrong:
            return verdict
        return verdict._replace(accepted=False, reason=f"{wrong}; proved is only: {proved}")

    def __repr__(self) -> str:
        return f"FixedPrediction({len(self.text)} bytes)"


def written(space: Space) -> dict[str, Any]:
    """The fields of a space."""
    return {
        "low": space.low.tolist(),
        "high": space.high.tolist(),
        "choices": [
            {"columns": choice.columns.tolist(), "values": choice.values.tolist()}
            for choice in space.choices
        ],
    }


def _node(node: Node) -> dict[str, Any]:
    """A cut, or a leaf with the class that wins and its certificate."""
    if node.at is not None:
        where, place = node.at
        if where >= 0:
            return {"column": where, "at": place}
        return {"choice": -1 - where, "at": int(place)}
    if node.proof is None or node.other is None:
        raise CertificateError("a part of a space has no proof")
    return {"other": node.other, "certificate": node.proof.facts}
