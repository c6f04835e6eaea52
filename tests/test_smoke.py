"""The run of `make oldest`, here with the installed versions: so that it stays true."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import oldest

HERE = Path(__file__).parent
STEPS = [
    "explain_pipeline",
    "files_and_checker",
    "command_line",
    "ledger",
    "onnx",
    "torch",
    "keras",
]


@pytest.mark.slow
def test_smoke_passes_with_installed_versions(tmp_path):
    words = [sys.executable, HERE / "smoke.py", *STEPS]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed ") == len(STEPS)


def test_constraints_pin_every_dependency_to_its_lower_bound():
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    users, pins = oldest.constraints(project)
    assert not set(users) & set(oldest.TOOLS)
    assert {"numpy", "highspy", "torch", "psycopg"} <= {pin.split("==")[0] for pin in pins.split()}
    with pytest.raises(SystemExit, match="has no lower bound"):
        oldest.constraints({**project, "dependencies": ["numpy"]})
