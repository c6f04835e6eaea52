"""Every method through the whole experiment at a small size; interruption and failure."""

from __future__ import annotations

import dataclasses
import importlib
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import proplace as pp
from proplace.baselines import METHODS, Candidate, RobustBaseline, published
from proplace.cli import app
from proplace.core.errors import OptionError
from proplace.experiment import output, protocol
from proplace.experiment import run as experiment
from proplace.experiment.protocol import Task, problem
from proplace.experiment.run import names, run
from support.errors import raises

TASKS = [Task("compas", seed, inputs=4, retrained=1) for seed in (0, 1)]
pytestmark = pytest.mark.usefixtures("toy_for_compas")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def stored(cache, task, name):
    (path,) = task.folder(cache).glob(f"{name}-{10 * '[0-9a-f]'}.npz")
    with np.load(path) as arrays:
        return dict(arrays)


def test_smoke_run_of_all_methods(cache, tmp_path):
    lines = []
    tasks = [Task("compas", seed=0, inputs=2, retrained=1)]
    results, curves = run(tasks, names(), cache, report=lines.append)
    assert (results["error"] == "").all(), results["error"].tolist()
    assert results["method"].tolist() == list(names())
    assert len(lines) == 1 + len(names())
    ours = results[results["method"].isin(list(experiment.OURS))]
    assert len(ours) == 2
    assert (ours[["found", "valid", "vdelta"]] == 1.0).all(axis=None)
    assert (results["seconds"] > 0.0).all()
    assert set(curves["seed"]) == {0}
    for row in results.to_dict("records"):
        (task,) = tasks
        made, arrays = problem(task, cache), stored(cache, task, row["method"])
        points = arrays["points"]
        there = np.isfinite(points).all(axis=1)
        assert row["found"] == there.mean()
        if there.any():
            given = points[there]
            assert row["l1"] == pytest.approx(np.abs(given - made.X[there]).mean())
            valid = np.array([net.predict(given) == 1 for net in made.retrained]).mean(axis=0)
            assert row["vr"] == pytest.approx(valid.sum() / len(points))
            worst = [pp.worst_case(made.net, x, made.delta).margin >= 0.0 for x in given]
            assert row["vdelta"] == pytest.approx(sum(worst) / len(points))
    # Nothing is run again, and what comes from files is the same.
    again, _ = run(tasks, names(), cache)
    pd.testing.assert_frame_equal(again, results)
    paths = experiment.write(results, curves, tmp_path / "out")
    assert all(path.stat().st_size > 0 for path in paths)
    text = (tmp_path / "out" / "results.md").read_text()
    for name in names():
        assert f"| {name} |" in text


def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    names = ["PROPLACE", "WCE", "RNCE"]
    whole, whole_curves = run(TASKS, names, tmp_path / "whole")

    def interrupt(line):
        if line.startswith("cell 2/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(TASKS, names, tmp_path / "parts", report=interrupt)
    measured, measure = [], experiment.measure

    def counting(name, made, reference):
        measured.append((made.task.seed, name))
        return measure(name, made, reference)

    monkeypatch.setattr(experiment, "measure", counting)
    rest, rest_curves = run(TASKS, names, tmp_path / "parts")
    assert (0, "PROPLACE") not in measured
    assert (1, "RNCE") in measured
    pd.testing.assert_frame_equal(
        rest.drop(columns="seconds"), whole.drop(columns="seconds"), check_exact=True
    )
    pd.testing.assert_frame_equal(rest_curves, whole_curves)


def test_a_failing_method_does_not_lose_the_others(tmp_path, monkeypatch):
    class Broken:
        def __init__(self, net, *, schema, seed, **_):
            raise RuntimeError("out of luck")

    monkeypatch.setitem(experiment.METHODS, "WCE", Broken)
    results, _ = run(TASKS[:1], ["WCE", "RNCE"], tmp_path)
    assert results["error"].tolist() == ["RuntimeError: out of luck", ""]
    assert results["vr"].notna().tolist() == [False, True]
    assert not list(TASKS[0].folder(tmp_path).glob("WCE-*"))
    text = output.markdown(results)
    assert "FAILED: compas, seed 0, WCE: RuntimeError: out of luck" in text
    assert "| RNCE |" in text


def test_both_searches_agree_on_every_person(cache):
    tasks = [Task("compas", seed, inputs=12, retrained=1) for seed in (0, 1)]
    results, _ = run(tasks, list(experiment.OURS), cache)
    assert results["error"].tolist() == 4 * [""]
    for task in tasks:
        made = problem(task, cache)
        tree, bilevel = (stored(cache, task, name)["points"] for name in experiment.OURS)
        assert np.isfinite(tree).all()
        distances = [np.abs(points - made.X).mean(axis=1) for points in (tree, bilevel)]
        assert distances[0] == pytest.approx(distances[1], abs=1e-6)


def test_each_search_is_used_by_its_row(cache, monkeypatch):
    used = []

    class Recording(pp.Proplace):
        def fit(self, *rows):
            used.append((self.search, self.time_limit))
            return super().fit(*rows)

    monkeypatch.setattr(experiment, "Proplace", Recording)
    made = problem(TASKS[0], cache)
    for name in experiment.OURS:
        experiment.measure(name, made, experiment._outliers("compas", None))
    assert used == [("tree", None), ("bilevel", None)]


def test_unknown_methods_are_named(tmp_path):
    with raises(OptionError, name="methods", value="DICE", match="PROPLACE-Algorithm-1, WCE"):
        run(TASKS, ["DICE"], tmp_path)


def test_options_follow_a_calibrated_delta(cache):
    made = problem(TASKS[0], cache)
    assert experiment.options("MILP-R", made)["delta"] == pytest.approx(0.03)
    assert experiment.options("PROTO-R", made)["delta"] == pytest.approx(0.02)
    twice = dataclasses.replace(made, delta=0.04)
    assert experiment.options("MILP-R", twice)["delta"] == pytest.approx(0.06)
    for name, search in (("PROPLACE", "tree"), ("PROPLACE-Algorithm-1", "bilevel")):
        expected = {"delta": 0.04, "k": 8, "time_limit": None, "search": search}
        assert experiment.options(name, twice) == expected
    assert "delta" not in experiment.options("RobX", twice)


class FirstRobustRow(RobustBaseline):
    """The first robust training row: for anybody the same."""

    def propose(self, X, target):
        robust = np.flatnonzero(pp.certify(self.net_, self.rows_, self.shifts_, target).robust)
        return [Candidate(self.rows_[robust[0]]) for _ in X]


def test_a_method_that_was_added_later_is_in_the_tables(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(METHODS, "FIRST", FirstRobustRow)
    assert names()[-1] == "FIRST"
    assert published("FIRST", "compas") == {}
    words = ["experiment", "--data", "compas", "--seed", "0", "--people", "4"]
    methods = ["--method", "FIRST", "--method", "RNCE"]
    done = CliRunner().invoke(app, [*words, *methods, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = pd.read_csv(tmp_path / "results.csv")
    assert results["method"].tolist() == ["FIRST", "RNCE"]
    assert (results[["found", "valid", "vdelta"]] == 1.0).all(axis=None)
    assert results["l1"][0] >= results["l1"][1]
    (line,) = [each for each in done.output.splitlines() if each.startswith("| FIRST | 100.0")]
    assert line.endswith("| - |")  # the paper has no figures of it


MINE = """
from helper import Base

class Mine(Base):
    wanted = {row}
"""
HELPER = """
import numpy as np
import proplace as pp
from proplace.baselines import Candidate, RobustBaseline

class Base(RobustBaseline):
    def propose(self, X, target):
        robust = np.flatnonzero(pp.certify(self.net_, self.rows_, self.shifts_, target).robust)
        return [Candidate(self.rows_[robust[self.wanted + {more}]]) for _ in X]
"""


def test_method_is_run_again_only_if_its_code_changed(cache, tmp_path, monkeypatch):
    runs, measure = [], experiment.measure

    def counting(name, made, reference):
        runs.append(name)
        return measure(name, made, reference)

    monkeypatch.setattr(experiment, "measure", counting)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def l1(row, more):
        (tmp_path / "mine.py").write_text(MINE.format(row=row))
        (tmp_path / "helper.py").write_text(HELPER.format(more=more))
        for name in ("mine", "helper"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        monkeypatch.setitem(METHODS, "MINE: v/1", importlib.import_module("mine").Mine)
        results, _ = run(TASKS[:1], ["MINE: v/1", "RNCE"], cache)
        assert results["error"].tolist() == ["", ""]
        return results["l1"][0]

    first = l1(row=0, more=0)
    runs.clear()
    assert l1(row=0, more=0) == first
    assert not runs
    second = l1(row=9, more=0)  # a change of the class
    assert second != first
    assert l1(row=9, more=9) not in (first, second)  # a change of its base, in another file
    assert runs == 2 * ["MINE: v/1"]
    assert l1(row=0, more=0) == first
    assert len(runs) == 2


def test_method_without_source_file_is_run_each_time(cache, monkeypatch):
    typed = type("Typed", (FirstRobustRow,), {})
    typed.__module__ = "__main__"
    monkeypatch.setitem(METHODS, "TYPED", typed)
    before = set(TASKS[0].folder(cache).iterdir())
    results, _ = run(TASKS[:1], ["TYPED"], cache)
    assert results["error"].tolist() == [""]
    assert not {path.name for path in set(TASKS[0].folder(cache).iterdir()) - before}
    assert protocol.source_digest(FirstRobustRow) is not None
    assert protocol.source_digest(typed) is None


def test_change_of_package_runs_every_method_again(tmp_path, monkeypatch):
    runs, measure = [], experiment.measure

    def counting(name, made, reference):
        runs.append((name, made.code))
        return measure(name, made, reference)

    monkeypatch.setattr(experiment, "measure", counting)
    for code in ("one", "one", "two"):
        monkeypatch.setattr(
            protocol,
            "source_digest",
            lambda method, code=code: code if method is pp.Proplace else "mine",
        )
        experiment._problem.cache_clear()  # as a new process begins
        run(TASKS[:1], ["WCE"], tmp_path)
    assert runs == [("WCE", "one"), ("WCE", "two")]
    assert len(list(TASKS[0].folder(tmp_path).glob("curve-*.csv"))) == 2


def test_a_worker_learns_of_a_method_that_was_added_later(cache, monkeypatch):
    monkeypatch.setitem(METHODS, "FIRST", FirstRobustRow)  # so that it is gone in the end
    del METHODS["FIRST"]
    record = experiment._record(TASKS[1], "FIRST", FirstRobustRow, None, cache, None)
    assert record["error"] == ""
    assert record["vdelta"] == 1.0
