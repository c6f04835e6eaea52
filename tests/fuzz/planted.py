"""Readers with a fault, to see that the fuzzers notice each kind of it."""

from __future__ import annotations

import os
import subprocess
import sys

from fuzz.reader import Reader, Refused


class Sound(Reader):
    """Accepts a text of the letter a, which is true, and refuses the rest."""

    name = "planted"
    suffix = ".txt"

    def prepare(self, folder):
        self.folder = folder

    def seeds(self):
        return [b"aaa"]

    def kept(self):
        return []

    def make(self, rng):
        return rng.choice((b"a", b"aa", b"b", b"ab"))

    def read(self, path, data):
        if path.read_bytes().strip(b"a"):
            self.fault(path)
            raise Refused
        return data.decode()

    def judge(self, data, found):
        return None if set(found) <= {"a"} else "not of the letter a"

    def fault(self, path):
        """What goes wrong with a bad input."""


class Crash(Sound):
    def fault(self, path):
        {}[str(path)]


class Loop(Sound):
    def fault(self, path):
        while True:
            pass


class Stuck(Sound):
    """Ignores the alarm, as a loop in C does."""

    def fault(self, path):
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
        while True:
            pass


class Death(Sound):
    def fault(self, path):
        os.abort()


class Greedy(Sound):
    def fault(self, path):
        bytearray(2**31)


class SecretlyGreedy(Sound):
    """Says that the file is wrong where it ran out of memory."""

    def fault(self, path):
        try:
            bytearray(2**31)
        except MemoryError:
            raise Refused from None


class Command(Sound):
    def fault(self, path):
        subprocess.run([sys.executable, "--version"], check=False, capture_output=True)


class Code(Sound):
    def fault(self, path):
        exec("1 + 1")


class Writes(Sound):
    def fault(self, path):
        (path.parent / "new").write_bytes(b"")


class ReadsElsewhere(Sound):
    def fault(self, path):
        (self.folder / "elsewhere").open("rb").close()

    def prepare(self, folder):
        super().prepare(folder)
        (folder / "elsewhere").write_bytes(b"")


class FalseAccept(Sound):
    def read(self, path, data):
        return data.decode()


class RefusesAll(Sound):
    def read(self, path, data):
        raise Refused
