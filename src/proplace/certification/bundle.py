"""Several certificates about one input: one for each set of networks that must accept it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from proplace.certification import checker
from proplace.certification.document import Document
from proplace.certification.fixed_prediction import FixedPrediction
from proplace.certification.proof import (
    Certificate,
    covers,
    demanded,
    digest,
    parameters,
    parameters_of_shifts,
)
from proplace.core.errors import CertificateError
from proplace.core.model_set import ModelSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proplace.certification.checker import Verdict
    from proplace.certification.input_boxes import InputBox
    from proplace.core.network import Network
    from proplace.core.shifts import Shifts


@dataclass(frozen=True)
class Bundle(Document):
    """Certificates that promise one class to one input, each for its own network and box.

    Make one with :meth:`of`.

    Examples
    --------
    >>> from proplace import Bundle, Network, Shifts, certify
    >>> sets = []
    >>> for w in (1.0, 1.5):
    ...     net = Network([([[w, -1.0]], [0.0])])
    ...     sets.append((net, Shifts.of(net, 0.1)))
    >>> bundle = Bundle.of(
    ...     certify(net, [[1.0, 0.0]], shifts, certificates=True).certificates[0]
    ...     for net, shifts in sets
    ... )
    >>> bundle
    Bundle(2 certificates)
    >>> bundle.check(sets).accepted
    True
    """

    certificates: tuple[Certificate, ...]
    """The certificates, in the order of their sets."""

    _called = "a bundle of certificates"

    @classmethod
    def of(cls, certificates: Iterable[Certificate]) -> Bundle:
        """Put certificates together."""
        found = tuple(certificates)
        if not found or not all(isinstance(one, Certificate) for one in found):
            raise CertificateError(
                "a bundle is made of one or more certificates; some are missing",
                name="certificates",
            )
        return cls(found)

    @property
    def verdict(self) -> Literal["robust", "not robust"]:
        """What is claimed of all sets together."""
        good = all(one.verdict == "robust" for one in self.certificates)
        return "robust" if good else "not robust"

    @property
    def text(self) -> str:
        """The bundle as canonical JSON: sorted keys, no spaces."""
        inside = ",".join(certificate.text for certificate in self.certificates)
        return f'{{"certificates":[{inside}],"format":"{checker.FORMAT_BUNDLE}"}}'

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> Bundle:
        return cls.of(Certificate.of(proof) for proof in checker.bundled(facts))

    def check(
        self,
        sets: Iterable[ModelSet | tuple[Network, Shifts]],
        *,
        box: InputBox | None = None,
    ) -> Verdict:
        """Check every certificate against the network and the box that it names.

        Parameters
        ----------
        sets
            The networks, each with its box, that must give the input its class.
        box
            The ends of a box of inputs, as the networks take them, that must be covered.

        Returns
        -------
        Verdict
            Accepted if all certificates hold, speak of one input and one class, and cover all of the
            sets. ``parts`` are the verdicts about the single certificates.
        """
        pairs = [(one.net, one.shifts) if isinstance(one, ModelSet) else one for one in sets]
        if not pairs:
            raise CertificateError(
                "give the networks, each with its box, that must be covered", name="networks"
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
                reason = f"nothing covers {shifts!r} of the network {digest(net)}; proved is only: "
                return found._replace(accepted=False, reason=reason + found.reason)
        return found

    def __repr__(self) -> str:
        return f"Bundle({len(self.certificates)} certificate{'s' * (len(self.certificates) > 1)})"


Proof: TypeAlias = "Certificate | Bundle | FixedPrediction"
"""A certificate; where several sets of networks have a say, one for each in a bundle.

That of a fixed prediction says that there can be no answer.
"""


def read_proof(content: bytes) -> Proof:
    """Make a proof of the content of its file, of whichever kind; see ``check`` for what it is worth."""
    facts = checker.parse(content)
    if facts.get("format") == checker.FORMAT_BUNDLE:
        return Bundle._read(facts)
    kind = FixedPrediction if facts.get("format") == checker.FORMAT_FIXED else Certificate
    return kind(content.decode())
