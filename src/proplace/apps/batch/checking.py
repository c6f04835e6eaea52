"""A folder of results, checked: each certificate must prove exactly what its line promises.

A line promises that its counterfactual, encoded as the network takes it, gets the wanted class from
every network within the batch's delta, or of its set of shifts. Its certificate must be there, be the
one that was written, prove its claim in exact arithmetic, and be about that input, that class and that
delta, or that set by its digest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proplace.certification import checker
from proplace.certification import proof as proof_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proplace.apps.batch.reading import Line, ResultsFolder
    from proplace.certification.checker import Demand, Parameters, Statement, Verdict
    from proplace.core.shifts import Shifts

_PROOF = re.compile(r"row-\d{12}-\d+\.json")


@dataclass(frozen=True)
class Checked:
    """What became of one line of the results, or of a certificate that belongs to none.

    Attributes
    ----------
    name
        The row, and who it is.
    file
        Name of the certificate's file.
    accepted
        Whether what the line promises is proved.
    reason
        What was proved, or what is wrong.
    statement
        What was proved; None where nothing was.
    """

    name: str
    file: str
    accepted: bool
    reason: str
    statement: Statement | None = None


def check_folder(
    folder: ResultsFolder, readings: Sequence[Parameters], demand: Demand
) -> Iterator[Checked]:
    """Check every line of the results that promises something, then look for stray certificates.

    Parameters
    ----------
    folder
        The results.
    readings
        The network of the model, in each way in which its file can be read.
    demand
        What every certificate must prove beyond what its line says.
    """
    claimed = set()
    for line in folder.lines():
        claimed.add(line.proof_name)
        if line.explanation.point is not None and (line.explanation.found or line.digest):
            yield _checked(folder, line, readings, demand)
    place = folder.path / "certificates"
    found = {path.name for path in place.iterdir()} if place.is_dir() else set()
    for name in sorted(name for name in found - claimed if _PROOF.fullmatch(name)):
        reason = "no line of the results has this certificate"
        yield Checked(name, name, False, reason)


def _checked(
    folder: ResultsFolder, line: Line, readings: Sequence[Parameters], demand: Demand
) -> Checked:
    """Check one line."""
    name, file = line.name, line.proof_name
    content = folder.proof(line)
    if content is None:
        there = (folder.path / "certificates" / file).exists()
        reason = "the certificate is not the one that was written" if there else _MISSING
        return Checked(name, file, False, reason)
    shifts = folder.setting.shifts if folder.setting.general else None
    verdict = first_verdict(content, readings, demand, shifts)
    if not verdict.accepted or verdict.statement is None:
        return Checked(name, file, False, verdict.reason, verdict.statement)
    wrong = _amiss(folder, line, verdict.statement)
    if wrong:
        reason = f"{wrong}; proved is only: {verdict.statement}"
        return Checked(name, file, False, reason, verdict.statement)
    return Checked(name, file, True, verdict.reason, verdict.statement)


_MISSING = "the certificate is missing"


def _amiss(folder: ResultsFolder, line: Line, proved: Statement) -> str:
    """Say in what a certificate is about something else than its line; empty if in nothing."""
    e = line.explanation
    if proved.verdict != "robust" and (e.found or e.margin >= proved.margin):
        return "the line promises what the certificate disproves"
    if proved.target != e.target:
        return f"the line is about class {e.target}"
    if wrong := other_delta(proved, folder.setting.shifts):
        return wrong
    if e.point is None or proved.input != e.point.tolist():
        return "the line has another counterfactual"
    return ""


def other_delta(proved: Statement, shifts: Shifts) -> str:
    """Say that a certificate is about other networks than those of a set; empty if it is not."""
    if shifts.radii is None:
        named = getattr(proved, "shifts", None)
        return "" if named == shifts.digest else "the line is about another set of shifts"
    if proved.delta != [list(pair) for pair in shifts.radii]:
        return "the line is about another delta"
    return ""


def first_verdict(
    proof: bytes, readings: Sequence[Parameters], demand: Demand, shifts: Shifts | None = None
) -> Verdict:
    """Check a certificate against the reading of the network that it speaks of.

    A certificate about a set of shifts names it by its digest, and is checked against the set itself.
    """
    proofs: Any = proof_files  # of sets in exact arithmetic
    box = {} if shifts is None else {"shifts": proofs.parameters_of_shifts(shifts)}
    verdicts = [checker.check(proof, network, demand, **box) for network in readings]
    return next((v for v in verdicts if v.accepted or v.statement is not None), verdicts[0])
