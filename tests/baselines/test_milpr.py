"""MILP-R: the exact nearest point by enumeration of activation patterns, and the right margin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

import proplace as pp
from oracles import pairs_of
from proplace.baselines import milpr
from proplace.baselines.milpr import _SLACK
from proplace.core.errors import SolverError
from proplace.search import SearchResult
from support.problems import ill_solver
from support.tiers import seeds


def nearest(net, x, margin, low, high):
    """Least L1 distance (sum) of a point with this margin: one linear program per pattern."""
    pairs = pairs_of(net)
    d = len(x)
    best = np.inf
    for pattern in itertools.product((0.0, 1.0), repeat=sum(len(b) for _, b in pairs[:-1])):
        A, c = np.eye(d), np.zeros(d)  # the layer's input is A x + c
        rows, right, start = [], [], 0
        for W, b in pairs[:-1]:
            on = np.array(pattern[start : start + len(b)])
            start += len(b)
            Z, z = W @ A, W @ c + b
            sign = np.where(on > 0, -1.0, 1.0)
            rows.append(sign[:, None] * Z)
            right.append(-sign * z)
            A, c = on[:, None] * Z, on * z
        W, b = pairs[-1]
        rows.append(-(W @ A))
        right.append(W @ c + b - margin)
        F, g = np.vstack(rows), np.concatenate(right)
        # variables: x', t with t >= |x' - x|
        eye = np.eye(d)
        full = np.block([[F, np.zeros((len(F), d))], [eye, -eye], [-eye, -eye]])
        ends = np.concatenate([g, x, -x])
        bounds = [*zip(low, high, strict=True), *[(0, None)] * d]
        done = linprog(np.r_[np.zeros(d), np.ones(d)], A_ub=full, b_ub=ends, bounds=bounds)
        if done.status == 0:
            best = min(best, done.fun)
    return best


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", seeds(2, 4))
@pytest.mark.parametrize("sizes", [(3, 5, 1), (2, 3, 3, 1)])
def test_exact_nearest_point(seed, sizes, make_case):
    case = make_case(seed, sizes)
    method = pp.baselines.MilpR(case.net, 0.0).fit(case.train)
    method.prepare(1)
    low, high = case.train.min(axis=0), case.train.max(axis=0)
    for x in case.refused[:3]:
        inside = np.minimum(low, x), np.maximum(high, x)
        for margin in (0.02, 0.4):
            truth = nearest(case.net, x, margin + _SLACK, *inside)
            towards = case.train[case.net.margin(case.train) > margin][:5]
            for point in (
                method.nearest(x, margin),
                method.nearest(x, margin, towards=towards),
            ):
                if point is None:
                    assert truth == np.inf
                    continue
                assert case.net.margin(point)[0] >= margin
                assert np.abs(point - x).sum() == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize("haste", [0.9, 3.0])
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_margin_is_raised_until_robust(seed, haste, make_case, monkeypatch):
    monkeypatch.setattr("proplace.baselines.milpr._HASTE", haste)  # 3: it has to come back
    case = make_case(seed, (2, 4, 1))
    delta, step = 0.04, 0.1
    method = pp.baselines.MilpR(case.net, delta, step=step).fit(case.train)
    low, high = case.train.min(axis=0), case.train.max(axis=0)
    raised = 0
    for e in method.explain(case.refused[:4]):
        inside = np.minimum(low, e.encoded_original), np.maximum(high, e.encoded_original)
        assert e.status == "feasible"
        margin = float(e.reason.split("margin ")[1].split(";")[0])
        count = round((margin - 0.02) / step)
        assert margin == pytest.approx(0.02 + count * step)
        assert pp.certify(case.net, e.encoded_counterfactual, delta).robust[0]
        assert np.abs(e.encoded_counterfactual - e.encoded_original).sum() == pytest.approx(
            nearest(case.net, e.encoded_original, margin + _SLACK, *inside), abs=1e-6
        )
        before = [method.nearest(e.encoded_original, 0.02 + n * step) for n in range(count)]
        assert not any(pp.certify(case.net, p, delta).robust[0] for p in before)
        raised += count > 1
    assert raised >= 1


def test_last_point_is_given_where_none_is_robust(case):
    few = pp.baselines.MilpR(case.net, 0.05, raises=0).fit(case.train).explain(case.refused[:3])
    assert [e.status for e in few] == ["valid"] * 3
    assert all(e.margin < 0.0 and "margin 0.02" in e.reason for e in few)
    none = pp.baselines.MilpR(case.net, 0.01, start=1e6).fit(case.train).explain(case.refused[:2])
    assert [e.status for e in none] == ["not_found"] * 2
    assert "1000000.0" in none[0].reason
    # far too large a delta: margins end where the box ends, and the last point is kept
    never = pp.baselines.MilpR(case.net, 3.0, step=2.0).fit(case.train).explain(case.refused[:1])
    assert never[0].status == "valid"


def test_nearest_over_grids_and_categories(make_net):
    schema = pp.Schema(
        [
            pp.Continuous("a", 0, 10, step=1),
            pp.Continuous("b", 0, 5, step=1),
            pp.Binary("c"),
            pp.Categorical("d", ["x", "y", "z"]),
        ]
    )
    net = make_net(11, (schema.width, 6, 1))
    every = [
        [i / 10, j / 5, c, *d]
        for i, j, c in itertools.product(range(11), range(6), (0.0, 1.0))
        for d in np.eye(3)
    ]
    cells = schema.canonical(np.array(every))
    method = pp.baselines.MilpR(net, 0.0, schema=schema).fit(cells)
    good = cells[net.margin(cells) >= 0.02]
    refused = cells[net.predict(cells) == 0][::40][:6]
    for e in method.explain(refused):
        best = np.abs(good - e.encoded_original).mean(axis=1).min()
        assert e.distance == pytest.approx(best, abs=1e-9)
        assert (cells == e.encoded_counterfactual).all(axis=1).any()


@pytest.mark.every(2)
@pytest.mark.parametrize("status", ["kTimeLimit", "kUnknown"])
def test_no_status_of_solver_loses_answer(status, case, monkeypatch):
    """A second call succeeds. If every call fails, the row is not the cause."""
    method = pp.baselines.MilpR(case.net, 0.02).fit(case.train)
    truth = method.explain(case.refused[:3])
    with monkeypatch.context() as patch:
        ill_solver(patch, status, lambda n: n % 3 > 0)
        again = method.explain(case.refused[:3])
    assert [e.status for e in again] == [e.status for e in truth] == ["feasible"] * 3
    np.testing.assert_allclose(
        again.encoded_counterfactuals, truth.encoded_counterfactuals, atol=1e-6
    )
    ill_solver(monkeypatch, status, lambda n: True)
    for e in method.explain(case.refused[:3]):
        if e.status == "solver_error":
            assert "no answer" in e.reason
            continue
        assert e.status in ("feasible", "valid")
        assert "the solver failed" in e.reason
        assert case.net.predict(e.encoded_counterfactual)[0] == 1


def test_point_before_solver_failure_is_returned(case, monkeypatch):
    method = pp.baselines.MilpR(case.net, 0.05, step=0.1).fit(case.train)
    plain_search, calls = milpr.search, []

    def failing(problem, pieces):
        calls.append(problem.margin)
        if len(calls) > 1:
            return SearchResult(None, np.inf, 0.0, "unknown", solver_failure="out of luck")
        return plain_search(problem, pieces)

    monkeypatch.setattr(milpr, "search", failing)
    (e,) = method.explain(case.refused[:1])
    assert len(calls) == 2
    assert e.status == "valid"
    assert "nearest point of margin 0.02" in e.reason
    assert "out of luck" in e.reason
    (e,) = method.explain(case.refused[1:2])  # it fails at once
    assert (e.status, e.encoded_counterfactual) == ("solver_error", None)
    with pytest.raises(SolverError, match="out of luck"):
        method.nearest(case.refused[0], 0.02)
