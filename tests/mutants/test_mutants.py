"""The planted faults can be planted, and the runner tells what the tests notice from the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mutants import run as runner

LEAST = 80  # planted faults in all lists together
MOST_EQUIVALENT = 0.05  # share of them that no test need notice


# -- the lists -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutants():
    return runner.read(runner.ROOT)


def test_there_are_enough_and_few_are_equivalent(mutants):
    assert len(mutants) >= LEAST
    assert sum(bool(mutant.equivalent) for mutant in mutants) <= MOST_EQUIVALENT * len(mutants)
    assert all(mutant.file.startswith("src/") for mutant in mutants)
    assert all(mutant.why for mutant in mutants)


def test_every_fault_can_be_planted_and_its_tests_are_there(mutants):
    for mutant in mutants:
        mutant.planted((runner.ROOT / mutant.file).read_text())  # or says what is wrong
        assert not runner.missing_tests(mutant, runner.ROOT), mutant.name


def test_tests_with_parameters_are_there_too(mutants):
    nodes = sorted({test for mutant in mutants for test in mutant.tests if "[" in test})
    words = ["--collect-only", "-qq", "-p", "no:cacheprovider", *nodes]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=runner.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_same_seed_draws_the_same_sample(mutants):
    names = [
        [mutant.name for mutant in runner.chosen(mutants, None, 6, seed)]
        for seed in ("one", "one", "two")
    ]
    assert names[0] == names[1] != names[2]
    assert all(len(set(sample)) == 6 for sample in names)
    equivalent = {mutant.name for mutant in mutants if mutant.equivalent}
    drawn = runner.chosen(mutants, None, len(mutants), "one")
    assert {mutant.name for mutant in drawn} == {mutant.name for mutant in mutants} - equivalent


# -- the runner, on a project of one function ------------------------------------------------------

TESTS = """
import pytest
from doubling import double

def test_double():
    assert double(3) == 6

@pytest.mark.parametrize("n", [0, 2])
def test_blind(n):
    assert double(n) == 2 * n

@pytest.mark.skip
def test_skipped():
    assert double(3) == 6

def test_skipped_if_wrong():
    if double(3) != 6:
        pytest.skip()

def test_broken():
    assert double(3) == 7
"""

SQUARE = "n * n"


class Project:
    """A tree with one function, its tests, and some faults."""

    def __init__(self, root):
        self.root, self.text = root, ""
        for name, text in {
            "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n",
            "src/doubling.py": "def double(n):\n    return n + n\n",
            "tests/test_double.py": TESTS,
        }.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        (root / "tests" / "mutants").mkdir()

    def add(self, name, replace=SQUARE, test="test_double", find="n + n", **more):
        node = f"tests/test_double.py::{test}"
        fields = {"name": name, "file": "src/doubling.py", "find": find, "replace": replace}
        fields |= {"tests": [node], "why": "a fault"} | more
        self.text += "[[mutant]]\n"
        self.text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
        (self.root / "tests" / "mutants" / "some.toml").write_text(self.text)

    def run(self, *words):
        """The exit status, and what became of each mutant and by what."""
        out = self.root / "findings.json"
        out.unlink(missing_ok=True)
        code = runner.main([*words, "--json", str(out)], root=self.root)
        rows = json.loads(out.read_text()) if out.exists() else []
        return code, {row["name"]: (row["outcome"], row["by"]) for row in rows}

    def files(self):
        return {path: path.read_bytes() for path in self.root.rglob("*.*") if path.is_file()}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    return Project(tmp_path)


def test_what_becomes_of_a_fault(project, capsys):
    project.add("seen")
    project.add("unseen", test="test_blind")
    project.add("skipped", test="test_skipped")
    project.add("skips", test="test_skipped_if_wrong")
    project.add("failing-anyway", test="test_broken")
    project.add("no-fault", replace="2 * n", equivalent="twice n is n + n")
    project.add("a-fault-after-all", equivalent="it is said")
    project.add("no-import", find="def double", replace="nothing\ndef double", test="test_blind[2]")
    project.add("crash", replace="__import__('os').abort()")
    before = project.files()
    code, found = project.run()
    out = capsys.readouterr().out
    assert code == 1
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "seen": "noticed",
        "unseen": "not noticed",
        "skipped": "not run",
        "skips": "not run",
        "failing-anyway": "not run",
        "no-fault": "equivalent",
        "a-fault-after-all": "noticed",
        "no-import": "noticed",
        "crash": "noticed",
    }
    assert found["seen"][1] == "tests/test_double.py::test_double"
    assert "fails without the fault: test_broken" in found["failing-anyway"][1]
    assert "skipped" in found["skipped"][1]
    assert "skipped" in found["skips"][1]
    assert found["no-fault"][1] == "twice n is n + n"
    assert "said to be equivalent" in found["a-fault-after-all"][1]
    assert "SIGABRT" in found["crash"][1]
    closing = "4 of 8 faults noticed (50.0%), 1 not noticed, 3 not run, 1 equivalent"
    assert out.splitlines()[-1].startswith(closing)
    for line in ("unseen in src/doubling.py: not noticed", "what it does: a fault"):
        assert line in out
    after = project.files()
    assert after.pop(project.root / "findings.json")
    assert after == before  # the tree itself is never touched


def test_all_is_well_where_everything_is_noticed(project, capsys):
    project.add("seen")
    project.add("unseen", test="test_blind")
    project.add("seems-to-be-one", replace="2 * n", equivalent="twice n is n + n")
    code, found = project.run("--only", "se*", "--jobs", "1")
    assert (code, set(found)) == (0, {"seen", "seems-to-be-one"})
    out = capsys.readouterr().out
    closing = "1 of 1 faults noticed (100.0%), 0 not noticed, 0 not run, 1 equivalent"
    assert out.splitlines()[-1].startswith(closing)


def test_a_fault_that_never_ends_is_noticed_and_stopped(project):
    """Two processes hang here; both are gone afterwards."""
    hang = "__import__('subprocess').run(['sleep', '{}'])"
    seconds = 1_000_000 + os.getpid()  # by which it is known among all processes
    project.add("hang", replace=hang.format(seconds))
    code, found = project.run("--patience", "3")
    assert (code, found) == (0, {"hang": ("noticed", "it hangs")})
    for commands in runner.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = commands.read_bytes().split(b"\0")
        except OSError:  # it has ended by now
            continue
        assert str(seconds).encode() not in words


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"find": "n"}, "occurs 4 times in src/doubling.py, not once"),
        ({"find": "m + m"}, "occurs 0 times"),
        ({"replace": "n + n"}, "is the text itself"),
        ({"replace": "n +"}, "no longer compiles"),
        ({"test": "test_nowhere"}, "there is no test tests/test_double.py::test_nowhere"),
        ({"tests": ["tests/test_none.py"]}, "there is no test tests/test_none.py"),
        ({"tests": []}, "no test is named"),
        ({"reason": "because"}, "missing or unknown: ['reason']"),
        ({"file": "src/tripling.py"}, "tripling.py"),
        ({"name": "twice"}, "names must differ: twice"),
    ],
)
def test_lists_that_cannot_be_used(project, capsys, fields, message):
    project.add("twice")
    project.add(**{"name": "bad", **fields})
    assert project.run() == (2, {})
    assert message in capsys.readouterr().err


def test_a_name_that_is_not_there(project, capsys):
    project.add("seen")
    assert project.run("--only", "unseen") == (2, {})
    assert "none has such a name" in capsys.readouterr().err
