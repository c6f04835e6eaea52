"""The folder of a batch: its manifest, its shards, and the file that they become.

Files that the batch did not write are never touched. It writes ``manifest.json``, ``network.npz``,
``results.csv`` or ``results.parquet``, and what is in the folders ``shards`` and ``certificates``,
which it makes itself, and ``shifts.npz`` where the set of networks is no plain delta.
The manifest holds the digest of the results before they get their name, so that they are known again.
``network.npz`` is the network that the answers are about, by the digest that certificates name, and
``shifts.npz`` the set of networks that they hold for, where each parameter has an interval of its own.
Other models that must accept the answers are ``network-2.npz`` (and ``shifts-2.npz``), and so on.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from proplace.batch.manifest import NAME, Manifest, NotAManifest
from proplace.batch.shards import MERGED, UNFINISHED, Damaged, Shards
from proplace.core.errors import OutputError, require
from proplace.core.files import atomic_write, move
from proplace.explain.record import AnswerColumns
from proplace.tables.writing import TableWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from proplace.batch.shards import Kind, Range
    from proplace.core.guarantee import Guarantee
    from proplace.core.network import Network
    from proplace.core.shifts import Shifts
    from proplace.explain.results import Explanation, Setting
    from proplace.schema import Schema
    from proplace.schema.values import BadRow
    from proplace.tables.files import TableFile
    from proplace.tables.writing import Format

NETWORK, SHIFTS = "network.npz", "shifts.npz"
# Nothing that a reader would recognise: digests and long lists.
_UNREADABLE = frozenset(
    (
        "network",
        "training rows",
        "schema",
        "input",
        "delta",
        "weights of the distance",
        "required_models",
    )
)


def names_of(number: int) -> tuple[str, str]:
    """What the files of a network and of its box are called; the current model is number 1."""
    if number == 1:
        return NETWORK, SHIFTS
    return f"network-{number}.npz", f"shifts-{number}.npz"


def files_of(guarantee: Guarantee) -> dict[str, Network | Shifts]:
    """Return the networks and shift sets to save, by file name.

    Radii are in the manifest, and the current model is not written again where it is asked by itself.
    """
    files: dict[str, Network | Shifts] = {}
    for number, each in enumerate(guarantee.members, start=1):
        network, shifts = names_of(number)
        if number == 1 or each.network != guarantee.current.network:
            files[network] = each.network
        if each.shifts.radii is None:
            files[shifts] = each.shifts
    return files


# -- the table of results --------------------------------------------------------------------------


class Rows:
    """Pieces of a table that are to be explained, and the one that is being explained.

    The table is read once, in chunks; rows outside the ranges (in order) are passed over.
    """

    def __init__(self, source: TableFile, schema: Schema, ranges: Sequence[Range]) -> None:
        self._source, self._schema, self._ranges = source, schema, ranges
        self.frame = pd.DataFrame()
        self.broken: dict[int, BadRow] = {}

    def __iter__(self) -> Iterator[pd.DataFrame]:
        ahead = deque(self._ranges)
        for frame, broken in self._source.frames(self._schema, ahead[0][0]):
            self.broken = broken
            first, end = int(frame.index[0]), int(frame.index[-1]) + 1
            while ahead and ahead[0][0] < end:
                start, stop = ahead.popleft()
                self.frame = frame.iloc[max(start, first) - first : min(stop, end) - first]
                yield self.frame
                if stop > end:  # it goes on in the next chunk
                    ahead.appendleft((end, stop))
                    break
            if not ahead:
                return

    def told(self, explanation: Explanation, ids: Sequence[str]) -> Explanation:
        """Return an answer with the cells that say whose it is, and why a row has none."""
        row: Any = explanation.index
        bad = self.broken.get(row)
        return replace(
            explanation,
            ids={name: self.frame.loc[row, name] for name in ids},
            reason=explanation.reason if bad is None else bad.reason,
        )


@dataclass(frozen=True)
class Layout:
    """The results of a batch: the columns, and how they are written."""

    columns: AnswerColumns
    writer: TableWriter

    @classmethod
    def of(cls, setting: Setting, ids: Sequence[str], kind: Format, source: TableFile) -> Layout:
        """Columns for the answers of a setting and the id columns of a table."""
        columns = AnswerColumns.of(list(setting.schema.by_name), ids)
        types = source.arrow_types(ids) if kind == "parquet" else {}
        return cls(columns, TableWriter(kind, columns.types(setting, types)))

    def content(self, answers: Iterable[Explanation]) -> bytes:
        """Answers as the bytes of a file, one line each."""
        records = [{self.columns.row: e.index, **self.columns.record(e)} for e in answers]
        frame = pd.DataFrame(records, columns=list(self.writer.types), dtype=object)
        return self.writer.content(frame)

    def statuses(self, results: Path) -> dict[str, int]:
        """Count people by status."""
        status, rank = self.columns.facts["status"], self.columns.facts["rank"]
        if self.writer.kind == "csv":
            with results.open(encoding="utf-8", newline="") as file:
                return dict(
                    Counter(row[status] for row in csv.DictReader(file) if row[rank] == "0")
                )
        parquet = require("pyarrow.parquet", "parquet", "reading Parquet files")
        counts: Counter[str] = Counter()
        with parquet.ParquetFile(results) as file:
            for batch in file.iter_batches(columns=[status, rank]):
                frame = batch.to_pandas()
                counts.update(frame.loc[frame[rank] == 0, status])
        return dict(counts)


# -- the folder ------------------------------------------------------------------------------------


class Folder:
    """The folder of a batch, held by one process at a time.

    Parameters
    ----------
    path
        The folder; made if it is not there.
    kind
        Format of the results.
    manifest
        What is asked, and what the answers are about. A folder is about one question.
    guarantee
        The networks for which the answers hold.
    certificates
        Whether the proofs of the answers are kept, too.
    """

    def __init__(
        self,
        path: Path,
        kind: Format,
        manifest: Manifest,
        guarantee: Guarantee,
        *,
        certificates: bool,
    ) -> None:
        self.path = path
        self.results = path / f"results.{kind}"
        self._manifest = manifest
        self._inputs = files_of(guarantee)
        self._place = path / NAME
        self._proofs = path / "certificates" if certificates else None
        self._shards = Shards(path / "shards", self._proofs, manifest.digest, kind)
        self.finished = False  # whether it is there
        self._lock: int | None = None

    def __enter__(self) -> Folder:
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        try:
            with self._writing():
                self._claim()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)  # this also unlocks

    @property
    def set_aside(self) -> tuple[Path, ...]:
        """Shards that were damaged, under their new names."""
        return tuple(self._shards.set_aside)

    def survey(self, span: Range) -> list[Range]:
        """Check every shard; return the rows of a span that have no answer yet."""
        with self._writing():
            self._shards.survey()
        return self._shards.missing(span)

    def write(
        self, kind: Kind, start: int, stop: int, content: bytes, proofs: Mapping[str, bytes]
    ) -> None:
        """Write the answers of some rows as a shard, and the proofs that belong to them."""
        with self._writing():
            self._shards.write(kind, start, stop, content, proofs)

    def merge(self, layout: Layout, span: Range) -> bool:
        """Make one file of all shards, and remove them if every row has an answer.

        Returns False if a shard was found damaged: it is set aside, nothing else has changed.
        """
        merged = self._shards.folder / MERGED
        with self._writing():
            try:
                with atomic_write(merged, temporary=self._shards.folder / UNFINISHED) as file:
                    layout.writer.join(self._shards.contents(span), file)
            except Damaged:
                return False
            self._checked_results()  # nobody has put another file there meanwhile
            self._manifest = self._manifest.with_results(
                _sha256(merged), complete=not self._shards.missing(span)
            )
            self._write_manifest()
            move(merged, self.results)
            self.finished = self._manifest.complete
            if self.finished:
                self._shards.remove()
        return True

    # -- whose folder it is --------------------------------------------------------------------

    def _claim(self) -> None:
        """Write down what is asked, or make sure that the folder is about the same."""
        if self._place.exists():
            self._read_manifest()
            digest = self._checked_results()
            self.finished = self._manifest.complete and digest == self._manifest.results[-1]
            if self.finished:
                self._shards.remove()  # a run may have been killed before they were gone
                return
        else:
            self._check_free()
        for folder in filter(None, (self._shards.folder, self._proofs)):
            folder.mkdir(exist_ok=True)
        if not self._place.exists():
            self._write_manifest()
        for name, thing in self._inputs.items():
            self._keep(self.path / name, thing)

    def _keep(self, path: Path, thing: Network | Shifts) -> None:
        """Write a network or a set of them, or make sure that it is the one which is there."""
        content = io.BytesIO()
        thing.write(content)
        if not path.exists():
            with atomic_write(path, temporary=self._shards.folder / UNFINISHED) as file:
                file.write(content.getvalue())
        elif path.read_bytes() != content.getvalue():
            raise OutputError(
                f"{path}: is not as this batch wrote it; move it away and give the same command "
                "again, which then makes it anew",
                name=path.name,
            )

    def _check_free(self) -> None:
        """Raise if the folder holds anything under the names that a batch uses."""
        inputs = (self.path / name for name in self._inputs)
        ours = (self.results, *inputs, self._shards.folder, self._proofs)
        for path in filter(None, ours):
            if path.is_dir() and {rest.name for rest in path.iterdir()} <= {UNFINISHED}:
                continue  # of a run that was killed before it wrote the manifest
            if path.exists():
                raise OutputError(
                    f"{path}: is there, but no manifest.json of a batch is beside it; "
                    "give another folder",
                    name=path.name,
                )

    def _read_manifest(self) -> None:
        try:
            found = Manifest.read(self._place)
        except NotAManifest as error:
            raise OutputError(str(error), name=self._place.name) from None
        self._compare(found.question)
        self._manifest = found  # also what it is about: the batch was begun then, not now

    def _compare(self, before: dict[str, Any]) -> None:
        before, now = _flat(before), _flat(self._manifest.question)
        other = [name for name in {**now, **before} if before.get(name) != now.get(name)]
        if other:
            name = other[0]
            values = f" (then {before.get(name)}, now {now.get(name)})"
            values = "" if name in _UNREADABLE else values
            more = f" and {', '.join(other[1:])}" if other[1:] else ""
            raise OutputError(
                f"{self.path}: holds a batch with another {name}{values}{more}; "
                "give another folder, or remove this one to begin again",
                name=name,
                value=now.get(name),
            )

    def _write_manifest(self) -> None:
        with atomic_write(self._place, temporary=self._shards.folder / UNFINISHED) as file:
            file.write(self._manifest.content())

    def _checked_results(self) -> str | None:
        """Digest of what is in the place of the results; raise if this batch has not written it."""
        if not self.results.exists():
            return None
        digest = _sha256(self.results)
        if digest not in self._manifest.results:
            raise OutputError(
                f"{self.results}: is not as this batch wrote it; move it away and give the same "
                "command again, which then makes it anew",
                name=self.results.name,
            )
        return digest

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OutputError:
            raise
        except OSError as error:
            why = error.strerror or str(error)
            raise OutputError(
                f"{self.path}: cannot be written ({why}); what is done is kept, "
                "and the same command goes on from there",
                name=self.path.name,
            ) from error


def _flat(question: dict[str, Any]) -> dict[str, Any]:
    """Return a question with the fields of its request beside the others."""
    request = question.get("request")
    return {**question, "request": None, **request} if isinstance(request, dict) else question


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _locked(folder: Path) -> int | None:
    """Hold a folder until the process ends or the number that is returned is closed."""
    try:
        import fcntl  # noqa: PLC0415  (not on every system: there, nobody looks)
    except ImportError:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise OutputError(
            f"{folder}: another run is writing there; wait for it to end", name=folder.name
        ) from None
    return handle
