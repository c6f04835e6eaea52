"""The report: one HTML file that opens offline, for the people who read and sign."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proplace.apps.batch.folder import NETWORK, files_of, names_of
from proplace.apps.report import claims
from proplace.apps.report.pictures import Picture, margins_view, region_view, validity_view
from proplace.apps.report.plots import has_margins, held, margin_curves
from proplace.core.errors import OptionError
from proplace.core.files import atomic_write
from proplace.core.model_set import ModelSet
from proplace.core.optional import require
from proplace.core.text import visible
from proplace.explain.findings import CERTIFIABLE
from proplace.explain.geometry import compared, no_region
from proplace.explain.paths import SAME, beside, several
from proplace.explain.result_tables import proof_name
from proplace.explain.words import ChangeInWords, Terms, Wording, in_delta, in_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from proplace.core.network import Array, Network
    from proplace.explain.paths import Paths
    from proplace.explain.results import Explanation, Explanations, Setting

_MODEL = "model.npz"  # what the network is called beside proofs

MOST = 50
"""Answers of one report: more make a page that nobody reads and few browsers like."""

_STATUS = {
    "optimal": "nearest answer, proved",
    "feasible": "proved, perhaps not nearest",
    "valid": "valid today, not proved",
    "already_valid": "no change needed",
    "no_robust_neighbour": "no answer",
    "infeasible_rules": "no answer within the rules",
    "not_found": "no answer",
    "bad_input": "not readable",
    "solver_error": "the solver failed",
    "worker_died": "no answer yet",
    "source_disagrees": "withheld",
}


_NUMBER = re.compile(r"-?[0-9]")  # at the start of a cell: no line ends within its digits


@dataclass(frozen=True)
class Proof:
    """The certificate of one answer: what it says, and how to save (if need be) and check it.

    Attributes
    ----------
    says, digest
        What is proved, and the digest of the certificate.
    command
        How to check it.
    save
        What saves certificate and model in Python; empty where that is not the way.
    again
        Options that make the same command save it, and those whose place they take; None likewise.
    """

    says: str
    digest: str
    command: str
    save: tuple[str, ...] = ()
    again: tuple[str, str] | None = None


@dataclass(frozen=True)
class Answer:
    """One answer as the page shows it."""

    anchor: str
    name: str
    heading: str
    status: str
    good: bool
    sentence: str
    summary: str
    note: str
    changes: tuple[ChangeInWords, ...]
    person: tuple[tuple[str, str], ...]
    pictures: tuple[Picture, ...]
    missing: str
    held: str
    retrained: str
    proof: Proof | None
    out_of_reach: bool
    paths: Paths | None


def write_report(
    path: str | os.PathLike[str],
    result: Explanations,
    wording: Wording,
    *,
    title: str = "What would change the outcome",
    retrained: Sequence[Network] = (),
    against: Explanations | None = None,
    proofs: str | os.PathLike[str] | None = None,
    kept: str | os.PathLike[str] | None = None,
    again: tuple[str, str] | None = None,
    note: str = "",
    statement: str = "",
) -> Path:
    """Write the page; see :meth:`proplace.Explanations.report`.

    With ``again``, certificates are in the folder ``kept`` only after the same command with the first
    of these options in the place of the second.
    """
    if not len(result):
        raise OptionError("there is nothing to report: no row was explained")
    if len(result) > MOST:
        raise OptionError(
            f"a report shows at most {MOST} answers, not {len(result)}; report a part: "
            f"result[:{MOST}].report(...)"
        )
    jinja2 = require("jinja2", "report", "the report")
    plain = compared(result, against)
    terms = Terms.of(result, wording, against)
    target = Path(path)
    saved = _kept(target, result, Path(kept), again) if kept else _proofs(target, result, proofs)
    paths = {
        run[0]: beside(run, run[0].index, [_status(e) for e in run])
        for run in several(list(result))
    }
    answers = [
        _answer(e, plain[n], wording, terms, retrained, Place(n, saved.get(n), paths.get(e)))
        for n, e in enumerate(result)
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("proplace.apps.report"),
        autoescape=True,  # names and categories come from the user's table
        finalize=_literal,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.tests["number_first"] = lambda value: _NUMBER.match(value) is not None
    text = environment.get_template("report.html.j2").render(
        title=title,
        note=note,
        lead=claims.lead(result, wording),
        line=claims.line(result),
        figures=claims.figures(result, plain, terms, retrained),
        promises=claims.promises(result, terms, plain, retrained, statement),
        overview=_overview(result, plain, terms, retrained),
        answers=answers,
        retrained=len(retrained),
        same=SAME,
        wording=wording,
        glossary=claims.glossary(result, terms, compares=any(row is not None for row in plain)),
        record=claims.record(result),
        networks="the set" if _is_general(result) else "delta",
        generator=_generator(),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        file.write(text.encode())
    return target


def _literal(value: object) -> object:
    """Spell out what would not be seen on the page; called for everything that it shows."""
    return visible(value) if type(value) is str else value


# -- parts of the page ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The number of an answer on the page, its proof, and all answers of a person at the first."""

    number: int
    proof: Proof | None
    paths: Paths | None


def _answer(
    e: Explanation,
    plain: Array | None,
    wording: Wording,
    terms: Terms,
    retrained: Sequence[Network],
    place: Place,
) -> Answer:
    words = in_words(e, wording)
    label = _label(e.index) + (f" ({e.who})" if e.who else "")
    name = f"{wording.person[:1].upper()}{wording.person[1:]} {label}"
    pictures: list[Picture] = []
    kept = said = missing = ""
    if e.found and e.point is not None and e.setting is not None:
        missing = no_region(e)
        if not missing:
            pictures.append(region_view(e, plain, terms))
        if has_margins(e):
            pictures.append(margins_view(*margin_curves([e], [plain]), e, terms))
        if retrained:
            kept = _of_models(e.point, retrained, e.target)
            said = f"Counted on retrained models, this answer holds on {kept}"
            said += "." if plain is None else (
                f"; the {terms.other} on {_of_models(plain, retrained, e.target)}."
            )  # fmt: skip
    return Answer(
        anchor=f"answer-{place.number + 1}",
        name=label + (f" ({e.rank + 1})" if e.rank else ""),
        heading=name if not e.rank else f"{name}, another way",
        status=_status(e),
        good=e.status in CERTIFIABLE,
        sentence=words.sentence,
        summary=words.summary or _status(e),
        note=_sentence(e.reason) if e.found else "",
        changes=words.changes,
        person=words.person,
        pictures=tuple(pictures),
        missing=f"There is no map of the region: {missing}." if missing else "",
        held=kept,
        retrained=said,
        proof=place.proof,
        out_of_reach=e.out_of_reach,
        paths=place.paths,
    )


def _status(e: Explanation) -> str:
    """What to call a status; of several answers only the first is the nearest of all."""
    return "proved" if e.rank and e.status == "optimal" else _STATUS[e.status]


def _label(index: Hashable) -> str:
    """Name a row; a row of several levels by all of them."""
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)


@dataclass(frozen=True)
class _Overview:
    pictures: tuple[Picture, ...]


def _overview(
    result: Explanations,
    plain: Sequence[Array | None],
    terms: Terms,
    retrained: Sequence[Network],
) -> _Overview | None:
    """All answers in one picture; None where there is one answer only."""
    answers = [e for e in result if e.found]
    if len(result) < 2:
        return None
    if not answers:
        return _Overview(())
    first = answers[0]
    others = np.array([row for row in plain if row is not None])
    pictures = []
    if has_margins(first):
        curves = margin_curves(answers, plain)
        pictures.append(margins_view(*curves, first, terms, several=len(answers) > 1))
    if retrained:
        points = np.array([e.point for e in answers])
        pictures.append(validity_view(points, others, retrained, first.target, terms))
    return _Overview(tuple(pictures))


def _generator() -> str:
    from proplace import __version__  # noqa: PLC0415  (the package imports this module)

    return f"proplace {__version__}"


def _of_models(row: Array, retrained: Sequence[Network], target: int) -> str:
    kept = round(float(held(row[None], retrained, target)[0]) * len(retrained))
    return f"{kept} of {len(retrained)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


# -- proofs --------------------------------------------------------------------------------------


def _proofs(
    page: Path, result: Explanations, folder: str | os.PathLike[str] | None
) -> dict[int, Proof]:
    """What to say about each certificate; with a folder, write them there with the networks."""
    setting, found = claims.setting_of(result), {}
    files = {} if setting is None else files_of(_sets(setting))
    files = {_MODEL if name == NETWORK else name: thing for name, thing in files.items()}
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, thing in files.items():
            thing.save(Path(folder) / name)
    for n, e in enumerate(result):
        if e.certificate is None:
            continue
        if folder is None:
            command = _command("proof.json", _MODEL, e.setting, Path())
            found[n] = Proof(_says(e), e.certificate.digest, command, _saving(n, e.setting))
            continue
        place = Path(folder) / f"answer-{n + 1}.json"
        e.certificate.save(place)
        model = _beside(page, Path(folder) / _MODEL)
        near = Path(_beside(page, Path(folder)))
        command = _command(_beside(page, place), model, e.setting, near)
        found[n] = Proof(_says(e), e.certificate.digest, command)
    return found


def _kept(
    page: Path, result: Explanations, folder: Path, again: tuple[str, str] | None
) -> dict[int, Proof]:
    """What to say about each certificate of a folder of results."""
    made, found = result.provenance, {}
    file = None if made is None or made.file_digest is None else made.model
    model = file or _beside(page, folder / NETWORK)
    near = Path(_beside(page, folder))
    for n, e in enumerate(result):
        if e.certificate is not None:
            place = folder / "certificates" / proof_name(int(str(e.index)), e.rank)
            command = _command(_beside(page, place), model, e.setting, near)
            found[n] = Proof(_says(e), e.certificate.digest, command, again=again)
    return found


def _command(proof: str, model: str, setting: Setting | None, near: Path) -> str:
    """How to check a certificate, with the files of its networks in some folder."""
    words = ["proplace", "check", proof, "--model", model]
    sets = () if setting is None else _sets(setting)
    files = files_of(sets)
    for number in range(1, len(sets) + 1):
        network, shifts = names_of(number)
        if number == 1 and shifts in files:
            words += ["--shifts", (near / shifts).as_posix()]
        elif number > 1 and network in files:
            more = f":{(near / shifts).as_posix()}" if shifts in files else ""
            words += ["--also", f"{(near / network).as_posix()}{more}"]
    return shlex.join(words)


def _saving(n: int, setting: Setting | None) -> tuple[str, ...]:
    """How to save a certificate, and the sets of networks that it is about, from Python."""
    words = [f'result[{n}].certificate.save("proof.json")']
    sets = () if setting is None else _sets(setting)
    files = files_of(sets)
    for number in range(1, len(sets) + 1):
        where = f"result[{n}].setting" + (f".sets[{number - 1}]" if number > 1 else "")
        for name, part in zip(names_of(number), ("net", "shifts"), strict=True):
            if name in files:
                words.append(f'{where}.{part}.save("{_MODEL if name == NETWORK else name}")')
    return tuple(words)


def _sets(setting: Setting) -> Sequence[ModelSet]:
    """The sets of networks of a setting; where they are not known, that of the model in use."""
    return setting.sets or (ModelSet(setting.net, setting.shifts),)


def _is_general(result: Explanations) -> bool:
    """Whether the answers are about a set with an interval for each parameter."""
    setting = claims.setting_of(result)
    return setting is not None and setting.general


def _says(e: Explanation) -> str:
    where = "within delta" if e.setting is None else in_delta(e.setting)
    if e.certificate is not None and e.certificate.verdict == "robust":
        return f"Every network {where} gives this answer the outcome."
    return f"Some network {where} gives another outcome; the proof holds it."


def _beside(page: Path, file: Path) -> str:
    """The path of a file as seen from the folder of the page."""
    return os.path.relpath(file, page.parent).replace(os.sep, "/")
