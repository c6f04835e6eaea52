"""What a process that was killed has left behind."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil

from support.clocks import PATIENCE


def left_behind(pid, family, *folders):
    """Processes of its family that still run, and files of its own: in folders and shared memory.

    Processes and the trackers that clean up after them get a moment for it.
    """
    end = time.monotonic() + PATIENCE
    while not all(map(_over, family)) and time.monotonic() < end:
        time.sleep(0.05)
    found = [f"{p.pid} {p.cmdline()}" for p in family if not _over(p)]
    memory = Path("/dev/shm")
    if memory.exists():
        found += [p.name for p in memory.iterdir() if re.search(rf"(?<!\d){pid}(?!\d)", p.name)]
    return found + [str(path) for folder in folders for path in Path(folder).iterdir()]


def _over(process):
    """Whether a process has ended; nobody may have asked for its exit status yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
