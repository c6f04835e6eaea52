"""PROTO-R: prototypes, the required gap, and verdicts of the robustness test."""

from __future__ import annotations

import numpy as np
import pytest

import proplace as pp

QUICK = {"iterations": 200, "c_steps": 5}


def gap(net, point):
    return np.tanh(net.margin(point)[0] / 2.0)


def test_prototype_is_kth_nearest_row_of_class(case):
    method = pp.baselines.ProtoR(case.net, 0.01, k=7).fit(case.train)
    method.prepare(1)
    accepted = case.train[case.net.predict(case.train) == 1]
    for x in case.refused[:4]:
        order = np.argsort(np.linalg.norm(accepted - x, axis=1))
        np.testing.assert_array_equal(method.prototype(x, 1), accepted[order[6]])
    few = pp.baselines.ProtoR(case.net, 0.01, k=10_000).fit(case.train)
    few.prepare(1)
    np.testing.assert_array_equal(
        few.prototype(x, 1), accepted[np.linalg.norm(accepted - x, axis=1).argmax()]
    )


def test_points_have_gap_and_are_nearer_than_prototype(case):
    beta = 0.1
    method = pp.baselines.ProtoR(case.net, 0.0, kappas=(0.3,), beta=beta, **QUICK).fit(case.train)
    result = method.explain(case.refused)
    assert sum(e.found for e in result) >= 10

    def cost(point, x):
        return ((point - x) ** 2).sum() + beta * np.abs(point - x).sum()

    compared = 0
    for e in result:
        if not e.found:
            continue
        assert gap(case.net, e.encoded_counterfactual) > 0.3 - 1e-9
        q = method.prototype(e.encoded_original, 1)
        if gap(case.net, q) > 0.3:
            assert cost(e.encoded_counterfactual, e.encoded_original) < cost(q, e.encoded_original)
            compared += 1
    assert compared >= 5


def test_verdicts_and_order_of_kappas(case):
    delta = 0.02
    runs = {
        kappa: pp.baselines.ProtoR(case.net, delta, kappas=(kappa,), **QUICK)
        .fit(case.train)
        .explain(case.refused)
        for kappa in (0.1, 0.9)
    }
    both = (
        pp.baselines.ProtoR(case.net, delta, kappas=(0.1, 0.9), **QUICK)
        .fit(case.train)
        .explain(case.refused)
    )
    raised = 0
    for i, e in enumerate(both):
        single = [runs[kappa][i] for kappa in (0.1, 0.9)]
        report = pp.certify(case.net, e.encoded_counterfactual, delta)
        assert (e.status == "feasible") == report.robust[0]
        if single[0].status == "feasible":
            np.testing.assert_array_equal(
                e.encoded_counterfactual, single[0].encoded_counterfactual
            )
        else:
            best = max((s for s in single if s.found), key=lambda s: s.margin)
            np.testing.assert_array_equal(e.encoded_counterfactual, best.encoded_counterfactual)
            raised += best is single[1]
    assert raised >= 2
    assert any(e.status == "feasible" for e in both)


def test_certain_class_is_not_reached_but_weaker_answer_stays(case):
    strong = pp.baselines.ProtoR(case.net, 1.0, kappas=(1.0,), iterations=50, c_steps=2).fit(
        case.train
    )
    result = strong.explain(case.refused[:2])
    assert [e.status for e in result] == ["not_found"] * 2
    both = (
        pp.baselines.ProtoR(case.net, 1.0, kappas=(0.1, 1.0), **QUICK)
        .fit(case.train)
        .explain(case.refused[:2])
    )
    assert [e.status for e in both] == ["valid"] * 2
    assert all(e.margin < 0.0 for e in both)


def test_worse_point_does_not_replace_better_one(case):
    strong, weak, down, up = (
        pp.baselines.ProtoR(case.net, 1.0, kappas=kappas, **QUICK)
        .fit(case.train)
        .explain(case.refused[:3])
        for kappas in ((0.9,), (0.1,), (0.9, 0.1), (0.1, 0.9))
    )
    for s, w, d, u in zip(strong, weak, down, up, strict=True):
        assert s.margin != w.margin
        assert d.margin == u.margin == max(s.margin, w.margin)


def test_theta_pulls_to_prototype(case):
    far = []
    for theta in (0.0, 50.0):
        method = pp.baselines.ProtoR(case.net, 0.0, kappas=(0.1,), theta=theta, **QUICK).fit(
            case.train
        )
        result = method.explain(case.refused)
        far.append(
            np.mean(
                [
                    np.linalg.norm(
                        e.encoded_counterfactual - method.prototype(e.encoded_original, 1)
                    )
                    for e in result
                    if e.found
                ]
            )
        )
    assert far[1] < far[0]


def test_two_steps_of_fista_by_hand():
    """A gradient step, shrunk by beta around the person, then a step ahead of the last two."""
    net = pp.Network([([[2.0, -1.0]], [-5.0])])
    options = {"theta": 0.5, "beta": 0.03, "rate": 0.1, "iterations": 2}
    method = pp.baselines.ProtoR(net, 0.0, **options).fit(np.array([[-9.0, -9.0], [9.0, 9.0]]))
    x, q, c = np.array([[0.2, 0.4]]), np.array([[1.0, -1.0]]), np.array([3.0])

    def slope(point):
        gap = np.tanh(net.margin(point)[0] / 2.0)
        attack = -c * (1.0 - gap**2) / 2.0 * np.array([2.0, -1.0])
        return attack + 2.0 * (point - x) + 2.0 * 0.5 * (point - q)

    def shrunk(step):
        return np.sign(step) * np.maximum(np.abs(step) - 0.03, 0.0)

    first = x + shrunk(-0.1 * slope(x))
    ahead = first + 0.25 * (first - x)
    second = x + shrunk(ahead - 0.1 * np.sqrt(0.5) * slope(ahead) - x)
    met = []
    judge = method.legal

    def seen(points, bounds):
        met.append(points.copy())
        return judge(points, bounds)

    method.legal = seen
    method._fista(x, q, c, 0.9, 1, method.bounds(x))
    for point, expected in zip(met, (x, first, ahead, second), strict=True):
        np.testing.assert_allclose(point, expected, atol=1e-12)
    assert (np.abs(second - x) > 0.01).all()


def test_no_row_of_class():
    net = pp.Network([([[1.0, 1.0]], [-1.9])])
    train = np.random.default_rng(0).random((50, 2)) * 0.5
    result = pp.baselines.ProtoR(net, 0.01).fit(train).explain([[0.1, 0.1]])
    assert result[0].status == "not_found"
    assert "class 1" in result[0].reason
    assert result[0].distance != pytest.approx(0.0)
