"""Workers and their parent: inputs to one reader until their number or the time is reached."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.reader import Finding
from fuzz.worker import NOW, START

WORKER = Path(__file__).with_name("worker.py")
_FAST = Path("/dev/shm")
# A worker that says nothing is stuck after so many times its limit, and so many seconds, by the clock.
_PATIENCE, _LEAST = 6.0, 5.0


@dataclass
class Summary:
    """What became of the inputs to one reader."""

    reader: str
    accepted: int = 0
    refused: int = 0
    found: int = 0
    lost: int = 0  # while the second opinion, not the reader, was at work
    seconds: float = 0.0
    findings: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def inputs(self):
        return self.accepted + self.refused + self.found

    def add(self, finding):
        self.findings.setdefault(finding.signature, []).append(finding)

    def line(self):
        rate = self.inputs / self.seconds if self.seconds else 0.0
        return (
            f"{self.reader:12} {self.inputs:>9,} inputs  {self.accepted:>8,} accepted  "
            f"{self.refused:>8,} refused  {rate:>7,.0f}/s  {len(self.findings)} findings"
        )


class Campaign:
    """Inputs to one reader, by one worker at a time."""

    def __init__(self, name, place, *, seed=0, inputs=None, seconds=None, limit=10.0, first=START):
        self.place, self.seed, self.limit = place, seed, limit
        self.last = 10**12 if inputs is None else inputs
        self.seconds, self.next = seconds, first
        self.summary = Summary(name)
        self._until = None

    def run(self, tell=lambda finding: None):
        """Run to the end; ``tell`` hears each new kind of finding at once."""
        parent = _FAST if os.access(_FAST, os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=parent))
        self._tell = tell
        try:
            while not self._over():
                self._one_worker(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self.summary

    def _over(self):
        late = self._until is not None and time.monotonic() >= self._until
        return late or (self.next >= self.last and self.next >= 0)

    def _one_worker(self, folder):
        words = [self.place, self.seed, self.next, self.last, folder, self.limit]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                [sys.executable, str(WORKER), *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            ) as worker,
        ):
            try:
                ended = self._listen(worker, folder)
            finally:
                if worker.poll() is None:
                    os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
            errors.seek(0)
            words = errors.read()[-20_000:].decode(errors="replace")
        try:
            now = NOW.unpack((folder / "now").read_bytes())
        except OSError:
            raise RuntimeError(
                f"the worker of {self.summary.reader} did not start:\n{words}"
            ) from None
        self.summary.accepted += now[2]
        self.summary.refused += now[3]
        self.summary.found += now[4]
        if ended == "end":
            self.next = self.last
        elif ended != "time":
            self._died(folder, ended, worker.returncode, words, *now[:2])

    def _listen(self, worker, folder):
        """Hear the worker until it ends; say how: "end", "time", "silence" or "death"."""
        rest, begun, before, since = b"", None, None, time.monotonic()
        try:
            while True:
                if select.select([worker.stdout], [], [], 0.25)[0]:
                    more = os.read(worker.stdout.fileno(), 2**16)
                    if not more:
                        worker.wait()
                        return "death"
                    *lines, rest = (rest + more).split(b"\n")
                    for facts in map(json.loads, lines):
                        if "ready" in facts:
                            begun = time.monotonic()
                            if self._until is None and self.seconds is not None:
                                self._until = begun + self.seconds
                        elif "end" in facts:
                            return "end"
                        else:
                            self._found(Finding(**{**facts, "data": bytes.fromhex(facts["data"])}))
                now = time.monotonic()
                if begun is not None and self._until is not None and now >= self._until:
                    return "time"
                state = (folder / "now").read_bytes() if (folder / "now").exists() else b""
                if state != before:
                    before, since = state, now
                elif begun is not None and now - since > _PATIENCE * self.limit + _LEAST:
                    return "silence"
        finally:
            self.summary.seconds += 0.0 if begun is None else time.monotonic() - begun

    def _found(self, finding):
        new = finding.signature not in self.summary.findings
        self.summary.add(finding)
        if new:
            self._tell(finding)

    def _died(self, folder, how, code, errors, number, reading):
        """Note what a worker was at when it died or fell silent, and go on behind it."""
        last = errors.strip().splitlines()
        words = f"exit status {code}; {' | '.join(last[-3:])[-300:]}"
        case = next(iter((folder / "files").glob("case*")), None)
        data = case.read_bytes() if case else b""
        if how == "silence":
            self._found(Finding("hang", "not interruptible", words, data))
        elif reading:
            self._found(Finding("death", _where(last), words, data))
        elif code and code > 0:  # an error of the fuzzer's own
            raise RuntimeError(f"the worker of {self.summary.reader} failed:\n{errors}")
        else:
            self.summary.lost += 1
        self.summary.found += 1
        self.next = number + 1


def _where(lines):
    """First line of the package in the trace that a dying process leaves."""
    own = (line.split("/proplace/")[-1] for line in lines if "/proplace/" in line)
    return next(own, lines[0] if lines else "")[:120]
