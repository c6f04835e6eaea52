"""Certificates: files with the proof of a verdict that anyone can check.

A :class:`Certificate` is about one input, a :class:`CertificateBundle` holds several certificates
about one input, and a :class:`FixedPrediction` proves that no network of Delta gives a class
anywhere in some spaces. Each is one line of canonical JSON with a digest. ``docs/certificates.md``
describes the formats. The rules of acceptance are those of :mod:`proplace.certification.checker`,
which needs only the standard library.
"""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from proplace.certification import checker
from proplace.core.errors import CertificateError
from proplace.core.files import atomic_write
from proplace.core.guarantee import Guarantee
from proplace.core.network import Network
from proplace.core.shifts import Shifts

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from proplace.certification.batched_bnb import Nodes
    from proplace.certification.checker import Statement, Verdict
    from proplace.certification.fixed import Node, Space
    from proplace.certification.input_boxes import InputBox
    from proplace.core.network import Array


def canonical(facts: Mapping[str, Any]) -> str:
    """Return canonical JSON: sorted keys, no spaces, shortest decimals."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


class Document(ABC):
    """A claim with its proof, as one line of canonical JSON."""

    _called: ClassVar[str]
    """The kind of document, for the error about a file of another kind."""

    if TYPE_CHECKING:  # a field in the classes that hold only text, otherwise a property

        @property
        def text(self) -> str:
            """The document as canonical JSON."""

    @classmethod
    @abstractmethod
    def _read(cls, facts: dict[str, Any]) -> Self:
        """Build the document from the fields of a file, or raise ``checker.Rejected``."""

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the document."""
        facts: dict[str, Any] = json.loads(self.text)
        return facts

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the document as JSON, one line."""
        return self.text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document. The file appears complete or not at all."""
        with atomic_write(Path(path)) as file:
            file.write(self.text.encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file. Its claim is checked by ``check``, not here."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                return cls._read(checker.parse(file.read(checker.MAX_BYTES + 1)))
        except FileNotFoundError:
            raise CertificateError(f"{path}: no such file", name=path.name) from None
        except (OSError, ValueError, RecursionError, checker.Rejected) as error:
            raise CertificateError(
                f"{path.name}: not {cls._called} ({error})", name=path.name
            ) from None


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
        """The claim: ``"robust"`` or ``"not robust"``."""
        verdict: Literal["robust", "not robust"] = self.facts["verdict"]
        return verdict

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> Certificate:
        if facts.get("format") in checker.BUNDLES:
            raise checker.Rejected(
                "it is a bundle. Read it with pp.certification.CertificateBundle.load"
            )
        if facts.get("verdict") not in ("robust", "not robust"):
            raise checker.Rejected("no known verdict")
        return cls.of(facts)

    def check(
        self,
        net: Guarantee | Network,
        shifts: Shifts | None = None,
        *,
        box: InputBox | None = None,
    ) -> Verdict:
        """Check every step of the proof against the network, in exact arithmetic.

        Parameters
        ----------
        net
            The network of the certificate, or a guarantee. All members of a guarantee must be
            covered, with the tolerance.
        shifts
            The shift set that must be covered. It is required if the certificate names a shift set
            by its digest, because the intervals are then not in the certificate.
        box
            The ends of an input box, encoded, that must be covered.

        Returns
        -------
        Verdict
            Its ``statement`` is the proved claim: target, delta or shift set, input and margin, and
            the input box if there is one.
        """
        if isinstance(net, Guarantee):
            found = [self.check(one.network, one.shifts, box=box) for one in net.members]
            verdict = next((one for one in found if not one.accepted), found[0])
            if verdict.accepted and self.verdict != "robust":
                only = f"The certificate proves only: {verdict.reason}"
                reason = f"it does not prove that the input is robust. {only}"
                return verdict._replace(accepted=False, reason=reason)
            return _with_tolerance(self, net, verdict, box)
        kind, named = self.facts.get("format"), "shifts" in self.facts
        named = named and kind in (checker.FORMAT_BOX, checker.FORMAT_INPUTS)
        if named and shifts is None:
            raise CertificateError(
                "the certificate names its shift set by a digest only. Pass the "
                "set: certificate.check(net, shifts), with shifts = Shifts.load(...) from its file",
                name="shifts",
            )
        intervals = parameters_of_shifts(shifts) if named and shifts is not None else None
        verdict = checker.check(self.text, parameters(net), demanded(box), intervals)
        if verdict.statement is None or shifts is None or covers(verdict.statement, net, shifts):
            return verdict
        reason = (
            f"it does not cover the shift set. The certificate proves only: {verdict.statement}"
        )
        return verdict._replace(accepted=False, reason=reason)

    def __repr__(self) -> str:
        return f"Certificate({self.verdict}, {len(self.text)} bytes)"


def parameters(net: Network) -> checker.Parameters:
    """Convert the network for the checker."""
    return checker.Parameters(
        [(layer.W.tolist(), None if layer.b is None else layer.b.tolist()) for layer in net.layers],
        **{name: part.tolist() for name, part in net.input_transform.parts.items()},
    )


def covers(proved: Statement, net: Network, shifts: Shifts) -> bool:
    """Test if the networks of a statement about ``net`` include all networks of a shift set."""
    if proved.shifts is not None:
        return proved.shifts == shifts.digest
    # Radii of a certificate refer to the weights in the file, into which batch norm may be folded.
    pairs = [(layer.W, layer.b) for layer in net.layers]
    plain = Network(pairs, **net.input_transform.parts, precision=net.precision, folds=None)
    certified = Shifts.of(plain, [(weight, bias) for weight, bias in proved.delta])
    shifts = Shifts.of(net, shifts)
    if certified.radii is None or shifts.radii is None:
        return certified.contains(shifts.low) and certified.contains(shifts.high)
    radii = zip(chain(*certified.radii), chain(*shifts.radii), strict=True)
    return all(proved_radius >= radius for proved_radius, radius in radii)


def demanded(box: InputBox | None) -> checker.Demand:
    """Return the demand for an input box, if there is one."""
    if box is None:
        return checker.Demand()
    low, high = (np.asarray(end, dtype=np.float64).ravel().tolist() for end in box)
    return checker.Demand(low=low, high=high)


def parameters_of_shifts(shifts: Shifts) -> checker.Shifts:
    """Convert the shift set for the checker: by its ends, as in its file."""
    return checker.Shifts(parameters(shifts.low), parameters(shifts.high))


@functools.lru_cache(maxsize=16)
def digest(net: Network) -> str:
    """Return the digest that identifies the network in certificates."""
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
    """Return the fields of every certificate. A shift set without radii is named by its digest.

    ``box`` holds the ends of the input box, if the claim covers one.
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
    """Return the field ``shifted`` of a *not robust* certificate: the network that misses the margin."""
    return [
        {"W": layer.W.tolist(), "b": None if layer.b is None else layer.b.tolist()}
        for layer in net.layers
    ]


def short(value: float) -> float:
    """Return a whole number as an int, because 1 is shorter than 1.0."""
    value = float(value)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def tree(nodes: Nodes, lower: Sequence[Array]) -> list[Any]:
    """Return the leaves of one row as a tree in preorder: a split, then its sides U <= 0 and U >= 0.

    If leaves cover all signs, all of them split some neuron, for instance the root of their tree. Any
    such neuron can be the root, because the leaves on each of its sides cover that side.
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
    """Return the slopes and multipliers of each leaf that differ from the common ones."""
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


@dataclass(frozen=True)
class FixedPrediction(Document):
    """A proof that no network of a shift set gives a class to any input of some spaces.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Shifts
    >>> from proplace.certification import FixedPredictionSearch, Space
    >>> net = Network([([[1.0, -1.0]], [-0.5])])
    >>> refusal = FixedPredictionSearch(net, Shifts.of(net, 0.05), target=1)
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
        """Write the trees of cuts, whose leaves are proved."""
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
        """The claim: every network gives every input of the spaces another class."""
        return "fixed"

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> FixedPrediction:
        if facts.get("format") != checker.FORMAT_FIXED:
            raise checker.Rejected(f"its format is not {checker.FORMAT_FIXED!r}")
        return cls(canonical(facts))

    def check(
        self,
        net: Guarantee | Network,
        shifts: Shifts | None = None,
        *,
        spaces: Sequence[Space] | None = None,
    ) -> Verdict:
        """Check every step of the proof against the network, in exact arithmetic.

        Parameters
        ----------
        net
            The network of the certificate, or a guarantee. A counterfactual needs
            every member, so a proof for one member is enough.
        shifts
            The shift set that must be covered. It is required if the certificate names a shift set
            by its digest, because the intervals are then not in the certificate.
        spaces
            The exact spaces that the certificate must be about, in this order.

        Returns
        -------
        Verdict
            Its ``statement`` is the proved claim: target, delta or shift set, and the spaces.
        """
        if isinstance(net, Guarantee):
            found = [self.check(one.network, one.shifts, spaces=spaces) for one in net.members]
            return next((one for one in found if one.accepted), found[0])
        named = "shifts" in self.facts
        if named and shifts is None:
            raise CertificateError(
                "the certificate names its shift set by a digest only. Pass the "
                "set: certificate.check(net, shifts), with shifts = Shifts.load(...) from its file",
                name="shifts",
            )
        box = parameters_of_shifts(shifts) if named and shifts is not None else None
        verdict = checker.check(self.text, parameters(net), shifts=box)
        proved = verdict.statement
        if proved is None or not verdict.accepted:
            return verdict
        wrong = ""
        if shifts is not None and not covers(proved, net, shifts):
            wrong = "it does not cover the shift set"
        elif spaces is not None and proved.spaces != [written(space) for space in spaces]:
            wrong = "it is about other spaces of inputs"
        if not wrong:
            return verdict
        return verdict._replace(
            accepted=False, reason=f"{wrong}. The certificate proves only: {proved}"
        )

    def __repr__(self) -> str:
        return f"FixedPrediction({len(self.text)} bytes)"


def written(space: Space) -> dict[str, Any]:
    """Return the fields of a space."""
    return {
        "low": space.low.tolist(),
        "high": space.high.tolist(),
        "choices": [
            {"columns": choice.columns.tolist(), "values": choice.values.tolist()}
            for choice in space.choices
        ],
    }


def _node(node: Node) -> dict[str, Any]:
    """Return a cut, or a leaf with the winning class and its certificate."""
    if node.at is not None:
        where, place = node.at
        if where >= 0:
            return {"column": where, "at": place}
        return {"choice": -1 - where, "at": int(place)}
    if node.proof is None or node.other is None:
        raise CertificateError("a part of a space has no proof")
    return {"other": node.other, "certificate": node.proof.facts}


@dataclass(frozen=True)
class CertificateBundle(Document):
    """Certificates of one class for one input, each for its own network and shift set.

    Make one with :meth:`of`.

    Examples
    --------
    >>> from proplace import Network, Shifts, certify
    >>> from proplace.certification import CertificateBundle
    >>> sets = []
    >>> for w in (1.0, 1.5):
    ...     net = Network([([[w, -1.0]], [0.0])])
    ...     sets.append((net, Shifts.of(net, 0.1)))
    >>> bundle = CertificateBundle.of(
    ...     certify(net, [[1.0, 0.0]], shifts, certificates=True).certificates[0]
    ...     for net, shifts in sets
    ... )
    >>> bundle
    CertificateBundle(2 certificates)
    >>> bundle.check(sets).accepted
    True
    """

    certificates: tuple[Certificate, ...]
    """The certificates, in the order of their shift sets."""

    statement: Mapping[str, Any] | None = None
    """The proved statement in original units with its encoding, or None if the bundle has none."""

    _called = "a bundle of certificates"

    @classmethod
    def of(
        cls, certificates: Iterable[Certificate], statement: Mapping[str, Any] | None = None
    ) -> CertificateBundle:
        """Combine certificates into a bundle, with a statement of what they prove."""
        found = tuple(certificates)
        if not found or not all(isinstance(one, Certificate) for one in found):
            raise CertificateError(
                "a bundle needs one or more certificates, and None is not a certificate",
                name="certificates",
            )
        return cls(found, statement)

    @property
    def verdict(self) -> Literal["robust", "not robust"]:
        """The claim of all certificates together."""
        good = all(one.verdict == "robust" for one in self.certificates)
        return "robust" if good else "not robust"

    @property
    def text(self) -> str:
        """The bundle as canonical JSON: sorted keys, no spaces."""
        inside = ",".join(certificate.text for certificate in self.certificates)
        kind, more = checker.FORMAT_BUNDLE, ""
        if self.statement is not None:
            kind, more = checker.FORMAT_STATED, f',"statement":{canonical(self.statement)}'
        return f'{{"certificates":[{inside}],"format":"{kind}"{more}}}'

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> CertificateBundle:
        proofs = [Certificate.of(proof) for proof in checker.bundled(facts)]
        return cls.of(proofs, facts.get("statement"))

    def check(
        self,
        guarantee: Guarantee | Iterable[tuple[Network, Shifts]],
        *,
        box: InputBox | None = None,
    ) -> Verdict:
        """Check every certificate against the network and the shift set that it names.

        Parameters
        ----------
        guarantee
            The networks that must give the input its class, with the tolerance, or pairs of a network
            and its shift set. All must be covered.
        box
            The ends of an input box, encoded, that must be covered.

        Returns
        -------
        Verdict
            Accepted if all certificates hold, agree on input and class, and cover the whole
            guarantee. ``parts`` are the verdicts on the individual certificates.
        """
        if isinstance(guarantee, Guarantee):
            found = self.check([(one.network, one.shifts) for one in guarantee.members], box=box)
            return _with_tolerance(self, guarantee, found, box)
        pairs = list(guarantee)
        if not pairs:
            raise CertificateError(
                "pass the networks that must be covered, each with its shift set", name="networks"
            )
        named = {certificate.facts.get("shifts") for certificate in self.certificates}
        boxes = {shifts.digest: shifts for _, shifts in pairs if shifts.digest in named}
        found = checker.check_all(
            self.text,
            [parameters(net) for net, _ in pairs],
            [parameters_of_shifts(each) for each in boxes.values()],
            demanded(box),
        )
        for net, shifts in pairs if found.accepted else ():
            proved = [part.statement for part in found.parts if part.statement is not None]
            if not any(one.network == digest(net) and covers(one, net, shifts) for one in proved):
                reason = f"no certificate covers {shifts!r} of the network {digest(net)}"
                reason = f"{reason}. The certificate proves only: {found.reason}"
                return found._replace(accepted=False, reason=reason)
        return found

    def __repr__(self) -> str:
        count = len(self.certificates)
        return f"CertificateBundle({count} certificate{'s' * (count > 1)})"


def _with_tolerance(
    proof: Certificate | CertificateBundle,
    guarantee: Guarantee,
    verdict: Verdict,
    box: InputBox | None,
) -> Verdict:
    """Repeat a check with the box of the tolerance around the input, unless a box was given."""
    proved = next((one.statement for one in (*verdict.parts, verdict) if one.statement), None)
    if not verdict.accepted or box is not None or proved is None:
        return verdict
    ends = guarantee.current.around(np.asarray(proved.input, dtype=np.float64))
    return verdict if ends is None else proof.check(guarantee, box=ends)


Proof: TypeAlias = "Certificate | CertificateBundle | FixedPrediction"
"""A certificate, or a bundle of them if a guarantee has several members.

A fixed prediction proves that no counterfactual exists.
"""


def read_proof(content: bytes) -> Proof:
    """Read a proof of any kind from the content of its file, without checking it."""
    facts = checker.parse(content)
    if facts.get("format") in checker.BUNDLES:
        return CertificateBundle._read(facts)
    kind = FixedPrediction if facts.get("format") == checker.FORMAT_FIXED else Certificate
    return kind(content.decode())
