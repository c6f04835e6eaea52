"""`proplace check`."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import partial
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common
from proplace.cli import delta as deltas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from proplace.certification.checker import Demand, Parameters, Statement, Verdict
    from proplace.core.guarantee import Member
    from proplace.core.network import Network
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model
    from proplace.schema import Schema

    Missed = dict[str, tuple[float, float]]


def check(
    proofs: Annotated[
        list[Path],
        typer.Argument(
            help="Certificate files, folders of them, or folders of results (explain --out)."
        ),
    ],
    model: Annotated[Path, typer.Option(help="The network: .npz or .onnx")],
    cutoff: common.Cutoff = None,
    target: Annotated[
        str | None, typer.Option(help="Reject what is not proved for this class, by its label.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Reject what is proved for a smaller delta.")
    ] = None,
    shifts: Annotated[
        Path | None,
        typer.Option(
            help="The set of networks that certificates name by its digest (see: shifts); reject what "
            "is proved for another one. A folder of results has its own."
        ),
    ] = None,
    required_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK[:SHIFTS]",
            help="A network of another model that a bundle of certificates speaks of: network-2.npz of "
            "a folder of results, with :shifts-2.npz where there is one; may be repeated.",
        ),
    ] = None,
    row: Annotated[
        str | None,
        typer.Option(
            "--input", help="Reject what is proved for another input, such as 0.5,-1,2 (encoded)."
        ),
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Reject what is proved for a smaller margin.")
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LESS:MORE",
            help="Reject what is not proved for every miss of a feature by no more than this, in "
            "original units, such as age=0:1 or income=500; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of lines.")
    ] = False,
) -> None:
    """Check certificates in exact arithmetic; exit status 0 if all are accepted, else 1.

    Prints what each one proves: the class, delta, the margin and the input. With --target, --delta,
    --shifts, --input, --margin or --tolerance, a certificate that proves less, or that a row is not
    robust, is rejected. Of
    a folder of results, every answer must have its certificate, which must prove exactly this answer,
    its class, its delta and its tolerance; then only what fails is printed, and a summary. Of a person
    who has the class today, but not robustly, it proves just that, and is accepted as that.

    [bold]Examples[/bold]

    proplace check proof.json --model m.onnx --target 1 --delta 0.02

    proplace check results --model m.onnx
    """
    from proplace.certification import checker, parameters  # noqa: PLC0415  (quick help)
    from proplace.core.errors import CertificateError  # noqa: PLC0415
    from proplace.core.shifts import Shifts  # noqa: PLC0415

    box = _box(delta, shifts)
    for path in proofs:
        if not path.exists():
            raise CertificateError(
                f"{path}: no such file or folder; give a certificate (.json), a folder of them, or "
                "the folder that proplace explain --out has written",
                name=path.name,
            )
    whole = common.read_model(model, cutoff)
    number = None if target is None else whole.target(common.target_of(whole, target))
    if box is None and delta is not None and whole.network.folded:
        # Of trained weights: with batch norm folded in, certificates name the box that follows.
        box, delta = Shifts.of(whole.network, delta), None
    demand = checker.Demand(
        number, delta, _numbers(row), margin, None if box is None else box.digest
    )
    readings = [parameters(net) for net in _readings(whole, model)]
    others, missed = _others(required_model), common.tolerance_of(tolerance)
    verdict = partial(
        _verdict,
        model=whole,
        readings=readings,
        shifts=box,
        others=others,
        tolerance=missed,
        demand=demand,
    )
    shown: list[dict[str, Any]] = []
    accepted = True
    for path in proofs:
        results, entries = _is_results(path), []
        found = (
            _of_results(path, whole, readings, others, missed, demand)
            if results
            else (_of_file(file, verdict) for file in _files(path))
        )
        for entry in found:
            entries.append(entry)
            if as_json:
                shown.append(entry)
            elif not (results and entry["accepted"]):
                if entry.get("sentence"):
                    typer.echo(_printable(entry["sentence"]))
                word = "accepted" if entry["accepted"] else "rejected"
                typer.echo(f"{_printable(_name(entry))}: {word}: {_printable(entry['reason'])}")
        if results and not as_json:
            typer.echo(f"{_printable(str(path))}: {_summary(entries)}")
        accepted = accepted and all(entry["accepted"] for entry in entries)
    if as_json:
        typer.echo(json.dumps({"accepted": accepted, "certificates": shown}))
    if not accepted:
        raise typer.Exit(1)


def _box(delta: float | None, shifts: Path | None) -> Shifts | None:
    """Read the set of networks, if one is given."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if delta is not None and shifts is not None:
        raise OptionError("give --delta NUMBER or --shifts FILE, not both", name="--shifts")
    return None if shifts is None else deltas.read(shifts)


def _others(required_model: list[str] | None) -> list[Member]:
    """Read the networks of other models, each with its set."""
    from proplace.core.guarantee import Member  # noqa: PLC0415
    from proplace.core.network import Network  # noqa: PLC0415
    from proplace.core.shifts import Shifts  # noqa: PLC0415

    found = []
    for word in required_model or []:
        path, delta, _ = deltas.required(word)
        net = Network.load(path)
        found.append(Member(net, Shifts.of(net, delta or 0.0), str(path)))
    return found


def _field(proof: bytes, name: str) -> Any:
    """Field of a certificate; in a bundle, of the first, which is about the model in use."""
    try:
        facts = json.loads(proof)
        return facts.get("certificates", [facts])[0].get(name)
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        return None  # the checker says what is wrong


def _set_of(proof: bytes) -> str | None:
    """The digest of the set of networks that a certificate names; None for one with a delta."""
    named = _field(proof, "shifts")
    return named if isinstance(named, str) else None


def _called_true_or_false(model: Model, proof: bytes) -> list[Parameters]:
    """Return the network that a certificate names, where columns of the table are true or false."""
    from proplace.certification import digest, parameters  # noqa: PLC0415
    from proplace.loaders.coordinates import network_named  # noqa: PLC0415

    named, row = str(_field(proof, "network")), _field(proof, "input")
    if named == digest(model.network):
        return []
    known = isinstance(row, list) and len(row) == model.schema.width
    network = network_named(model, named, row if known else None)
    return [] if network is None else [parameters(network)]


def _summary(entries: Sequence[dict[str, Any]]) -> str:
    """How many certificates of a folder prove their answers, and how many of these that one is lost."""
    good = [entry for entry in entries if entry["accepted"]]
    words = f"{len(good)} of {len(entries)} certificates prove their answers"
    verdicts = [entry["proved"]["verdict"] for entry in good]
    if lost := verdicts.count("not robust"):
        words += f"; {lost} of them that a person who has the class today does not have it robustly"
    if fixed := verdicts.count("fixed"):
        words += f"; {fixed} of them that no change leads to the class"
    return words


def _name(entry: dict[str, Any]) -> str:
    """What to call a certificate: its file, and the answer that it belongs to."""
    answer = f" ({entry['answer']})" if "answer" in entry else ""
    return f"{entry['file']}{answer}"


def _is_results(path: Path) -> bool:
    """Whether a path is a folder of results."""
    return path.is_dir() and (path / "manifest.json").is_file()


def _files(path: Path) -> list[Path]:
    """Return the certificates at a path: a file, or all files of a folder."""
    from proplace.core.errors import CertificateError  # noqa: PLC0415

    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise CertificateError(f"{path}: no .json files to check", name=path.name)
    return files


def _of_results(
    path: Path,
    model: Model,
    readings: Sequence[Parameters],
    others: Sequence[Member],
    tolerance: Missed | None,
    demand: Demand,
) -> Iterator[dict[str, Any]]:
    """Check the answers of a folder of results."""
    from proplace.batch.checking import check_folder  # noqa: PLC0415
    from proplace.batch.reading import ResultsFolder  # noqa: PLC0415
    from proplace.certification import checker  # noqa: PLC0415
    from proplace.core.errors import CertificateError, OptionError  # noqa: PLC0415

    if demand.input is not None:
        raise OptionError(
            "--input is about one certificate; leave it out for a folder of results", name="--input"
        )
    folder = ResultsFolder.open(path)
    if not folder.certificates:
        raise CertificateError(
            f"{path}: no certificates were kept; give the same proplace explain command with "
            "--certificates and another folder",
            name="--certificates",
        )
    for other in others:
        if not any(_holds(models, other) for models in folder.setting.guarantee.members[1:]):
            raise CertificateError(
                f"{path}: its answers were not made for {other.name} with such a delta; explain them "
                "with the same --required-model",
                name="--required-model",
                value=other.name,
            )
    readings = [*readings, *_through(model, folder.setting.schema)]
    for found in check_folder(folder, readings, demand):
        line, schema = found, folder.setting.schema
        if line.accepted and line.statement is not None and tolerance is not None:
            verdict = checker.Verdict(True, line.reason, line.statement)
            if lacking := _too_narrow(verdict, schema, tolerance):
                reason = f"{lacking}; proved is only: {line.reason}"
                line = dataclasses.replace(line, accepted=False, reason=reason)
        proved = None if line.statement is None else line.statement._asdict()
        yield {
            "file": str(path / "certificates" / line.file),
            "answer": line.name,
            "accepted": line.accepted,
            "reason": line.reason,
            "proved": proved,
        }


def _holds(models: Member, other: Member) -> bool:
    """Whether the networks of one set are among those of another."""
    from proplace.certification import digest  # noqa: PLC0415

    return digest(models.network) == digest(other.network) and all(
        models.shifts.contains(end) for end in (other.shifts.low, other.shifts.high)
    )


def _of_file(file: Path, checked: Callable[[bytes], Verdict]) -> dict[str, Any]:
    """Check one certificate."""
    from proplace.certification import checker  # noqa: PLC0415

    try:
        with file.open("rb") as proof:
            content = proof.read(checker.MOST_BYTES + 1)
    except OSError as error:
        verdict = checker.Verdict(False, f"not readable: {error.strerror}")
    else:
        verdict = checked(content)
    proved = None if verdict.statement is None else verdict.statement._asdict()
    return {
        "file": str(file),
        "accepted": verdict.accepted,
        "reason": verdict.reason,
        "sentence": verdict.sentence,
        "proved": proved,
    }


def _verdict(
    proof: bytes,
    *,
    model: Model,
    readings: Sequence[Parameters],
    shifts: Shifts | None,
    others: Sequence[Member],
    tolerance: Missed | None,
    demand: Demand,
) -> Verdict:
    """Check one certificate.

    Parameters
    ----------
    model
        The model.
    readings
        Its network, in each way in which its file can be read.
    shifts
        The set of networks; None if none was given.
    others
        More networks that a bundle speaks of, with their sets.
    tolerance
        By how much features may be missed, in original units, and every miss must be proved.
    demand
        What else must be proved.
    """
    from proplace.batch.checking import first_verdict  # noqa: PLC0415
    from proplace.certification import checker  # noqa: PLC0415

    named = _set_of(proof)
    if named is not None and shifts is None:
        return checker.Verdict(
            False,
            f"it speaks of the set of networks with the digest {named}, which is not in it; give "
            "the file of the set: --shifts FILE (of a model with batch norm: its delta will do)",
        )
    boxes = [] if shifts is None else [shifts]
    readings = [*readings, *_called_true_or_false(model, proof)]
    found = first_verdict(proof, readings, demand, shifts=boxes, others=others)
    if tolerance and found.accepted and found.statement is not None:
        demand = demand._replace(margin=-math.inf)  # only what is robust bears a miss
        found = first_verdict(proof, readings, demand, shifts=boxes, others=others)
    if not found.accepted:
        return found
    lacking = _uncovered(found, others) or _too_narrow(found, model.schema, tolerance)
    if not lacking:
        return found
    return checker.Verdict(False, f"{lacking}; proved is only: {found.reason}")


def _statements(found: Verdict) -> list[Statement]:
    """Return what is proved of each network."""
    return [part.statement for part in (*found.parts, found) if part.statement is not None]


def _too_narrow(found: Verdict, schema: Schema, tolerance: Missed | None) -> str:
    """Say that a miss within the tolerance is not proved to be accepted; empty if all are."""
    from proplace.batch.checking import too_narrow  # noqa: PLC0415

    if tolerance is None:
        return ""
    asked = schema.encode_tolerance(schema.check_tolerance(tolerance))
    return next((said for one in _statements(found) if (said := too_narrow(one, asked))), "")


def _uncovered(found: Verdict, others: Sequence[Member]) -> str:
    """Say which of the other networks is not proved to accept the input; empty if all are."""
    from proplace.certification import covers, digest  # noqa: PLC0415

    statements = _statements(found)
    if any(one.verdict == "fixed" for one in statements):
        return ""  # one set that refuses is enough
    for other in others:
        mine = [one for one in statements if one.network == digest(other.network)]
        if not any(
            one.verdict == "robust" and covers(one, other.network, other.shifts) for one in mine
        ):
            return f"nothing is proved of {other.name} with its delta"
    return ""


def _readings(model: Model, path: Path) -> list[Network]:
    """Return the networks of a model file: whole (scaling left to the table), and as it stands."""
    from proplace.core.errors import ProplaceError  # noqa: PLC0415
    from proplace.core.network import Network  # noqa: PLC0415

    whole = model.network
    try:
        plain = Network.load(path)
    except ProplaceError:  # a table of several inputs, categories: only whole
        return [whole]
    plain = plain if model.threshold is None else model.threshold.network(plain)
    return [whole] if plain == whole else [whole, plain]


def _through(model: Model, schema: Schema) -> list[Parameters]:
    """The network as it is seen through a schema, which may turn some of its numbers into yes or no."""
    from proplace.certification import parameters  # noqa: PLC0415
    from proplace.core.errors import ProplaceError  # noqa: PLC0415

    try:
        return [parameters(model.with_schema(schema).network)]
    except ProplaceError:  # another model: its digest says so
        return []


def _numbers(row: str | None) -> list[float] | None:
    """Read the numbers of a row, with commas between them."""
    from proplace.certification import checker  # noqa: PLC0415
    from proplace.core.errors import OptionError  # noqa: PLC0415

    try:
        return None if row is None else checker.row(row)
    except ValueError:
        raise OptionError(
            f"--input takes the numbers of one row with commas between them, such as 0.5,-1,2, "
            f"not {row!r}",
            name="--input",
            value=row,
        ) from None


def _printable(name: str) -> str:
    """Escape what a file name could use to write lines of its own."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
