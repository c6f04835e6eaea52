"""Shards: files that say by their names which rows they hold and what is in them.

The name of a shard ends with its seal, a SHA-256 over the question of the batch, the rows, the content
and the proofs that belong to them. A shard that was cut, emptied, overwritten, renamed or brought
from elsewhere does not fit its seal, nor does one whose proofs are not as they were written. Such a
shard is set aside, under another name, and its rows are missing like those that nobody has done yet.

Rows whose worker died have shards of their own kind. They are part of the results so that these are
complete, but not of what is done: the next run tries such rows again.
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
"""First row, and the row after the last."""

# Content on its way to its place: each name is used for one file at a time, by the one writer.
UNFINISHED, MERGED = ".proplace-unfinished", ".proplace-merged"
_NAME = re.compile(r"(rows|lost)-(\d{12})-(\d{12})-([0-9a-f]{64})\.(?:csv|parquet)")
_PROOF = re.compile(r"row-(\d{12})-\d+\.json")


@dataclass(frozen=True)
class Shard:
    """A file with the answers of some rows."""

    path: Path
    kind: Kind
    start: int
    stop: int
    seal: str


class Damaged(Exception):
    """A shard is not what was written."""


class Shards:
    """The shards of a batch, and the proofs of their answers.

    Parameters
    ----------
    folder
        Where they are; all that is in it belongs to the batch.
    proofs
        Folder of the proofs, or None where none are asked for.
    question
        Digest of what the batch is about.
    suffix
        Format of the shards.
    """

    def __init__(self, folder: Path, proofs: Path | None, question: str, suffix: Format) -> None:
        self.folder = folder
        self.set_aside: list[Path] = []
        self._proofs, self._question, self._suffix = proofs, question, suffix
        self._known: list[Shard] = []

    def survey(self) -> None:
        """Check every shard that is there, and make ready for the rows that are missing."""
        self._known = []
        proofs = self._found_proofs()
        for shard in self._found():
            try:
                self._content(shard, proofs)
            except Damaged:
                self._set_aside(shard)
                continue
            if shard.kind == "lost":  # these rows are tried again
                shard.path.unlink()
            else:
                self._known.append(shard)
        done = self._in_order()
        starts = [shard.start for shard in done]
        for row, paths in proofs.items():
            before = bisect.bisect_right(starts, row) - 1
            if before < 0 or row >= done[before].stop:  # of a run that ended before their shard
                for path in paths:
                    path.unlink()

    def missing(self, span: Range) -> list[Range]:
        """Return the rows of a span that no shard has answers for."""
        return list(_gaps([s for s in self._in_order() if s.kind == "rows"], span))

    def write(
        self, kind: Kind, start: int, stop: int, content: bytes, proofs: Mapping[str, bytes]
    ) -> None:
        """Write answers as a shard, after the proofs that belong to them."""
        kept = [] if self._proofs is None else sorted(proofs.items())
        for name, proof in kept:
            self._write(cast("Path", self._proofs) / name, proof)
        seal = self._seal(start, stop, content, kept)
        path = self.folder / f"{kind}-{start:012d}-{stop:012d}-{seal}.{self._suffix}"
        self._write(path, content)
        self._known.append(Shard(path, kind, start, stop, seal))

    def contents(self, span: Range) -> Iterator[bytes]:
        """What the shards hold, in the order of the rows, each checked.

        Raises
        ------
        Damaged
            A shard is not what was written; it has been set aside.
        """
        shards = self._in_order()
        for start, stop in _gaps(shards, span):
            raise OutputError(
                f"{self.folder}: there are no answers for the rows {start} to {stop - 1}; give the "
                "same command again",
                name=self.folder.name,
            )
        proofs = self._found_proofs()
        for shard in shards:
            try:
                yield self._content(shard, proofs)
            except Damaged:
                self._set_aside(shard)
                raise

    def remove(self) -> None:
        """Remove the shards, and their folder if nothing else is in it."""
        if self.folder.exists():
            for shard in self._found():
                shard.path.unlink()
            for name in (UNFINISHED, MERGED):  # of a run that was killed
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # what was set aside is there, or a file of somebody else
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
        """Shards in the order of their rows, no row twice."""
        chosen: list[Shard] = []
        for shard in sorted(self._known, key=lambda shard: shard.start):
            if not chosen or shard.start >= chosen[-1].stop:
                chosen.append(shard)
        return chosen

    def _found_proofs(self) -> dict[int, list[Path]]:
        """Proofs that are there, by their row."""
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

    def _set_aside(self, shard: Shard) -> None:
        """Keep a damaged shard under a name that means nothing here."""
        names = (f"{shard.path.name}.damaged{n or ''}" for n in itertools.count())
        free = next(path for name in names if not (path := self.folder / name).exists())
        with suppress(FileNotFoundError):  # it may be gone altogether
            move(shard.path, free)
            self.set_aside.append(free)

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
