"""The command line as a shell runs it."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*words, cwd=None, stdin=None, timeout=120, **environment):
    """Run ``python -m proplace`` with some words, as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "proplace", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        stdin=stdin,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "120", **environment},
    )
