"""The folder of a batch: its manifest, its shards, and the file that they become.

A batch never changes other files. It writes ``manifest.json``, ``network.npz``, ``results.csv`` or
``results.parquet``, the files in the folders ``shards`` and ``certificates``, and ``shifts.npz``
unless delta is a radius. The manifest has the digest of the results before they get their name, so
that they are recognised. ``network.npz`` is the network that certificates name by its digest.
Required models are ``network-2.npz`` (and ``shifts-2.npz``), and so on.
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
    from proplace.explain.words import Wording
    from proplace.schema import Schema
    from proplace.schema.values import BadRow
    from proplace.tables.files import TableFile
    from proplace.tables.writing import Format

NETWORK, SHIFTS = "network.npz", "shifts.npz"
# digests and long lists, which no message shows
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
    """Return the file names of a network and of its shift set. The current model is number 1."""
    if number == 1:
        return NETWORK, SHIFTS
    return f"network-{number}.npz", f"shifts-{number}.npz"


def files_of(guarantee: Guarantee) -> dict[str, Network | Shifts]:
    """Return the networks and shift sets to save, by file name.

    Radii are in the manifest. The network of the current model is written once.
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
    """Parts of a table to explain, and the current part.

    The table is read once, in chunks. Rows outside the ranges (in order) are skipped.
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
                if stop > end:  # the next chunk continues it
                    ahead.appendleft((end, stop))
                    break
            if not ahead:
                return

    def with_ids(self, explanation: Explanation, ids: Sequence[str]) -> Explanation:
        """Return an explanation with its id cells, and with the reason of a row that cannot be read."""
        row: Any = explanation.index
        bad = self.broken.get(row)
        return replace(
            explanation,
            ids={name: self.frame.loc[row, name] for name in ids},
            reason=explanation.reason if bad is None else bad.reason,
        )


@dataclass(frozen=True)
class Layout:
    """The columns of the results of a batch, their writer, and the words of sentences."""

    columns: AnswerColumns
    writer: TableWriter
    wording: Wording | None = None

    @classmethod
    def of(
        cls,
        setting: Setting,
        ids: Sequence[str],
        kind: Format,
        source: TableFile,
        wording: Wording | None,
    ) -> Layout:
        """Return the columns for a setting and the id columns of a table."""
        columns = AnswerColumns.of(list(setting.schema.by_name), ids)
        types = source.arrow_types(ids) if kind == "parquet" else {}
        return cls(columns, TableWriter(kind, columns.types(setting, types)), wording)

    def content(self, answers: Iterable[Explanation]) -> bytes:
        """Return explanations as the bytes of a file, one line each."""
        records = [
            {self.columns.row: e.index, **self.columns.record(e, self.wording)} for e in answers
        ]
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
        The folder. It is created if necessary.
    kind
        Format of the results.
    manifest
        The settings and the context of the results.
    guarantee
        The guarantee of the results.
    certificates
        True to write certificates.
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
        self.finished = False
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
    def quarantined(self) -> tuple[Path, ...]:
        """Damaged shards, under their new names."""
        return tuple(self._shards.quarantined)

    def scan(self, span: Range) -> list[Range]:
        """Check every shard, and return the rows of a span that have no result yet."""
        with self._writing():
            self._shards.scan()
        return self._shards.missing(span)

    def write(
        self, kind: Kind, start: int, stop: int, content: bytes, proofs: Mapping[str, bytes]
    ) -> None:
        """Write the results of some rows as a shard, and their certificates."""
        with self._writing():
            self._shards.write(kind, start, stop, content, proofs)

    def merge(self, layout: Layout, span: Range) -> bool:
        """Join all shards in one file, and remove them if every row has a result.

        Returns False if a shard is damaged. It gets another name, and nothing else changes.
        """
        merged = self._shards.folder / MERGED
        with self._writing():
            try:
                with atomic_write(merged, temporary=self._shards.folder / UNFINISHED) as file:
                    layout.writer.join(self._shards.contents(span), file)
            except Damaged:
                return False
            self._checked_results()  # another file may be there now
            self._manifest = self._manifest.with_results(
                _sha256(merged), complete=not self._shards.missing(span)
            )
            self._write_manifest()
            move(merged, self.results)
            self.finished = self._manifest.complete
            if self.finished:
                self._shards.remove()
        return True

    # -- the settings of the folder ------------------------------------------------------------

    def _claim(self) -> None:
        """Write the manifest, or raise if the folder has other settings."""
        if self._place.exists():
            self._read_manifest()
            digest = self._checked_results()
            self.finished = self._manifest.complete and digest == self._manifest.results[-1]
            if self.finished:
                self._shards.remove()  # a run was killed before it removed them
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
        """Write a network or a shift set, or raise if the file has another content."""
        content = io.BytesIO()
        thing.write(content)
        if not path.exists():
            with atomic_write(path, temporary=self._shards.folder / UNFINISHED) as file:
                file.write(content.getvalue())
        elif path.read_bytes() != content.getvalue():
            raise OutputError(
                f"{path} was changed after this batch wrote it. Move it away and repeat the command, "
                "which writes it again",
                name=path.name,
            )

    def _check_free(self) -> None:
        """Raise if the folder has files with the names of a batch."""
        inputs = (self.path / name for name in self._inputs)
        ours = (self.results, *inputs, self._shards.folder, self._proofs)
        for path in filter(None, ours):
            if path.is_dir() and {rest.name for rest in path.iterdir()} <= {UNFINISHED}:
                continue  # a run was killed before it wrote the manifest
            if path.exists():
                raise OutputError(
                    f"{path} exists, but there is no manifest.json of a batch beside it. Give another "
                    "folder",
                    name=path.name,
                )

    def _read_manifest(self) -> None:
        try:
            found = Manifest.read(self._place)
        except NotAManifest as error:
            raise OutputError(str(error), name=self._place.name) from None
        self._compare(found.question)
        self._manifest = found  # its context, too: the batch began then

    def _compare(self, before: dict[str, Any]) -> None:
        before, now = _flat(before), _flat(self._manifest.question)
        other = [name for name in {**now, **before} if before.get(name) != now.get(name)]
        if other:
            name = other[0]
            values = f" (then {before.get(name)}, now {now.get(name)})"
            values = "" if name in _UNREADABLE else values
            more = f" and {', '.join(other[1:])}" if other[1:] else ""
            raise OutputError(
                f"{self.path} holds a batch with another {name}{values}{more}. Give another folder, or "
                "remove this one to start again",
                name=name,
                value=now.get(name),
            )

    def _write_manifest(self) -> None:
        with atomic_write(self._place, temporary=self._shards.folder / UNFINISHED) as file:
            file.write(self._manifest.content())

    def _checked_results(self) -> str | None:
        """Return the digest of the results, or raise if this batch did not write them."""
        if not self.results.exists():
            return None
        digest = _sha256(self.results)
        if digest not in self._manifest.results:
            raise OutputError(
                f"{self.results} was changed after this batch wrote it. Move it away and repeat the "
                "command, which writes it again",
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
                f"{self.path} cannot be written ({why}). Finished rows are saved. Repeat the command to "
                "resume",
                name=self.path.name,
            ) from error


def _flat(question: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the fields of the request beside the others."""
    request = question.get("request")
    return {**question, "request": None, **request} if isinstance(request, dict) else question


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _locked(folder: Path) -> int | None:
    """Lock a folder until the process ends or the returned handle is closed."""
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
            f"{folder}: another run writes to this folder. Wait for its end", name=folder.name
        ) from None
    return handle
