"""Checks of a folder of results: each certificate must prove exactly the claim of its row.

A row claims that its encoded counterfactual gets the target class from every network of the shift
set. Its certificate must exist, be unchanged, prove its statement in exact arithmetic, and be about
this input, this class and this shift set. A row with a fixed prediction claims that no network of
one shift set gives the class to any input that the schema allows this person.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from proplace.certification import checker, parameters, parameters_of_shifts, written
from proplace.certification import digest as network_digest
from proplace.core.guarantee import around
from proplace.explain.prove import range_box
from proplace.region.pieces import admissible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from proplace.batch.results import ResultRow, ResultsFolder
    from proplace.certification import InputBox
    from proplace.certification.checker import Demand, Parameters, Statement, Verdict
    from proplace.core.guarantee import Member
    from proplace.core.network import Array
    from proplace.core.shifts import Shifts
    from proplace.explain.results import Explanation
    from proplace.schema import Schema

_PROOF = re.compile(r"row-\d{12}-\d+\.json")


@dataclass(frozen=True)
class Checked:
    """The verdict on one row of the results, or on a certificate that belongs to none.

    Attributes
    ----------
    name
        The row and its ids.
    file
        Name of the certificate's file.
    accepted
        True if the claim of the row is proved.
    reason
        The proved statement, or the problem.
    statement
        The proved statement. None: nothing is proved.
    """

    name: str
    file: str
    accepted: bool
    reason: str
    statement: Statement | None = None


def check_folder(
    folder: ResultsFolder, readings: Sequence[Parameters], demand: Demand
) -> Iterator[Checked]:
    """Check every row of the results that has a claim, then find stray certificates.

    Parameters
    ----------
    folder
        The results.
    readings
        The network of the model, in each way to read its file.
    demand
        Further properties that every certificate must prove.
    """
    claimed = set()
    for line in folder.lines():
        claimed.add(line.proof_name)
        e = line.explanation
        # people who are accepted today have a claim too
        promises = e.found or line.digest or e.margin >= 0.0
        if e.status == "fixed_prediction" or (e.encoded_counterfactual is not None and promises):
            yield _checked(folder, line, readings, demand)
    place = folder.path / "certificates"
    found = {path.name for path in place.iterdir()} if place.is_dir() else set()
    for name in sorted(name for name in found - claimed if _PROOF.fullmatch(name)):
        reason = "no line of the results has this certificate"
        yield Checked(name, name, False, reason)


def _checked(
    folder: ResultsFolder, line: ResultRow, readings: Sequence[Parameters], demand: Demand
) -> Checked:
    """Check one row."""
    name, file = line.name, line.proof_name
    content = folder.proof(line)
    if content is None:
        there = (folder.path / "certificates" / file).exists()
        reason = "the certificate is not the one that was written" if there else _MISSING
        return Checked(name, file, False, reason)
    e, sets = line.explanation, folder.setting.guarantee.members
    verdict = _answer_verdict(
        content,
        readings,
        demand,
        Claim.of(e),
        shifts=[sets[0].shifts] if sets[0].shifts.radii is None else [],
        others=sets[1:],
    )
    if not verdict.accepted or verdict.statement is None:
        return Checked(name, file, False, verdict.reason, verdict.statement)
    proved = [part.statement for part in verdict.parts if part.statement] or [verdict.statement]
    if e.status == "fixed_prediction":
        wrong = _not_fixed(folder, line, verdict.statement)
    else:
        wrong = _mismatch(line, verdict.statement) or _uncovered(sets, proved)
        wrong = wrong or too_narrow(verdict.statement, sets[0].tolerance)
        wrong = wrong or not_covered(verdict.statement, folder.setting.schema, e.guaranteed_ranges)
    if wrong:
        reason = f"{wrong}. The certificate proves only: {'; '.join(map(str, proved))}"
        return Checked(name, file, False, reason, verdict.statement)
    return Checked(name, file, True, verdict.reason, verdict.statement)


_MISSING = "the certificate is missing"


def _mismatch(line: ResultRow, proved: Statement) -> str:
    """Describe how a certificate differs from its row. Empty if it does not."""
    e = line.explanation
    if proved.verdict != "robust" and Claim.of(e).robust(proved):
        return "the line promises what the certificate disproves"
    if proved.target != e.target:
        return f"the line is about class {e.target}"
    if e.encoded_counterfactual is None or proved.input != e.encoded_counterfactual.tolist():
        return "the line has another counterfactual"
    return ""


def too_narrow(proved: Statement, tolerance: Array | None) -> str:
    """Describe a tolerance that is not proved. Empty if it is.

    ``tolerance`` has the allowed miss of each encoded column, below and above.
    """
    if tolerance is None or proved.verdict != "robust":
        return ""
    if tolerance.shape[1] != len(proved.input):
        return "the tolerance is one of other columns"
    if _reaches(proved, around(np.array(proved.input), tolerance)):
        return ""
    return "a tolerance is promised, and not every miss within it is proved"


def not_covered(
    proved: Statement, schema: Schema, ranges: Mapping[str, tuple[float, float]]
) -> str:
    """Describe guaranteed ranges that are not proved. Empty if all are."""
    if not ranges or proved.verdict != "robust":
        return ""
    if _reaches(proved, range_box(schema, np.array(proved.input), ranges)):
        return ""
    return "the guaranteed ranges are wider than what is proved"


def _reaches(proved: Statement, box: InputBox) -> bool:
    """Return True if an input box lies inside the proved one."""
    (low, high), (down, up) = map(np.array, proved.ends), box
    return bool((low <= down).all() and (up <= high).all())


def _not_fixed(folder: ResultsFolder, line: ResultRow, proved: Statement) -> str:
    """Describe how a certificate does not prove the fixed prediction of a row. Empty if it does."""
    e = line.explanation
    if proved.verdict != "fixed":
        return "the line says that the prediction is fixed"
    if proved.target != e.target:
        return f"the line is about class {e.target}"
    members = folder.setting.guarantee.members
    own = [each for each in members if network_digest(each.network) == proved.network]
    if not any(_about(proved, member.shifts) for member in own):
        return "the line is about other sets of networks"
    spaces = (
        None
        if e.encoded_original is None
        else admissible(folder.setting.schema, e.encoded_original)
    )
    if not spaces or proved.spaces != [written(space) for space in spaces]:
        return "it is about other inputs than those that the schema allows this person"
    return ""


class Claim(NamedTuple):
    """The claim of an explanation: a counterfactual, its worst-case margin, or a fixed prediction."""

    found: bool
    margin: float
    fixed: bool = False

    @classmethod
    def of(cls, e: Explanation) -> Claim:
        """Return the claim of an explanation."""
        return cls(e.found, e.margin, e.status == "fixed_prediction")

    def robust(self, proved: Statement) -> bool:
        """Return True if the claim is robustness, of a counterfactual or of the person."""
        return not self.fixed and (self.found or self.margin >= proved.margin)


def _answer_verdict(
    proof: bytes,
    readings: Sequence[Parameters],
    demand: Demand,
    claim: Claim,
    *,
    shifts: Sequence[Shifts] = (),
    others: Sequence[Member] = (),
) -> Verdict:
    """Check the certificate of an explanation, as :func:`check_proof` does.

    A person who has the class today, but not robustly, gets no promise, and the certificate proves
    that the row is not robust. It is accepted if it is about the demanded class, input and delta,
    and no margin is required.
    """
    verdict = check_proof(proof, readings, demand, shifts=shifts, others=others)
    proved = verdict.statement
    if proved is None:
        return verdict
    opposite = proved.verdict != "robust" and claim.robust(proved)
    if opposite or claim.fixed != (proved.verdict == "fixed"):
        if not verdict.accepted:
            return verdict
        reason = f"the answer promises something else. The certificate proves only: {proved}"
        return verdict._replace(accepted=False, reason=reason)
    if verdict.accepted or proved.verdict == "robust":
        return verdict
    met = (
        demand.margin is None
        and demand.target in (None, proved.target)
        and (demand.input is None or demand.input == proved.input)
        and (demand.delta is None or min(map(min, proved.delta), default=-1.0) >= demand.delta)
        and demand.shifts in (None, proved.shifts)
    )
    if not met:
        return verdict
    what = "it is" if claim.fixed else "the row is"
    return checker.Verdict(True, f"as the answer says, {what} {proved}", proved)


def _uncovered(sets: Sequence[Member], proved: Sequence[Statement]) -> str:
    """Describe a shift set of a row that its certificates do not prove. Empty if all are proved.

    A person who has the class today, but not robustly, has a certificate for one shift set.
    """
    if [statement.verdict for statement in proved] == ["not robust"]:
        sets = sets[:1]
    else:
        own = [each for each in proved if each.network == network_digest(sets[0].network)]
        if not any(each.inside for each in own):
            return "the current model does not lie in its set, and nothing is proved of the model itself"
    for models in sets:
        mine = [each for each in proved if each.network == network_digest(models.network)]
        if not any(_about(each, models.shifts) for each in mine):
            what = "set of shifts" if models.shifts.radii is None else "delta"
            whose = f" of {models.name}" if len(sets) > 1 else ""
            return f"the line is about another {what}{whose}"
    return ""


def _about(proved: Statement, shifts: Shifts) -> bool:
    """Return True if a statement is about exactly this shift set."""
    if shifts.radii is None:
        return proved.shifts == shifts.digest
    return proved.shifts is None and proved.delta == [list(pair) for pair in shifts.radii]


# -- one certificate or bundle ---------------------------------------------------------------------


def check_proof(
    proof: bytes,
    readings: Sequence[Parameters],
    demand: Demand,
    *,
    shifts: Sequence[Shifts] = (),
    others: Sequence[Member] = (),
) -> Verdict:
    """Check a certificate or a bundle against the reading of the network that it names.

    Parameters
    ----------
    proof
        The certificate, as JSON.
    readings
        The network of the model, in each way to read its file.
    demand
        Properties that must be proved. Delta and shift set are demanded of the current model alone.
    shifts
        Shift sets of the current model that the certificate may name.
    others
        Required models of a bundle.
    """
    boxes = [*shifts, *(each.shifts for each in others if each.shifts.radii is None)]
    ends = [parameters_of_shifts(box) for box in boxes]
    more = [parameters(each.network) for each in others]
    if _format(proof) == checker.FORMAT_FIXED:  # of the networks of one set, whichever that is
        readings = [*readings, *more]
    verdicts = [_verdict(proof, network, more, ends, demand) for network in readings]
    return next((v for v in verdicts if v.accepted or v.statement is not None), verdicts[0])


def _verdict(
    proof: bytes,
    network: Parameters,
    others: list[Parameters],
    boxes: list[checker.Shifts],
    demand: Demand,
) -> Verdict:
    named = {checker.digest(box): box for box in boxes}
    parts = certificates_of(proof)
    if parts is None:
        box = next((named[name] for name in _names(proof) if name in named), [*boxes, None][0])
        return checker.check(proof, network, demand, box)
    plain = demand._replace(delta=None, shifts=None)
    found = checker.check_all(proof, [network, *others], boxes, plain)
    if not found.accepted:
        return found
    first = json.dumps(parts[0])
    box = named.get(str(parts[0].get("shifts")))
    verdict = checker.check(first, network, demand, box)
    return verdict if not verdict.accepted else found._replace(statement=verdict.statement)


def certificates_of(proof: bytes) -> list[dict[str, Any]] | None:
    """Return the certificates of a bundle. None: the content is something else."""
    try:
        return checker.bundled(checker.parse(proof))
    except checker.Rejected:
        return None


def _format(proof: bytes) -> Any:
    try:
        return checker.parse(proof).get("format")
    except checker.Rejected:
        return None


def _names(proof: bytes) -> list[str]:
    try:
        return [str(checker.parse(proof).get("shifts"))]
    except checker.Rejected:
        return []
