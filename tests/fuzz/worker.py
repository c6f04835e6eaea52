"""One process that gives inputs to one reader: ``python worker.py reader seed first last folder``.

It tells its parent, one JSON object a line, what it found. How far it is, and whether the reader itself
is at work, stands in the file ``now`` of the folder, and the input at hand in ``files``, so that the
parent knows what ended a worker that died.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import mmap
import os
import resource
import struct
import sys
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":  # the folder of this file has modules whose names others may use
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from fuzz.guard import Guard
from fuzz.reader import Examiner, Finding

NOW = struct.Struct("<5q")  # number, 1 while the reader is at work, accepted, refused, found
MEMORY = 2**30
START = -(10**9)  # stands for: seeds and kept inputs first


def reader_of(name):
    """A fuzzer by its place, such as ``fuzz.readers.npz:Npz``."""
    module, _, title = name.partition(":")
    return getattr(importlib.import_module(module), title)()


class Now:
    """What the parent sees of this process, even when it is dead."""

    def __init__(self, folder):
        path = folder / "now"
        path.write_bytes(NOW.pack(START, 0, 0, 0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), NOW.size)
        self.number = START
        self.counts = {"accepted": 0, "refused": 0, "found": 0}

    def reading(self, on):
        self._map[:] = NOW.pack(self.number, on, *self.counts.values())

    def count(self, found):
        self.counts["found" if isinstance(found, Finding) else found] += 1
        self.reading(False)


def limit_memory(extra):
    """Let this process grow by so many bytes and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(name, seed, first, last, folder, seconds):
    faulthandler.enable()
    folder = Path(folder)
    (folder / "files").mkdir(parents=True, exist_ok=True)
    reader = reader_of(name)
    with contextlib.redirect_stdout(sys.stderr):
        reader.prepare(folder)
        reader.warm(folder / "files")
    now = Now(folder)
    path = folder / "files" / f"case{reader.suffix}"
    guard = Guard(folder / "files", reader.allowed)
    examiner = Examiner(reader, path, guard, float(seconds), now.reading)
    first, last = int(first), int(last)
    tell({"ready": True})
    if first == START:
        for data in reader.seeds():
            found = examiner.examine(data)
            if found == "refused":
                found = Finding("seed refused", "", "an undamaged file is refused", data)
            report(examiner, found)
    limit_memory(MEMORY)
    kept = reader.kept()  # they have negative numbers, up to -1
    for now.number in range(max(first, -len(kept)), min(last, 0)):
        report(examiner, examiner.examine(kept[now.number]))
    for now.number in range(max(first, 0), last):
        found = examiner.examine(reader.case(seed, now.number))
        now.count(found)
        report(examiner, found)
    tell({"end": True})


_known: dict[str, int] = {}
_OUT = 1


def report(examiner, found):
    """Tell a finding, the first time in full."""
    if not isinstance(found, Finding):
        return
    seen = _known[found.signature] = _known.get(found.signature, 0) + 1
    if seen == 1:
        found = examiner.smaller(found)
    if seen <= 3:
        tell({**asdict(found), "data": found.data.hex()})


def tell(facts):
    with contextlib.suppress(BrokenPipeError):
        os.write(_OUT, json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    # Readers and frameworks may print; the parent hears only what is told to it.
    _OUT = os.dup(1)
    os.dup2(2, 1)
    main(*sys.argv[1:])
