"""Shards: partial results of a batch. A file name has the range of rows and a digest.

The name of a shard ends with its seal, a SHA-256 over the settings of the batch, the rows, the
content and the certificates. A shard that was cut, emptied, overwritten, renamed or copied from
elsewhere does not match its seal. The same holds if its certificates were changed. Such a shard
is renamed, and its rows are computed again.

Rows whose worker died have shards of another kind. They fill the gap in the results, and the next run
tries these rows again.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from proplace.core.errors import OutputError
from proplace.core.files import atomic_write, move

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from proplace.tables.writing import Format

Kind = Literal["rows", "lost"]
Range = tuple[int, int]
"""The first row, and the row after the last."""

# names of unfinished files; one writer uses each for one file at a time
UNFINISHED, MERGED = ".proplace-unfinished", ".proplace-merged"
_NAME = re.compile(r"(rows|lost)-(\d{12})-(\d{12})-([0-9a-f]{64})\.(?:csv|parquet)")
_PROOF = re.compile(r"row-(\d{12})-\d+\.json")


@dataclass(frozen=True)
class Shard:
    """A file with the results of some rows."""

    path: Path
    kind: Kind
    start: int
    stop: int
    seal: str


class Damaged(Exception):
    """Raised if a shard was changed."""


class Shards:
    """The shards of a batch, and the certificates of their rows.

    Parameters
    ----------
    folder
        Their folder. All files in it belong to the batch.
    proofs
        Folder of the certificates. None: without certificates.
    question
        Digest of the settings of the batch.
    suffix
        Format of the shards.
    """

    def __init__(self, folder: Path, proofs: Path | None, question: str, suffix: Format) -> None:
        self.folder = folder
        self.quarantined: list[Path] = []
        self._proofs, self._question, self._suffix = proofs, question, suffix
        self._known: list[Shard] = []

    def scan(self) -> None:
        """Check every shard, and remove certificates without a shard."""
        self._known = []
        proofs = self._found_proofs()
        for shard in self._found():
            try:
                self._content(shard, proofs)
            except Damaged:
                self._quarantine(shard)
                continue
            if shard.kind == "lost":  # tried again
                shard.path.unlink()
            else:
                self._known.append(shard)
        done = self._in_order()
        starts = [shard.start for shard in done]
        for row, paths in proofs.items():
            before = bisect.bisect_right(starts, row) - 1
            if before < 0 or row >= done[before].stop:  # their run ended before their shard
                for path in paths:
                    path.unlink()

    def missing(self, span: Range) -> list[Range]:
        """Return the rows of a span that no shard has answers for."""
        return list(_gaps([s for s in self._in_order() if s.kind == "rows"], span))

    def write(
        self, kind: Kind, start: int, stop: int, content: bytes, proofs: Mapping[str, bytes]
    ) -> None:
        """Write results as a shard, after their certificates."""
        kept = [] if self._proofs is None else sorted(proofs.items())
        for name, proof in kept:
            self._write(cast("Path", self._proofs) / name, proof)
        seal = self._seal(start, stop, content, kept)
        path = self.folder / f"{kind}-{start:012d}-{stop:012d}-{seal}.{self._suffix}"
        self._write(path, content)
        self._known.append(Shard(path, kind, start, stop, seal))

    def contents(self, span: Range) -> Iterator[bytes]:
        """Yield the content of the shards in the order of the rows, after a check.

        Raises
        ------
        Damaged
            A shard was changed. It has another name now.
        """
        shards = self._in_order()
        for start, stop in _gaps(shards, span):
            raise OutputError(
                f"{self.folder}: there are no results for the rows {start} to {stop - 1}. Repeat the "
                "command",
                name=self.folder.name,
            )
        proofs = self._found_proofs()
        for shard in shards:
            try:
                yield self._content(shard, proofs)
            except Damaged:
                self._quarantine(shard)
                raise

    def remove(self) -> None:
        """Remove the shards, and their folder if it is empty then."""
        if self.folder.exists():
            for shard in self._found():
                shard.path.unlink()
            for name in (UNFINISHED, MERGED):  # left by a killed run
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # a damaged shard or another file is there
                self.folder.rmdir()

    # -- inside --------------------------------------------------------------------------------

    def _found(self) -> list[Shard]:
        found = []
        for path in self.folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                kind: Kind = "rows" if match[1] == "rows" else "lost"
                found.append(Shard(path, kind, int(match[2]), int(match[3]), match[4]))
        return found

    def _in_order(self) -> list[Shard]:
        """Return the shards in the order of their rows, no row twice."""
        chosen: list[Shard] = []
        for shard in sorted(self._known, key=lambda shard: shard.start):
            if not chosen or shard.start >= chosen[-1].stop:
                chosen.append(shard)
        return chosen

    def _found_proofs(self) -> dict[int, list[Path]]:
        """Find the certificates, by their row."""
        found: dict[int, list[Path]] = {}
        if self._proofs is not None and self._proofs.exists():
            for path in self._proofs.iterdir():
                if match := _PROOF.fullmatch(path.name):
                    found.setdefault(int(match[1]), []).append(path)
        return found

    def _content(self, shard: Shard, proofs: Mapping[int, list[Path]]) -> bytes:
        paths = [path for row in range(shard.start, shard.stop) for path in proofs.get(row, ())]
        try:
            content = shard.path.read_bytes()
            texts = sorted((path.name, path.read_bytes()) for path in paths)
        except OSError:
            raise Damaged(shard.path) from None
        if self._seal(shard.start, shard.stop, content, texts) != shard.seal:
            raise Damaged(shard.path)
        return content

    def _seal(
        self, start: int, stop: int, content: bytes, proofs: Iterable[tuple[str, bytes]]
    ) -> str:
        seal = hashlib.sha256(f"{self._question} {start} {stop} {len(content)}\n".encode())
        seal.update(content)
        for name, proof in proofs:
            seal.update(f"{name} {len(proof)}\n".encode())
            seal.update(proof)
        return seal.hexdigest()

    def _quarantine(self, shard: Shard) -> None:
        """Rename a damaged shard to a name that is not read."""
        names = (f"{shard.path.name}.damaged{n or ''}" for n in itertools.count())
        free = next(path for name in names if not (path := self.folder / name).exists())
        with suppress(FileNotFoundError):  # it may be gone
            move(shard.path, free)
            self.quarantined.append(free)

    def _write(self, path: Path, content: bytes) -> None:
        with atomic_write(path, temporary=self.folder / UNFINISHED) as file:
            file.write(content)


def _gaps(shards: Iterable[Shard], span: Range) -> Iterator[Range]:
    """Yield the rows of a span that lie before, between or after shards."""
    done, end = span
    for shard in shards:
        if done < shard.start:
            yield done, shard.start
        done = shard.stop
    if done < end:
        yield done, end
