"""Every method through the whole experiment at a small size, with interruption and failure."""

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
from proplace.experiment import ours, output, protocol, settings
from proplace.experiment import run as experiment
from proplace.experiment.archive import build
from proplace.experiment.ours import OURS
from proplace.experiment.protocol import problem
from proplace.experiment.run import names, run
from proplace.experiment.settings import Task
from support.errors import raises

TASKS = [Task("compas", seed, people=4) for seed in (0, 1)]
pytestmark = pytest.mark.usefixtures("toy_for_compas")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def stored(cache, task, name):
    (path,) = (cache / task.name).glob(f"{name}-{10 * '[0-9a-f]'}.npz")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.slow
def test_every_cell_agrees_with_recount(cache, tmp_path):
    lines = []
    tasks = [Task("compas", seed=0, people=2)]
    results = run(tasks, names(), cache, report=lines.append)
    assert (results.cells["error"] == "").all(), results.cells["error"].tolist()
    assert results.cells["method"].tolist() == list(names())
    assert len(lines) == 1 + len(names())
    assert (results.cells["seconds"] > 0.0).all()
    assert set(results.curves["seed"]) == {0}
    made = problem(tasks[0], cache)
    judges = [net for kind in ("new data", "without 1%") for net in made.nets.retrained[kind]]
    for name, table in results.people.groupby("method"):
        points = stored(cache, tasks[0], name)["points"]
        there = np.isfinite(points).all(axis=1)
        assert table["found"].tolist() == there.tolist()
        for i, row in enumerate(table.to_dict("records")):
            x, point = made.X[i], points[i]
            if not there[i]:
                assert (row["vr"], row["all"], row["vdelta"], row["valid"]) == (0, 0, 0, 0)
                continue
            assert row["l1"] == pytest.approx(np.abs(point - x).mean())
            assert row["changed"] == (np.abs(point - x) > 1e-6).sum()
            votes = [net.predict([point])[0] == 1 for net in judges]
            assert (row["vr"], row["all"]) == (np.mean(votes), all(votes))
            assert row["vdelta"] == (pp.worst_case(made.net, point, made.delta).margin >= 0.0)
            assert row["plausible"] == (row["lof"] <= 1.5)
            others = [net.predict([point])[0] == 1 for net in made.nets.retrained["without 10%"]]
            assert row["vr without 10%"] == np.mean(others)
    ours = results.people[results.people["method"].isin(["PROPLACE", "PROPLACE-sparse"])]
    assert (ours[["found", "valid", "vdelta", "vr within delta"]] == 1.0).all(axis=None)
    # Cells from files are the same.
    again = run(tasks, names(), cache)
    pd.testing.assert_frame_equal(again.people, results.people)
    pd.testing.assert_frame_equal(again.cells, results.cells)
    text = output.markdown(results)
    for name in names():
        assert text.count(f"| {name} |") == (2 if name == "PROPLACE" else 3)


@pytest.mark.slow
def test_archive_gives_table_of_trained_networks(cache, tmp_path):
    packed = build(tmp_path / "archive.zip", TASKS[:1], cache)
    trained = run(TASKS[:1], ["PROPLACE", "RNCE"], cache)
    archived = run(TASKS[:1], ["PROPLACE", "RNCE"], tmp_path, archive=packed.path)
    pd.testing.assert_frame_equal(archived.people, trained.people)
    assert not list(tmp_path.glob("*.npz"))


def test_learned_set_contains_its_history_and_known_networks_are_required(cache):
    made = problem(TASKS[0], cache)
    learned = OURS["PROPLACE-learned"][0](made)["delta"]
    assert sum(learned.contains(net) for net in made.nets.history) >= 12
    options = OURS["PROPLACE-networks"][0](made)
    assert [net for net, _ in options["required_models"]] == made.nets.calibration
    assert options["delta"] <= made.delta
    calibrated = OURS["PROPLACE-calibrated"][0](made)["delta"]
    assert calibrated in made.curve["delta"].tolist()


@pytest.mark.slow
def test_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch):
    names = ["PROPLACE", "WCE", "RNCE"]
    whole = run(TASKS, names, tmp_path / "whole")

    def interrupt(line):
        if line.startswith("cell 2/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(TASKS, names, tmp_path / "parts", report=interrupt)
    measured, measure = [], experiment.answered

    def counting(name, made):
        measured.append((made.task.seed, name))
        return measure(name, made)

    monkeypatch.setattr(experiment, "answered", counting)
    rest = run(TASKS, names, tmp_path / "parts")
    assert (0, "PROPLACE") not in measured
    assert (1, "RNCE") in measured
    pd.testing.assert_frame_equal(rest.people, whole.people, check_exact=True)
    pd.testing.assert_frame_equal(rest.curves, whole.curves, check_exact=True)


def test_failing_method_does_not_lose_others(tmp_path, monkeypatch):
    class Broken:
        def __init__(self, net, *, schema, seed, **_):
            raise RuntimeError("out of luck")

    monkeypatch.setitem(experiment.METHODS, "WCE", Broken)
    results = run(TASKS[:1], ["WCE", "RNCE"], tmp_path)
    assert results.cells["error"].tolist() == ["RuntimeError: out of luck", ""]
    assert set(results.people["method"]) == {"RNCE"}
    assert not list((tmp_path / TASKS[0].name).glob("WCE-*"))
    text = output.markdown(results)
    assert "FAILED: compas, 6x6, seed 0, WCE: RuntimeError: out of luck" in text
    assert "| RNCE |" in text


@pytest.mark.slow
def test_both_searches_agree_on_every_person(cache):
    tasks = [Task("compas", seed) for seed in (0, 1)]
    searches = ["PROPLACE", "PROPLACE-Algorithm-1"]
    results = run(tasks, searches, cache)
    assert results.cells["error"].tolist() == 4 * [""]
    tree, bilevel = (
        results.people.loc[results.people["method"] == name].groupby("seed")["l1"].apply(list)
        for name in searches
    )
    for seed in (0, 1):
        assert len(tree[seed]) == 12
        assert len(bilevel[seed]) == 10  # a slow method explains fewer people
        assert tree[seed][:10] == pytest.approx(bilevel[seed], abs=1e-6)


def test_each_search_is_used_by_its_row(cache, monkeypatch):
    used = []

    class Recording(pp.Proplace):
        def fit(self, *rows):
            used.append((self.search, self.time_limit))
            return super().fit(*rows)

    monkeypatch.setattr(ours, "Proplace", Recording)
    made = problem(TASKS[0], cache)
    for name in ("PROPLACE", "PROPLACE-Algorithm-1"):
        experiment.answered(name, made)
    assert used == [("tree", None), ("bilevel", None)]


def test_counterfactuals_are_those_of_explainer_that_proves_ranges(cache):
    made = problem(TASKS[0], cache)
    lean = ours.explainer(made, {"delta": made.delta})
    whole = pp.Proplace(made.net, made.delta, schema=made.schema, k=made.settings.k)
    found = [each.explain(made.X, **ours.EXACT) for each in (lean, whole.fit(made.rows))]
    np.testing.assert_array_equal(*(one.encoded_counterfactuals for one in found))
    assert [bool(one[0].guaranteed_ranges) for one in found] == [False, True]


def test_slow_methods_and_other_sizes_explain_fewer_people(monkeypatch):
    size = settings.SETTINGS["compas"].widths
    limits = {
        (task.widths, task.people): [task.people_for(name) for name in ("PROPLACE", "MILP-R")]
        for task in (Task("compas", 0, size), Task("compas", 0, (9, 9)), Task("compas", 0, None, 3))
    }
    assert limits == {(size, None): [None, 10], ((9, 9), None): [10, 10], (None, 3): [3, 3]}


def test_method_without_networks_is_rejected(tmp_path):
    methods = ["PROPLACE-learned", "PROPLACE-Algorithm-1"]
    tasks = [Task("compas", 0, (9, 9))]
    with raises(OptionError, name="methods", match="Leave the width out"):
        run(tasks, methods, tmp_path)
    assert [experiment.possible(name, tasks[0]) for name in names()].count(False) == 3
    found = run([Task("compas", 0, people=1)], methods[:1], tmp_path)
    assert found.cells["error"].tolist() == [""]


def test_unknown_methods_are_named(tmp_path):
    with raises(OptionError, name="methods", value="DICE", match="PROPLACE-typical, WCE"):
        run(TASKS, ["DICE"], tmp_path)


def test_options_follow_delta(cache):
    made = problem(TASKS[0], cache)
    assert experiment.options("MILP-R", made)["delta"] == pytest.approx(0.03)
    assert experiment.options("PROTO-R", made)["delta"] == pytest.approx(0.02)
    twice = dataclasses.replace(made, delta=0.04)
    assert experiment.options("MILP-R", twice)["delta"] == pytest.approx(0.06)
    assert OURS["PROPLACE"][0](twice) == {"delta": 0.04}
    assert "delta" not in experiment.options("RobX", twice)


class FirstRobustRow(RobustBaseline):
    """The first robust training row: for anybody the same."""

    def propose(self, X, target):
        robust = np.flatnonzero(pp.certify(self.net_, self.rows_, self.shifts_, target).robust)
        return [Candidate(self.rows_[robust[0]]) for _ in X]


@pytest.mark.slow
def test_method_that_was_added_later_is_in_tables(tmp_path, monkeypatch):
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
    assert any(line.startswith("| FIRST | 100") for line in done.output.splitlines())


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
    runs, measure = [], experiment.answered

    def counting(name, made):
        runs.append(name)
        return measure(name, made)

    monkeypatch.setattr(experiment, "answered", counting)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def l1(row, more):
        (tmp_path / "mine.py").write_text(MINE.format(row=row))
        (tmp_path / "helper.py").write_text(HELPER.format(more=more))
        for name in ("mine", "helper"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        monkeypatch.setitem(METHODS, "MINE: v/1", importlib.import_module("mine").Mine)
        results = run(TASKS[:1], ["MINE: v/1", "RNCE"], cache)
        assert results.cells["error"].tolist() == ["", ""]
        return results.people["l1"][:4].mean()

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
    before = set((cache / TASKS[0].name).iterdir())
    results = run(TASKS[:1], ["TYPED"], cache)
    assert results.cells["error"].tolist() == [""]
    assert not {path.name for path in set((cache / TASKS[0].name).iterdir()) - before}
    assert protocol.source_digest(FirstRobustRow) is not None
    assert protocol.source_digest(typed) is None


@pytest.mark.slow
def test_change_of_package_runs_every_method_again(tmp_path, monkeypatch):
    runs, measure = [], experiment.answered

    def counting(name, made):
        runs.append((name, made.code))
        return measure(name, made)

    monkeypatch.setattr(experiment, "answered", counting)
    for code in ("one", "one", "two"):
        monkeypatch.setattr(
            protocol,
            "source_digest",
            lambda method, code=code: code if method is pp.Proplace else "mine",
        )
        experiment._problem.cache_clear()  # as a new process begins
        run(TASKS[:1], ["WCE"], tmp_path)
    assert runs == [("WCE", "one"), ("WCE", "two")]
    assert len(list((tmp_path / TASKS[0].name).glob("curve-*.csv"))) == 2


def test_worker_learns_of_method_that_was_added_later(cache, monkeypatch):
    monkeypatch.setitem(METHODS, "FIRST", FirstRobustRow)  # so that it is gone in the end
    del METHODS["FIRST"]
    source = experiment._Source(cache, None, None)
    cell, people = experiment._cell(TASKS[1], "FIRST", FirstRobustRow, None, source)
    assert cell["error"] == ""
    assert (people["vdelta"] == 1.0).all()
