"""`proplace check`."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import options
from proplace.cli.console import echo, is_quiet
from proplace.core.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from proplace.certification.checker import Demand, Parameters, Statement, Verdict
    from proplace.core.guarantee import Member
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model
    from proplace.schema import Schema

_REJECTED = "rejected"

Proofs = Annotated[
    list[Path],
    typer.Argument(
        metavar="PROOF...", help="Certificates, folders of them, or folders of results."
    ),
]
Required = Annotated[
    list[str] | None,
    typer.Option(
        "--required-model",
        metavar="NETWORK[:SHIFTS]",
        help="Network of another model in a bundle, with its shift set if it has one; repeatable. A "
        "folder of results has its own.",
        rich_help_panel=options.PROJECT,
    ),
]
Least = Annotated[
    str | None,
    typer.Option(
        "--delta",
        metavar="DELTA",
        help="Reject less than this delta, or another shift set than that of this file.",
        rich_help_panel="Demand",
    ),
]
Wanted = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="LABEL",
        help="Reject certificates of another class.",
        rich_help_panel="Demand",
    ),
]


def check(
    proofs: Proofs,
    config: options.Config = None,
    model: options.Model = None,
    required_model: Required = None,
    delta: Least = None,
    target: Wanted = None,
    as_json: options.Json = False,
) -> None:
    """Check certificates in exact arithmetic. Exit status 1 unless all are accepted.

    Prints the statement of each certificate. In a folder of results, each
    certificate must prove its row: the counterfactual, its class, delta and ranges.
    Then only failures and a summary are printed.

    [bold]Examples[/bold]

    proplace check results --model m.onnx

    proplace check proof.json --model m.onnx --target 1 --delta 0.02
    """
    from proplace.certification import checker, parameters  # noqa: PLC0415  (quick help)
    from proplace.core.errors import CertificateError  # noqa: PLC0415
    from proplace.core.shifts import Shifts  # noqa: PLC0415
    from proplace.project import Project  # noqa: PLC0415

    project = Project.find(config).changed(model=model)
    least = options.delta_of(delta)
    box = Shifts.load(least) if isinstance(least, Path) else None
    radius = None if isinstance(least, Path) else least
    for path in proofs:
        if not path.exists():
            raise CertificateError(
                f"{path}: no such file or folder. Give a certificate (.json), a folder of them, or the "
                "folder of a proplace explain --out command",
                name=path.name,
            )
    project.check_has("model", options=("model",))
    whole = project.read_model()
    number = None if target is None else whole.target(project.changed(target=target).label(whole))
    if radius is not None and whole.network.folded:
        # of trained weights: with batch norm folded in, certificates name the box that follows
        box, radius = Shifts.of(whole.network, radius), None
    demand = checker.Demand(number, radius, None, None, None if box is None else box.digest)
    readings = [parameters(whole.network)]
    others = _others(required_model)
    verdict = partial(
        _verdict, model=whole, readings=readings, shifts=box, others=others, demand=demand
    )
    # statements must have the encoding of the model, if it is known: the schema is that of its own
    own = project.described(whole) if model is None else whole
    stating = own if own.has_preprocessing or own.declared else None
    shown: list[dict[str, Any]] = []
    total = Counter[str]()
    for path in proofs:
        results, counts = _is_results(path), Counter[str]()
        found = (
            _of_results(path, whole, readings, others, demand)
            if results
            else (_of_file(file, verdict, stating) for file in _files(path))
        )
        for entry in found:
            counts[entry["proved"]["verdict"] if entry["accepted"] else _REJECTED] += 1
            if as_json:
                shown.append(entry)
            elif not (results and entry["accepted"]):
                _show(entry)
        if results and not as_json:
            echo(f"{path}: {_summary(counts)}")
        total += counts
    if as_json:
        typer.echo(json.dumps({"accepted": not total[_REJECTED], "certificates": shown}))
    if total[_REJECTED]:
        raise typer.Exit(1)


def _others(required_model: list[str] | None) -> list[Member]:
    """Read the networks of required models, each with its shift set."""
    from proplace.core.guarantee import Member  # noqa: PLC0415
    from proplace.core.shifts import Shifts  # noqa: PLC0415
    from proplace.loaders.model import Model  # noqa: PLC0415

    found = []
    for word in required_model or []:
        path, delta = _required(word)
        net = Model.of(path).network
        found.append(Member(net, Shifts.of(net, delta or 0.0), str(path)))
    return found


def _field(proof: bytes, name: str) -> Any:
    """Return a field of a certificate, or of the first one of a bundle."""
    try:
        facts = json.loads(proof)
        return facts.get("certificates", [facts])[0].get(name)
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        return None  # the checker reports the problem


def _set_of(proof: bytes) -> str | None:
    """Return the digest of the shift set that a certificate names, or None."""
    named = _field(proof, "shifts")
    return named if isinstance(named, str) else None


def _called_true_or_false(model: Model, proof: bytes) -> list[Parameters]:
    """Return the network that a certificate names, if columns of the table are boolean."""
    from proplace.certification import digest, parameters  # noqa: PLC0415
    from proplace.loaders.align import network_named  # noqa: PLC0415

    named, row = str(_field(proof, "network")), _field(proof, "input")
    if named == digest(model.network):
        return []
    known = isinstance(row, list) and len(row) == model.schema.width
    network = network_named(model, named, row if known else None)
    return [] if network is None else [parameters(network)]


def _summary(counts: Counter[str]) -> str:
    """Count the certificates of a folder that prove their rows, by verdict."""
    number = counts.total()
    words = f"{number - counts[_REJECTED]} of {number} certificates prove their answers"
    if lost := counts["not robust"]:
        words += f"; {lost} of them that a person who has the class today does not have it robustly"
    if fixed := counts["fixed"]:
        words += f"; {fixed} of them that no change leads to the class"
    return words


def _name(entry: dict[str, Any]) -> str:
    """Return the file of a certificate, and the row that it belongs to."""
    answer = f" ({entry['answer']})" if "answer" in entry else ""
    return f"{entry['file']}{answer}"


def _is_results(path: Path) -> bool:
    """Return True if a path is a folder of results."""
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
    demand: Demand,
) -> Iterator[dict[str, Any]]:
    """Check the rows of a folder of results."""
    from proplace.batch.check import check_folder  # noqa: PLC0415
    from proplace.batch.results import ResultsFolder  # noqa: PLC0415
    from proplace.core.errors import CertificateError  # noqa: PLC0415

    folder = ResultsFolder.open(path)
    if not folder.certificates:
        raise CertificateError(
            f"{path}: it has no certificates. Repeat the proplace explain command with another folder "
            "and batch.certificates: true in the project file",
            name="batch.certificates",
        )
    for other in others:
        if not any(_holds(models, other) for models in folder.setting.guarantee.members[1:]):
            raise CertificateError(
                f"{path}: its results were not made for {other.name} with this delta. Add the model to "
                "required_models of the project file, and explain the people again",
                name="--required-model",
                value=other.name,
            )
    readings = [*readings, *_through(model, folder.setting.schema)]
    with progress_bar("check", folder.table.rows, show=not is_quiet()) as advance:
        for line in check_folder(folder, readings, demand):
            proved = None if line.statement is None else line.statement._asdict()
            yield {
                "file": str(path / "certificates" / line.file),
                "answer": line.name,
                "accepted": line.accepted,
                "reason": line.reason,
                "proved": proved,
            }
            advance(1)


def _holds(models: Member, other: Member) -> bool:
    """Return True if one shift set lies inside another."""
    from proplace.certification import digest  # noqa: PLC0415

    return digest(models.network) == digest(other.network) and all(
        models.shifts.contains(end) for end in (other.shifts.low, other.shifts.high)
    )


def _show(entry: dict[str, Any]) -> None:
    """Print the verdict on a certificate, and the parts of its sentence that no proof covers."""
    from proplace.certification import checker  # noqa: PLC0415

    line = f"{_name(entry)}: {'accepted' if entry['accepted'] else 'rejected'}: {entry['reason']}"
    if not entry.get("sentence"):
        echo(f"{line}. {checker.NOT_REDONE}" if entry["accepted"] else line)
        return
    echo(entry["sentence"])
    echo(line)
    parts = "Its words" if entry["encoding_of_model"] else "Its words, its encoding"
    echo(checker.REDONE.format(parts, entry["digest"]))


def _of_file(
    file: Path, checked: Callable[[bytes], Verdict], model: Model | None
) -> dict[str, Any]:
    """Check one certificate, and its statement against the encoding of a model."""
    from proplace.certification import checker  # noqa: PLC0415
    from proplace.explain.statement import misstated  # noqa: PLC0415

    try:
        with file.open("rb") as proof:
            content = proof.read(checker.MAX_BYTES + 1)
    except OSError as error:
        content, verdict = b"", checker.Verdict(False, f"not readable: {error.strerror}")
    else:
        verdict = checked(content)
    wrong: str | None = None
    if verdict.sentence and model is not None:
        wrong = misstated(json.loads(content.decode("utf-8-sig"))["statement"], model)
        if wrong:
            verdict = checker.Verdict(
                False, f"{wrong}. The certificate proves only: {verdict.reason}"
            )
    proved = None if verdict.statement is None else verdict.statement._asdict()
    return {
        "file": str(file),
        "accepted": verdict.accepted,
        "reason": verdict.reason,
        "sentence": verdict.sentence,
        "encoding_of_model": wrong == "",
        "digest": checker.file_digest(content),
        "proved": proved,
    }


def _verdict(
    proof: bytes,
    *,
    model: Model,
    readings: Sequence[Parameters],
    shifts: Shifts | None,
    others: Sequence[Member],
    demand: Demand,
) -> Verdict:
    """Check one certificate.

    Parameters
    ----------
    model
        The model.
    readings
        Its network, in each way to read its file.
    shifts
        The shift set, or None.
    others
        Required models of a bundle, with their shift sets.
    demand
        Further properties that must be proved.
    """
    from proplace.batch.check import check_proof  # noqa: PLC0415
    from proplace.certification import checker  # noqa: PLC0415

    named = _set_of(proof)
    if named is not None and shifts is None:
        return checker.Verdict(
            False,
            f"it names the shift set with the digest {named}. Give the file of this set as "
            "--delta FILE (a model with batch norm: its radius)",
        )
    boxes = [] if shifts is None else [shifts]
    readings = [*readings, *_called_true_or_false(model, proof)]
    found = check_proof(proof, readings, demand, shifts=boxes, others=others)
    if not found.accepted:
        return found
    lacking = _uncovered(found, others)
    if not lacking:
        return found
    return checker.Verdict(False, f"{lacking}. The certificate proves only: {found.reason}")


def _statements(found: Verdict) -> list[Statement]:
    """Return what is proved of each network."""
    return [part.statement for part in (*found.parts, found) if part.statement is not None]


def _uncovered(found: Verdict, others: Sequence[Member]) -> str:
    """Describe a required model without a proof that it accepts. Empty if all have one."""
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


def _through(model: Model, schema: Schema) -> list[Parameters]:
    """Return the network with the features of a schema, which may make some of its numbers boolean."""
    from proplace.certification import parameters  # noqa: PLC0415
    from proplace.core.errors import ProplaceError  # noqa: PLC0415

    try:
        return [parameters(model.with_schema(schema).network)]
    except ProplaceError:  # another model, with another digest
        return []


def _required(word: str) -> tuple[Path, float | Shifts | None]:
    """Read one ``--required-model``: NETWORK, NETWORK:DELTA or NETWORK:SHIFTS.npz.

    A name may hold a colon: a file of the whole name comes first, then the last colon counts.
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.core.shifts import Shifts  # noqa: PLC0415

    if Path(word).is_file():
        return Path(word), None
    name, _, rest = word.rpartition(":")
    if not Path(name).is_file() or not rest:
        raise OptionError(
            f"--required-model {word}: there is no such file. Give NETWORK, or NETWORK:0.02, or "
            "NETWORK:shifts.npz",
            name="--required-model",
            value=word,
        )
    delta = options.delta_of(rest)
    return Path(name), Shifts.load(delta) if isinstance(delta, Path) else delta
