"""The folder of a batch: its manifest, its shards, and the file that they become."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from proplace.errors import OutputError
from proplace.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd

    from proplace.batch.layout import Format, Layout
    from proplace.explanations import Explanation, Explanations

FORMAT = "proplace-batch-1"
# Nothing that a reader would recognise: digests and long lists.
_UNREADABLE = frozenset(
    ("network", "training rows", "schema", "input", "delta", "weights of the distance")
)
_SHARD = re.compile(r"rows-(\d{12})-(\d{12})\.\w+")


def certificate_name(explanation: Explanation) -> str:
    """Name of the file with the proof of an answer."""
    return f"row-{explanation.index:012d}-{explanation.rank}.json"


class Folder:
    """The folder of a batch, held by one process at a time."""

    def __init__(self, path: Path, kind: Format) -> None:
        self.path = path
        self.results = path / f"results.{kind}"
        self._manifest, self._shards, self._suffix = path / "manifest.json", path / "shards", kind
        self._next = 0
        self._lock: int | None = None

    def __enter__(self) -> Folder:
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)  # this also unlocks

    def claim(self, question: dict[str, Any]) -> None:
        """Write down what is asked, or make sure that the folder is about the same."""
        if self._manifest.exists():
            self._compare(question)
        else:
            if self.results.exists() or self._shards.exists():
                raise OutputError(
                    f"{self.path}: holds results but no manifest.json; give another folder"
                )
            with self._writing(), whole_file(self._manifest) as file:
                text = json.dumps({"format": FORMAT, "question": question}, indent=2)
                file.write(text.encode() + b"\n")
        with self._writing():
            if not self.results.exists():
                self._shards.mkdir(exist_ok=True)
            for folder in (self.path, self._shards):
                for rest in folder.glob("*.tmp"):  # of a run that was killed while writing
                    rest.unlink()
            if self.results.exists():
                shutil.rmtree(self._shards, ignore_errors=True)

    def _compare(self, question: dict[str, Any]) -> None:
        try:
            found = json.loads(self._manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise OutputError(
                f"{self._manifest}: not the manifest of a batch of this version; "
                "give another folder"
            )
        before = found["question"]
        now = json.loads(json.dumps(question))
        other = [name for name in {**now, **before} if before.get(name) != now.get(name)]
        if other:
            name = other[0]
            values = f" (then {before.get(name)}, now {now.get(name)})"
            values = "" if name in _UNREADABLE else values
            more = f" and {', '.join(other[1:])}" if other[1:] else ""
            raise OutputError(
                f"{self.path}: holds a batch with another {name}{values}{more}; "
                "give another folder, or remove this one to begin again"
            )

    def done(self) -> int:
        """Rows that are in shards already."""
        self._next = 0
        for _, start, stop in self._found():
            if start != self._next:
                raise OutputError(
                    f"{self._shards}: rows {self._next} to {start - 1} are missing between the "
                    "shards; remove the folder to begin again"
                )
            self._next = stop
        return self._next

    def write(self, frame: pd.DataFrame, layout: Layout) -> None:
        """Write the answers of the next rows as a shard."""
        start, stop = self._next, int(frame[layout.names["row"]].iloc[-1]) + 1
        shard = self._shards / f"rows-{start:012d}-{stop:012d}.{self._suffix}"
        with self._writing(), whole_file(shard) as file:
            layout.save(frame, file)
        self._next = stop

    def write_certificates(self, part: Explanations) -> None:
        """Write the proofs of some answers, before the shard that speaks of them."""
        folder = self.path / "certificates"
        with self._writing():
            folder.mkdir(exist_ok=True)
            for e in part:
                if e.certificate is not None:
                    e.certificate.save(folder / certificate_name(e))

    def merge(self, layout: Layout, rows: int) -> None:
        """Make one file of all shards and remove them."""
        if self.done() != rows:
            raise OutputError(f"{self._shards}: holds {self._next} rows where the input has {rows}")
        with self._writing(), whole_file(self.results) as file:
            layout.join([shard for shard, _, _ in self._found()], file)
        shutil.rmtree(self._shards, ignore_errors=True)

    def _found(self) -> list[tuple[Path, int, int]]:
        """Shards with their first row and the row after their last, in order."""
        found = [
            (path, int(match[1]), int(match[2]))
            for path in (self._shards.iterdir() if self._shards.exists() else ())
            if (match := _SHARD.fullmatch(path.name))
        ]
        return sorted(found, key=lambda shard: shard[1])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise OutputError(
                f"{self.path}: cannot be written ({why}); what is done is kept, "
                "and the same command goes on from there"
            ) from error


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
        raise OutputError(f"{folder}: another run is writing there; wait for it to end") from None
    return handle
