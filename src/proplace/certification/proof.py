"""Certificates: what a verdict rests on, as a file that anyone can check.

The format is described in ``docs/certificates.md``; the rules by which a certificate is accepted are
those of :mod:`proplace.certification.checker`, which needs nothing but the standard library.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from proplace.certification import checker
from proplace.core import markup
from proplace.core.errors import CertificateError
from proplace.core.files import atomic_write
from proplace.core.text import clipped
from proplace.core.text import short as brief

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from proplace.certification.batched_bnb import Nodes
    from proplace.certification.checker import Verdict
    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts


@dataclass(frozen=True)
class Certificate:
    """A verdict about one input, with its proof.

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

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Certificate:
        """Make a certificate from its fields."""
        return cls(json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False))

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the certificate."""
        facts: dict[str, Any] = json.loads(self.text)
        return facts

    @property
    def verdict(self) -> Literal["robust", "not robust"]:
        """What is claimed."""
        verdict: Literal["robust", "not robust"] = self.facts["verdict"]
        return verdict

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the certificate as JSON, one line."""
        return self.text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the certificate; the file appears whole or not at all."""
        with atomic_write(Path(path)) as file:
            file.write(self.text.encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read a certificate. What it claims is checked by :meth:`check`, not here."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                facts = checker.parse(file.read(checker.MOST_BYTES + 1))
            if facts.get("verdict") not in ("robust", "not robust"):
                raise checker.Rejected("no known verdict")
            return cls.of(facts)
        except FileNotFoundError:
            raise CertificateError(f"{path}: no such file") from None
        except (OSError, ValueError, RecursionError, checker.Rejected) as error:
            raise CertificateError(f"{path.name}: not a certificate ({error})") from None

    def check(self, net: Network) -> Verdict:
        """Check every step of the proof against the network, in exact arithmetic.

        The verdict's ``statement`` is what was proved: target, delta, input and margin.
        """
        return checker.check(self.text, parameters(net))

    def _repr_html_(self) -> str:
        facts = self.facts
        rows = [(name, brief(facts.get(name))) for name in ("target", "delta", "margin", "input")]
        rows += [
            ("network (SHA-256)", clipped(str(facts.get("network")), 80)),
            ("SHA-256", self.digest),
        ]
        said = "a claim with its proof: certificate.check(net) tells whether it holds"
        return markup.card(repr(self), markup.paragraph(said), markup.table([], rows))

    def __repr__(self) -> str:
        return f"Certificate({self.verdict}, {len(self.text)} bytes)"


def parameters(net: Network) -> checker.Parameters:
    """Return the network as the checker takes it."""
    return checker.Parameters(
        [(layer.W.tolist(), None if layer.b is None else layer.b.tolist()) for layer in net.layers],
        **{name: part.tolist() for name, part in net.input_map.parts.items()},
    )


@functools.lru_cache(maxsize=16)
def digest(net: Network) -> str:
    """Return the digest by which certificates name the network."""
    return checker.digest(parameters(net))


def claim(
    net_digest: str, shifts: Shifts, x: Array, target: int, margin: float, verdict: str
) -> dict[str, Any]:
    """Fields that every certificate has."""
    return {
        "format": checker.FORMAT,
        "network": net_digest,
        "input": x.tolist(),
        "target": target,
        "delta": [list(pair) for pair in shifts.radii or ()],
        "margin": margin,
        "verdict": verdict,
    }


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
    if len(nodes) == 1:
        return [_leaf(nodes, 0, lower)]
    widths = [layer.shape[1] for layer in nodes.splits]
    names = [(i + 1, k) for i, width in enumerate(widths) for k in range(width)]
    signs = np.concatenate(nodes.splits, axis=1)
    todo = [np.arange(len(nodes))]
    found: list[Any] = []
    while todo:
        leaves = todo.pop()
        if len(leaves) == 1:
            found.append(_leaf(nodes, int(leaves[0]), lower))
            continue
        common = np.flatnonzero((signs[leaves] != 0).all(axis=0))
        mixed = common[(signs[leaves][:, common] != signs[leaves[0], common]).any(axis=0)]
        pick = int(mixed[0])
        found.append(list(names[pick]))
        todo += [leaves[signs[leaves, pick] > 0], leaves[signs[leaves, pick] < 0]]
    return found


def _leaf(nodes: Nodes, leaf: int, lower: Sequence[Array]) -> dict[str, Any]:
    """Return what differs from the multipliers that all leaves share."""
    fields: dict[str, Any] = {}
    for name, values, usual in (
        ("lower", nodes.alpha, lower),
        ("gamma", nodes.gamma, [np.zeros(layer.shape[1]) for layer in nodes.gamma]),
    ):
        triples = [
            [i + 1, int(k), short(layer[leaf, k])]
            for i, layer in enumerate(values)
            for k in np.flatnonzero(layer[leaf] != usual[i])
        ]
        if triples:
            fields[name] = triples
    return fields
