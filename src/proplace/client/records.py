"""What a service says beside answers: predictions, verdicts, promises, audits, jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proplace.certification import canonical, read_proof

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.certification import Proof


@dataclass(frozen=True)
class Prediction:
    """Today's decision: the class, whether it is the wanted one, and the margin of the network."""

    label: Any
    accepted: bool
    margin: float


@dataclass(frozen=True)
class Verdict:
    """Whether every network of the set gives a person the wanted class.

    ``robust`` is None where time did not suffice; ``margin`` is a proved lower bound on the least
    margin. ``label`` and ``accepted`` are what the model in use says.
    """

    label: Any
    accepted: bool
    robust: bool | None
    margin: float


@dataclass(frozen=True)
class CheckResult:
    """What a check of a certificate in exact arithmetic found; without a ``claim`` if it is no good."""

    accepted: bool
    reason: str
    claim: str | None


@dataclass(frozen=True)
class IssuedPromise:
    """Number of a promise, and whether it was issued now or stood in the ledger already."""

    promise: int
    new: bool


@dataclass(frozen=True, eq=False)
class PromiseRecord:
    """One promise as the ledger has it.

    Attributes
    ----------
    id, person, state, issued, expires, target
        As of the ledger's own promises.
    facts
        Person and answer in original units, sentence, and what is proved.
    certificate
        The proof; None once the person is erased.
    history
        All that happened to it, in order.
    """

    id: int
    person: str | None
    state: str
    issued: str
    expires: str | None
    target: Any
    facts: Mapping[str, Any] = field(repr=False)
    certificate: Proof | None = field(repr=False)
    history: list[dict[str, Any]] = field(repr=False)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> PromiseRecord:
        """A promise of what a service says."""
        facts = dict(found)
        proof, history = facts.pop("certificate"), facts.pop("history")
        names = ("person", "state", "issued", "expires", "target")
        own = {name: facts.pop(name) for name in names}
        certificate = None if proof is None else read_proof(canonical(proof).encode())
        number = facts.pop("promise")
        return cls(id=number, **own, facts=facts, certificate=certificate, history=history)


@dataclass(frozen=True)
class RedeemResult:
    """What became of a promise when the person came back: see :meth:`proplace.Ledger.redeem`."""

    verdict: str
    words: str
    missing: tuple[dict[str, Any], ...]
    accepted: bool
    model: str


@dataclass(frozen=True)
class AuditResult:
    """What a retrained model does to open promises.

    Attributes
    ----------
    number
        Number of the audit in the ledger: :meth:`Client.decide` takes it.
    counts
        How many promises are proved, holding, broken and so on.
    sentence
        The same in words.
    passes
        Whether no promise is broken.
    broken
        Numbers of broken promises, the first 1,000.
    job
        Number of the job: :meth:`Client.audit_page` takes it.
    """

    number: int
    counts: Mapping[str, int]
    sentence: str
    passes: bool
    broken: tuple[int, ...]
    job: str


@dataclass(frozen=True)
class RenewalResult:
    """New answers for people whose promises an audited model breaks.

    Attributes
    ----------
    audit
        Number of the audit.
    digests
        SHA-256 of the certificates of the new answers.
    rows
        What they ask for beside the old ones, as :meth:`proplace.promises.renewing.Renewal.to_frame`
        has it; empty once they are issued.
    left
        How many broken promises were not looked at.
    issued
        Numbers of the promises that were issued.
    """

    audit: int
    digests: tuple[str, ...]
    rows: tuple[dict[str, Any], ...] = field(repr=False)
    left: int
    issued: tuple[int, ...]


@dataclass(frozen=True)
class VerifyResult:
    """What a look at the whole ledger found."""

    good: bool
    entries: int
    promises: int
    erased: int
    head: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """How far a long question is.

    ``state`` is ``waiting``, ``running``, ``done``, ``failed`` (``reason`` says why) or ``cancelled``.
    """

    id: str
    kind: str
    state: str
    done: int
    total: int
    reason: str

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.state in ("done", "failed", "cancelled")

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Job:
        """A job of what a service says."""
        names = ("kind", "state", "done", "total", "reason")
        return cls(facts["job"], *(facts[name] for name in names))
