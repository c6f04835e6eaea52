"""The benchmark of ways of giving Delta runs from end to end, and goes on where it was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from real_data import folder

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "shifts.py"


def smoke(cache, data):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--smoke", "--cache", cache],
        env=os.environ | {"PROPLACE_DATA": str(data), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    data, cache = folder(), tmp_path_factory.mktemp("cache")
    return smoke(cache, data), cache, data


def cells(text):
    """Rows of the tables, by data set and way."""
    rows = [re.split(r" *\| *", line)[1:-1] for line in text.splitlines() if "| COMPAS" in line]
    return {row[1]: row[2:] for row in rows}


def test_every_way_is_measured(printed):
    table = cells(printed[0])
    for way in ("one delta, re-centred", "radii per layer", "learned", "hull", "2 more networks"):
        assert way in table
    certified = {way: float(row[0].strip("%")) for way, row in table.items() if len(row) == 6}
    assert certified["hull"] > certified["one delta, re-centred"] > 0.0
    assert table["hull"][-1] == "100.00%"  # every answer of the hull held on unseen retrainings


def test_it_goes_on_where_it_was(printed):
    text, cache, data = printed
    kept = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    next(path for path in kept if "times" in path.name).unlink()
    again = smoke(cache, data)
    assert [line for line in again.splitlines() if "networks |" in line or "hull" in line] == [
        line for line in text.splitlines() if "networks |" in line or "hull" in line
    ]
    changed = [path.name for path, at in kept.items() if path.stat().st_mtime_ns != at]
    assert len(changed) == 1
    assert "times" in changed[0]


def test_what_retraining_does_to_promises():
    """Within the set everything is proved; a repair breaks nothing."""
    done = subprocess.run(
        [sys.executable, SCRIPT.with_name("promises.py"), "--smoke"],
        env=os.environ | {"PROPLACE_DATA": str(folder()), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("| compas")]
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines]
    assert len(rows) == 12
    shares = {(row[0], row[1]): row[5:8] for row in rows}
    for delta in ("0.025", "0.0025"):
        for way in ("base", "within"):
            assert shares[delta, way] == ["100.0%", "0.0%", "0.0%"]
        for way in ("repair", "scratch, repaired"):
            assert shares[delta, way][2] == "0.0%"
