"""The benchmarks import, and the resumable ones run from end to end and continue."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from real_data import folder

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


def output_of(*command):
    """Run a benchmark and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=FOLDER,
        env=os.environ | {"PROPLACE_DATA": str(folder()), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_benchmark_imports(name):
    output_of("-c", f"import {name}")


def test_oracle_finds_nothing_wrong():
    assert "20 problems, 20 optimal; 0 wrong" in output_of("oracle.py", "--problems", "20")


def test_referees_agree_with_worst_case_margins():
    printed = output_of("referees.py", "--problems", "12", "--rows", "1")
    rows = {line.split(" | ")[0]: line for line in printed.splitlines() if line.startswith("| ")}
    assert "0 disagreements: the library is wrong in 0" in printed
    assert {"| rational: worst shift", "| Gurobi, weights as variables", "| sampling"} < set(rows)


@pytest.mark.parametrize("error", ["1e-3", "-1e-3"])
def test_referees_find_margins_that_are_wrong(error):
    """A margin that is too large loses to a network; one that is too small loses to its proof."""
    code = f"""
import numpy as np, referees
true = referees.ours
def moved(problem):
    lower, upper, network = true(problem)
    return referees.Claim(lower + {error}, upper + {error}, network)
referees.ours = moved
tally = referees.Tally()
rng = np.random.default_rng(0)
for number in range(12):
    referees.compare(referees.random_problem(rng), rng, tally, "planted")
print(len(tally.wrong) >= 12, len(tally.settled))
"""
    assert output_of("-c", code).split() == ["True", "0"]


RIVALS = """
import numpy as np, rivals
from pathlib import Path
case = rivals.evaluation("compas", 0, 4, Path({cache!r}))
"""


def test_rivals_evaluation_covers_every_kind_of_result(tmp_path):
    """A robust point, one that is not, the person's own row, and no point at all."""
    code = (
        RIVALS.format(cache=str(tmp_path))
        + """
good = rivals.answers("proplace", case, None)
points = good.points.copy()
points[1], points[2] = case.X[1], np.nan
way = np.linspace(0.0, 1.0, 1001)[:, None] * (points[3] - case.X[3]) + case.X[3]
points[3] = way[case.net.predict(way) == 1][0]
some = rivals.Answers(points, 0.001, 0.0, ["", "", "no point", ""])
print(rivals.judged("all", case, good)[0])
for part in rivals.judged("some", case, some):
    print(part)
"""
    )
    every, some, note = output_of("-c", code).splitlines()
    cells = [cell.strip() for cell in every.split("|")]
    assert cells[2:4] == ["100%", "100%"]
    assert cells[-2] == "0"
    cells = [cell.strip() for cell in some.split("|")]
    assert cells[2:4] == ["50%", "25%"]
    assert cells[-3:-1] == ["1.0", "2"]
    assert note == "some: 1 x the person's own row; 1 x no point"


def test_rivals_list_package_that_does_not_install(tmp_path):
    code = """
import rivals
from pathlib import Path
rivals.PACKAGES["nice"] = ["no-such-package-of-counterfactuals==1"]
rivals.environment("nice", Path("%s"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code % tmp_path],
        cwd=FOLDER, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "pip install no-such-package-of-counterfactuals==1: ERROR" in done.stderr


CHALLENGE = """
import numpy as np, challenge
archive = challenge.Challenge(challenge.ARCHIVE)
some = archive.problems[3::20]
answers = {
    key: {"margin": found["margin"][1], "point": found["point"]}
    for key, found in archive.solutions.items()
}
def scores():
    cells = challenge.score(archive, answers, some).splitlines()[-1].split("|")
    return [float(cells[3]), float(cells[7])]
"""


def test_challenge_proofs_hold_and_solutions_score_one():
    code = "print(challenge.wrong_proofs(archive, some), len(archive.problems), *scores())"
    assert output_of("-c", CHALLENGE + code).split() == ["[]", "200", "1.0", "1.0"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ('one["margin"] += 1e-4', [0.9, 1.0]),  # claims too much
        ('one["margin"] -= 1e-4', [0.9, 1.0]),  # a bound that is not exact
        ('one["point"] = some[0]["person"]', [1.0, 0.9]),  # not robust
        ('one["point"][0] += 0.01', [1.0, 0.9]),  # outside the hull
        ('one["point"][0] = float("nan")', [1.0, 0.9]),
        ('one["point"] = archive.vertices(some[0])[5].tolist()', [1.0, None]),  # farther
        ("answers.clear()", [0.0, 0.0]),
    ],
)
def test_challenge_wrong_answers_score_less(change, expected):
    code = f'one = answers[some[0]["id"]]\n{change}\nprint(*scores())'
    found = [float(word) for word in output_of("-c", CHALLENGE + code).split()]
    assert found[0] == expected[0]
    assert found[1] == expected[1] if expected[1] is not None else 0.9 < found[1] < 1.0


@pytest.mark.parametrize(
    "change",
    [
        'found["margin"] = [v + 1e-6 for v in found["margin"]]',
        'found["margin"] = [v - 1e-6 for v in found["margin"]]',
        'found["point"] = archive.vertices(some[0])[5].tolist()',
    ],
)
def test_challenge_check_finds_wrong_solutions(change):
    code = f'found = archive.solutions[some[0]["id"]]\n{change}\n'
    code += "print(len(challenge.wrong_proofs(archive, some[:1])))"
    assert int(output_of("-c", CHALLENGE + code)) > 0


def test_certify_agrees_with_programs():
    line = output_of("certify.py", "--rows", "3", "--only", "compas").splitlines()[-1]
    assert line.count("3 of 3") >= 2


def test_own_models_continues_from_file(tmp_path):
    out = tmp_path / "cells.jsonl"
    command = ["own_models.py", "--people", "2", "--only", "compas standard 2x10", "--out", out]
    table = output_of(*command)
    assert "Checked: " in table
    assert "0 failed" in table
    before = out.read_text()
    cells = [json.loads(line)["key"]["steps"] for line in before.splitlines()]
    assert cells == ["steps", "no steps"]
    first, second = before.splitlines(keepends=True)
    out.write_text(first + second[:50])  # as an interruption leaves it
    assert output_of(*command).count("| compas standard 2x10") == 2
    kept = out.read_text().splitlines(keepends=True)
    assert kept[:2] == [first, second[:50] + "\n"]
    assert json.loads(kept[2])["key"]["steps"] == "no steps"


def test_profile_divides_time_between_stages():
    table = output_of("profiling.py", "compas", "--size", "2x10", "--people", "2")
    stages = ("tree", "exact tests", "certificate")
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (\d+)% \|", table, re.M))
    assert all(stage in rows for stage in stages)


def smoke(cache, data):
    return output_of("shifts.py", "--smoke", "--cache", cache)


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


def test_benchmark_resumes_interrupted_run(printed):
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


def test_retraining_benchmark_runs():
    """Within the set everything is proved; a repair breaks nothing."""
    printed = output_of("promises.py", "--smoke")
    lines = [line for line in printed.splitlines() if line.startswith("| compas")]
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines]
    assert len(rows) == 12
    shares = {(row[0], row[1]): row[5:8] for row in rows}
    for delta in ("0.025", "0.0025"):
        for way in ("base", "within"):
            assert shares[delta, way] == ["100.0%", "0.0%", "0.0%"]
        for way in ("repair", "scratch, repaired"):
            assert shares[delta, way][2] == "0.0%"


def test_plausibility_judges_every_way():
    """No counterfactual fails a check, and the judge finds most of them usual."""
    printed = output_of("plausibility.py", "--smoke")
    rows = [re.split(r" *\| *", line)[1:-1] for line in printed.splitlines() if "| now |" in line]
    ways = [row[1] for row in rows]
    sparse = ["nearest", "nearest, typical", "sparse"]
    assert ways == [*sparse, *sparse, "1", "2", "real"]
    assert {row[4] for row in rows[:6]} == {
        "100%"
    }  # a robust row is a counterfactual of a free person
    assert re.search(r"Checked: [1-9]\d* counterfactuals .*; 0 failed", printed)


def test_plausibility_benchmark_flags_distant_row():
    """Real people are within the limits, as far as quantiles go; a chimera is beyond all three."""
    code = """
import numpy as np, common, plausibility
model = common.own_model("compas", "standard", (5,), 11, share=0.6)
judge = plausibility.Judge(model)
people = judge.encoded(model.train[model.pipeline.predict(model.train) == 1])
print((judge.measures(people) > judge.limits).mean(axis=0).max())
print((judge.measures(people[:1] + 1.0) > judge.limits).all())
"""
    share, far = output_of("-c", code).split()
    assert 0.0 < float(share) < 0.12
    assert far == "True"
