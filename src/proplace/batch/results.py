"""Reader of a folder of results, which become explanations again.

Every digest is compared first. The manifest has a seal, and the digests of the results, of the
networks and of the shift sets. Each row of the results has the digest of its certificate.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import pandas as pd

from proplace.batch.folder import NETWORK, names_of
from proplace.batch.manifest import NAME, About, Manifest, NotAManifest
from proplace.certification import digest as network_digest
from proplace.certification import read_proof
from proplace.certification.checker import MAX_BYTES
from proplace.core.errors import ProplaceError, ResultsError
from proplace.core.guarantee import Guarantee
from proplace.core.network import Network
from proplace.core.shifts import Shifts
from proplace.core.transforms import folds_digest
from proplace.explain.record import AnswerColumns, proof_name
from proplace.explain.results import ANSWERED, Explanation, Explanations, Setting, Status
from proplace.explain.words import Wording
from proplace.schema import Continuous
from proplace.tables.files import literal, open_table, plain, unliteral
from proplace.tables.writing import feature_type

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from proplace.certification import Proof
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature
    from proplace.tables.files import TableFile

_AGAIN = "explain the same input into another folder"


def read_results(folder: str | os.PathLike[str]) -> Explanations:
    """Read the explanations of a folder of results.

    The model's own file is not needed. Every explanation has the person and the counterfactual in
    original units, its status, reason, distance, bound and margin, the certificate if the folder
    has certificates, and the cells of the id columns (``ids``). Its index is the number of the row.
    The robust neighbours are not in the folder: ``neighbours`` is None.

    Parameters
    ----------
    folder
        A folder from ``proplace explain --out`` or :func:`proplace.batch.explain_file`.

    Raises
    ------
    ResultsError
        The folder has no results, unfinished results, or results of another version, or a file in
        it was changed.
    """
    opened = ResultsFolder.open(Path(folder))
    return opened.explanations(opened.lines())


def open_results(folder: str | os.PathLike[str]) -> ResultsFolder:
    """Open a folder of results, to read it part by part (see :func:`read_results`)."""
    return ResultsFolder.open(Path(folder))


@dataclass(frozen=True, eq=False)
class ResultRow:
    """One row of the results, and the digest of its certificate."""

    explanation: Explanation
    digest: str | None

    @property
    def proof_name(self) -> str:
        """Name of the file with the certificate."""
        return proof_name(int(cast("int", self.explanation.index)), self.explanation.rank)

    @property
    def name(self) -> str:
        """The row number, ids and rank, for messages."""
        who = self.explanation.id_text
        rank = f", answer {self.explanation.rank}" if self.explanation.rank else ""
        return f"row {self.explanation.index}{f' ({who})' if who else ''}{rank}"


@dataclass(frozen=True, eq=False)
class ResultsFolder:
    """A folder of results with matching digests.

    Attributes
    ----------
    path
        The folder.
    about, setting
        The context of the results.
    target
        Number of the target class.
    certificates
        True if the folder has certificates.
    table
        The results.
    columns
        Their columns.
    wording
        The words of their sentences.
    """

    path: Path
    about: About
    setting: Setting
    target: int
    certificates: bool
    table: TableFile
    columns: AnswerColumns
    wording: Wording

    @classmethod
    def open(cls, path: Path) -> ResultsFolder:
        """Open a folder and compare the digests of its files."""
        if not (path / NAME).is_file():
            raise ResultsError(
                f"{path}: there is no {NAME}. Give the folder of a proplace explain --out command",
                name=NAME,
            )
        try:
            manifest = Manifest.read(path / NAME)
            about = manifest.facts()
        except NotAManifest as error:
            raise ResultsError(str(error), name=NAME) from None
        question = manifest.question
        guarantee = _guarantee(path, about)
        setting = Setting(guarantee, about.model(guarantee.current.network))
        table = _results(path / f"results.{question['format']}", manifest)
        columns = AnswerColumns.of(list(about.schema.by_name), question["id columns"])
        return cls(
            path,
            about,
            setting,
            question["request"]["target"],
            question["certificates"],
            table,
            columns,
            Wording.from_dict(question.get("wording")),
        )

    def lines(self) -> Iterator[ResultRow]:
        """Yield the rows of the results."""
        for cells, _ in self.table.cells():
            try:
                found = self._lines(_Cells(cells, csv=self.table.path.suffix == ".csv"))
            except (ProplaceError, KeyError, TypeError, ValueError) as error:
                raise ResultsError(
                    f"{self.table.path}: cannot be read ({error}); {_AGAIN}",
                    name=self.table.path.name,
                ) from None
            yield from found

    def people(self) -> int:
        """Count the people of the results."""
        rank = self.columns.facts["rank"]
        return sum(int((cells[rank].astype(str) == "0").sum()) for cells, _ in self.table.cells())

    def first(self, answers: int) -> Explanations:
        """Return the first people, each with all rows, up to a number of rows."""
        chosen: list[ResultRow] = []
        for _, group in itertools.groupby(self.lines(), lambda line: line.explanation.index):
            person = list(group)
            if chosen and len(chosen) + len(person) > answers:
                break
            chosen += person
        return self.explanations(chosen[:answers])

    def parts(self, answers: int) -> Iterator[Explanations]:
        """Yield all people in parts of at most so many rows, or one person with more."""
        chosen: list[ResultRow] = []
        for _, group in itertools.groupby(self.lines(), lambda line: line.explanation.index):
            person = list(group)
            if chosen and len(chosen) + len(person) > answers:
                yield self.explanations(chosen)
                chosen = []
            chosen += person
        if chosen:
            yield self.explanations(chosen)

    def explanations(self, lines: Iterable[ResultRow]) -> Explanations:
        """Return rows as explanations, with their certificates if the folder has them."""
        items = [
            line.explanation
            if line.digest is None or not self.certificates
            else replace(line.explanation, certificate=self.certificate(line))
            for line in lines
        ]
        made = self.about.provenance
        return Explanations(items, index_names=(self.columns.row,), provenance=made)

    def certificate(self, line: ResultRow) -> Proof:
        """Return the certificate of a row, or raise if it was changed."""
        content = self.proof(line)
        if content is None:
            raise ResultsError(
                f"{self.path / 'certificates' / line.proof_name}: the certificate of {line.name} is "
                f"missing or was changed. Restore the original file, or {_AGAIN}",
                name=line.proof_name,
            )
        return read_proof(content)

    def proof(self, line: ResultRow) -> bytes | None:
        """Return the content of the certificate of a row, or None if it was changed."""
        path = self.path / "certificates" / line.proof_name
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1).removesuffix(b"\n")
        except OSError:
            return None
        return content if hashlib.sha256(content).hexdigest() == line.digest else None

    def _lines(self, cells: _Cells) -> list[ResultRow]:
        """Return the rows of a part of the results."""
        facts, schema = self.columns.facts, self.setting.schema
        statuses = cells.text(facts["status"])
        if strange := set(statuses) - set(get_args(Status)):
            raise ValueError(f"{strange.pop()!r} is no status")
        answered = np.isin(statuses, list(ANSWERED))
        after = _people(cells, {name: name for name in schema.by_name}, schema, answered)
        known = cells.filled(list(self.columns.originals.values()))
        known |= np.array([status != "bad_input" for status in statuses])
        before = _people(cells, self.columns.originals, schema, known)
        distance, bound, margin = (
            cells.numbers(facts[name]) for name in ("distance", "bound", "margin")
        )
        plausibility = cells.numbers(facts["plausibility"])
        nearest_rows = cells.numbers(facts["nearest_row"])
        in_region, timed_out, checked = (
            cells.truths(facts[name])
            for name in ("in_region", "timed_out", "checked_with_original")
        )
        ranks, reasons = cells.whole(facts["rank"]), cells.text(facts["reason"])
        ids = {name: cells.text(name) for name in self.columns.ids}
        digests, gaps = cells.text(facts["certificate"]), cells.text(facts["imputed"])
        held = cells.text(facts["guaranteed_ranges"])
        lines = []
        for n, row in enumerate(cells.whole(self.columns.row)):
            (original, x), (answer, point) = before(n, row), after(n, row)
            line = ResultRow(
                Explanation(
                    cast("Status", statuses[n]),
                    reasons[n] or "",
                    index=row,
                    target=self.target,
                    original=original,
                    counterfactual=answer,
                    rank=ranks[n],
                    encoded_original=x,
                    encoded_counterfactual=point,
                    setting=self.setting,
                    ids={name: values[n] for name, values in ids.items()},
                    distance=distance[n],
                    bound=bound[n],
                    in_region=in_region[n],
                    timed_out=timed_out[n],
                    margin=margin[n],
                    plausibility=plausibility[n],
                    nearest_row=None if np.isnan(nearest_rows[n]) else int(nearest_rows[n]),
                    imputed=tuple(json.loads(gaps[n])) if gaps[n] else (),
                    guaranteed_ranges=_ranges(held[n], schema) if held[n] else {},
                    checked_with_original=checked[n],
                ),
                digests[n] or None,
            )
            lines.append(line)
        return lines


class _Cells:
    """Cells of some rows."""

    def __init__(self, frame: pd.DataFrame, *, csv: bool) -> None:
        self._frame, self._csv = frame, csv

    def __len__(self) -> int:
        return len(self._frame)

    def column(self, name: str) -> list[Any]:
        """Return the cells of a column, as text in CSV, and None for missing cells in Parquet."""
        cells = self._frame[literal(name) if self._csv else name].tolist()
        return cells if self._csv else [None if _is_nothing(cell) else cell for cell in cells]

    def text(self, name: str) -> list[Any]:
        """Return the cells of a column of text."""
        return [unliteral(cell) for cell in self.column(name)] if self._csv else self.column(name)

    def whole(self, name: str) -> list[int]:
        """Return the cells of a column of whole numbers."""
        return [int(cell) for cell in self.column(name)]

    def numbers(self, name: str) -> list[float]:
        """Return the cells of a column of numbers, with NaN for missing cells."""
        return [np.nan if cell in (None, "") else float(cell) for cell in self.column(name)]

    def truths(self, name: str) -> list[bool]:
        """Return the cells of a column of True and False."""
        return [str(cell).lower() == "true" for cell in self.column(name)]

    def filled(self, names: list[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return True for each row with a cell in one of the columns."""
        return np.array(
            [any(cell not in (None, "") for cell in line) for line in self._across(names)],
            dtype=np.bool_,
        ).reshape(len(self))

    def values(self, name: str, feature: AnyFeature) -> list[Any]:
        """Return the values of a feature, with None for missing cells."""
        cells = self.column(name)
        if isinstance(feature, Continuous):
            return [None if cell in (None, "") else plain(float(cell), feature) for cell in cells]
        text = self._csv or feature_type(feature) is str
        spelt = {
            (str(literal(label)) if self._csv else str(label)) if text else label: label
            for label in feature.labels
        }
        return [spelt.get(cell) for cell in cells]

    def _across(self, names: list[str]) -> Iterator[tuple[Any, ...]]:
        return zip(*(self.column(name) for name in names), strict=True)


def _ranges(text: str, schema: Schema) -> dict[str, tuple[float, float]]:
    """Read guaranteed ranges: intervals of numbers, by feature name."""
    found = {}
    for name, (low, high) in json.loads(text).items():
        if not isinstance(schema.by_name[name], Continuous) or not low <= high:
            raise ValueError(f"the guaranteed range of {name!r} is not an interval of numbers")
        found[name] = (float(low), float(high))
    return found


def _people(
    cells: _Cells,
    names: dict[str, str],
    schema: Schema,
    there: np.ndarray[Any, np.dtype[np.bool_]],
) -> Callable[[int, int], tuple[pd.Series[Any] | None, Any]]:
    """Return a function that gives the person of a row, in original units and encoded."""
    columns = {name: cells.values(names[name], schema.by_name[name]) for name in schema.by_name}
    lines = np.flatnonzero(there)
    frame = pd.DataFrame(
        {name: [values[n] for n in lines] for name, values in columns.items()}, dtype=object
    )
    encoded, wrong = (
        schema.encode_people(frame) if len(lines) else (np.empty((0, schema.width)), {})
    )
    if wrong:
        raise ValueError(next(iter(wrong.values())).reason)
    place = {int(n): i for i, n in enumerate(lines)}

    def at(n: int, row: int) -> tuple[pd.Series[Any] | None, Any]:
        if n not in place:
            return None, None
        values = {
            name: _imputed(schema.by_name[name]) if column[n] is None else column[n]
            for name, column in columns.items()
        }
        return pd.Series(values, dtype=object, name=row), encoded[place[n]]

    return at


def _imputed(feature: AnyFeature) -> Any:
    """Return the value of a missing cell."""
    value = feature.missing
    if value is None or not isinstance(feature, Continuous):
        return value
    return plain(float(value), feature)


def _results(path: Path, manifest: Manifest) -> TableFile:
    """Open the results, or raise if they were changed."""
    if not manifest.results or not path.is_file():
        problem = "there are no results yet. Repeat the proplace explain command to resume"
        if manifest.results:
            problem = "the results are gone. Restore them, or repeat the proplace explain command"
        raise ResultsError(f"{path}: {problem}", name=path.name)
    try:
        table = open_table(path, delimiter=",")  # as the batch wrote it
    except ProplaceError as error:
        raise ResultsError(f"{path}: cannot be read ({error}); {_AGAIN}", name=path.name) from None
    if table.digest not in manifest.results:
        raise ResultsError(
            f"{path} was changed after proplace wrote it. Restore the original file, or {_AGAIN}",
            name=path.name,
        )
    return table


def _guarantee(path: Path, about: About) -> Guarantee:
    """Read the networks of the guarantee, or raise if their files were changed."""
    facts = about.provenance.guarantee
    # the file of the first member with a network or a shift set has it
    files, words = {}, {}
    for number, member in reversed([*enumerate(facts["members"], start=1)]):
        files[member["network"]], box = names_of(number)
        if isinstance(member["delta"], str):
            files[member["delta"]], words[member["delta"]] = box, member["about"]
    try:
        tolerance = about.schema.encode_tolerance(about.provenance.request.misses)
    except KeyError as error:
        raise ResultsError(
            f"{path / NAME}: cannot be read ({error}); {_AGAIN}", name=NAME
        ) from None

    def network(digest: str) -> Network:
        file = files[digest]
        return _network(path / file, digest, about.folds if file == NETWORK else None)

    def shifts(digest: str) -> Shifts:
        return _shifts(path / files[digest], digest, words[digest])

    return Guarantee.from_dict(facts, network, shifts, tolerance)


def _network(path: Path, digest: str, folds: str | None = None) -> Network:
    """Read a network, or raise if it was changed.

    Batch norm that was folded into it has a digest of its own. None: certificates name a shift set
    that follows from it.
    """
    try:
        net = Network.load(path)
    except ProplaceError:
        net = None
    same = net is not None and network_digest(net) == digest
    if net is None or not same or folds not in (None, folds_digest(net.folds)):
        raise ResultsError(
            f"{path} is missing or was changed. Restore the original file, or {_AGAIN}",
            name=path.name,
        )
    return net


def _shifts(path: Path, digest: str, about: str) -> Shifts:
    """Read a shift set, or raise if it was changed."""
    try:
        shifts = Shifts.load(path)
    except ProplaceError:
        shifts = None
    if shifts is None or shifts.digest != digest or about != shifts.description:
        raise ResultsError(
            f"{path} is missing or was changed. Restore the original file, or {_AGAIN}",
            name=path.name,
        )
    return shifts


def _is_nothing(cell: Any) -> bool:
    return cell is None or cell is pd.NA or (isinstance(cell, float) and np.isnan(cell))
