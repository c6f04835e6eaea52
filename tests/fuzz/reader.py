"""What a fuzzer of one reader consists of, and how one input is judged."""

from __future__ import annotations

import hashlib
import signal
import time
import traceback
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from proplace.core.errors import ProplaceError

KEPT = Path(__file__).parent / "regressions"


class Refused(Exception):
    """The reader refused an input in the way that it documents."""


class Hang(BaseException):
    """The reader took longer than it may; no reader catches this."""


class Reader(ABC):
    """Seeds, mutations, a reader and what must hold when it accepts.

    Attributes
    ----------
    name
        Its name on the command line.
    suffix
        Of the files that it reads.
    allowed
        Audit events that the frameworks behind it cause with every file.
    """

    name: str
    suffix: str
    allowed: tuple[str, ...] = ()

    @abstractmethod
    def prepare(self, folder):
        """Import what is needed and make the seeds; ``folder`` is for files on the way."""

    @abstractmethod
    def seeds(self):
        """Undamaged inputs: the reader must accept each of them."""

    @abstractmethod
    def make(self, rng):
        """One input."""

    @abstractmethod
    def read(self, path, data):
        """Run the reader on a file, or on its bytes; raise :class:`Refused` or a documented error."""

    def put(self, path, data):
        """Write what the reader reads, where that is not the input itself."""
        return

    def judge(self, data, found):
        """Say what is false about an accepted input, or None."""
        return

    def warm(self, folder):
        """Read the seeds once: what is imported or cached on the way is no fault of later inputs."""
        path = folder / f"warm{self.suffix}"
        for data in self.seeds():
            path.write_bytes(data)
            self.put(path, data)
            with suppress(Exception):  # it is found again when the seeds are examined
                self.read(path, data)

    def case(self, seed, number):
        """The input with this number."""
        return self.make(Random(f"{self.name} {seed} {number}"))

    def kept(self):
        """Inputs that broke a reader once."""
        return [path.read_bytes() for path in sorted((KEPT / self.name).glob("*"))]


@dataclass(frozen=True)
class Finding:
    """Something that must not happen, and the input that makes it happen.

    ``place`` says where, so that one fault is reported once however many inputs show it.
    """

    kind: str
    place: str
    words: str
    data: bytes

    @property
    def signature(self):
        return f"{self.kind}: {self.place}"

    @property
    def file(self):
        tag = hashlib.sha256(self.signature.encode()).hexdigest()[:6]
        return f"{self.kind.replace(' ', '-')}-{tag}-{hashlib.sha256(self.data).hexdigest()[:6]}"


class Examiner:
    """Gives inputs to a reader, one at a time, in this process."""

    def __init__(self, reader, path, guard, seconds=10.0, reading=lambda on: None):
        self.reader, self.path, self.guard, self.seconds = reader, path, guard, seconds
        self.reading = reading  # told when the reader itself is at work
        signal.signal(signal.SIGPROF, _too_long)

    def examine(self, data):
        """Return "accepted", "refused" or a :class:`Finding`."""
        self.path.write_bytes(data)
        self.reader.put(self.path, data)
        start = time.process_time()
        found = self._read(data)
        took = time.process_time() - start
        if isinstance(found, Finding):
            return found
        if took > self.seconds:
            return Finding("hang", "", f"took {took:.1f} s", data)
        if self.guard.noticed:
            words = "; ".join(self.guard.noticed)
            return Finding("tripwire", self.guard.noticed[0].partition("(")[0][:40], words, data)
        return "refused" if found is None else self._judged(data, found[0])

    def _read(self, data):
        """What the reader made of an input, alone in a tuple; None if it refused it."""
        try:
            with self.guard.watching():
                self.reading(True)
                signal.setitimer(signal.ITIMER_PROF, self.seconds)
                try:
                    return (self.reader.read(self.path, data),)
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0.0)
                    self.reading(False)
        except (Refused, ProplaceError) as error:
            if _starved(error):
                return Finding("memory", _place(error), _words(error), data)
            return None
        except Hang as error:
            return Finding("hang", "", f"{self.seconds:g} s were not enough: {_place(error)}", data)
        except BaseException as error:  # whatever a reader may raise
            kind = "memory" if _starved(error) else "crash"
            return Finding(kind, f"{type(error).__name__} {_place(error)}", _words(error), data)

    def _judged(self, data, found):
        try:
            false = self.reader.judge(data, found)
        except Exception as error:  # the second opinion is at fault
            return Finding("second opinion", _place(error), _words(error), data)
        if false is None:
            return "accepted"
        return Finding("false accept", false.partition(":")[0], false, data)

    def smaller(self, finding, tries=150):
        """Cut pieces off an input while it shows the same."""
        data, piece = finding.data, len(finding.data) // 2
        while piece and tries and len(data) < 50_000 and finding.kind in ("crash", "false accept"):
            at = 0
            while at < len(data) and tries:
                tries -= 1
                again = None
                with suppress(Exception):  # what is cut may be no input at all
                    again = self.examine(data[:at] + data[at + piece :])
                if isinstance(again, Finding) and again.signature == finding.signature:
                    finding, data = again, again.data
                else:
                    at += piece
            piece //= 2
        return finding


def _too_long(*_):
    raise Hang


def _starved(error):
    """Whether too little memory is behind an error, said or hidden."""
    seen = set()
    while error is not None and id(error) not in seen:
        text = str(error)
        if isinstance(error, MemoryError) or "allocate memory" in text or "bad_alloc" in text:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _place(error):
    """The last line of the package, or else the last line at all, that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/proplace/" in f.filename]
    return " ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in (own or frames)[-1:])


def _words(error):
    return f"{type(error).__name__}: {str(error)[:300]}"
