"""RBR: densities against a plain optimiser, the boundary by brute force, the objective goes down."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import proplace as pp
from proplace.baselines.rbr import _project, optimistic, pessimistic


def log_density(c, p, sigma, epsilon, *, best):
    """Best or worst log-density over the Wasserstein ball, by a general optimiser."""

    def value(z):
        a, b = z
        across = np.sqrt(max(epsilon**2 - a**2 - b**2, 0.0) / max(p - 1, 1)) * (not best)
        move = c - a if best else c + a
        return (
            -np.log(sigma + b) - move**2 / (2 * (sigma + b) ** 2) - (p - 1) * np.log(sigma + across)
        )

    sign = -1.0 if best else 1.0
    ball = {"type": "ineq", "fun": lambda z: epsilon**2 - z[0] ** 2 - z[1] ** 2}
    tries = []
    for angle in (0.05, 0.8, 1.5):
        for r in (0.1, 0.95):
            start = r * epsilon * np.array([np.cos(angle), np.sin(angle)])
            done = minimize(
                lambda z: sign * value(z), start, bounds=[(0, None)] * 2, constraints=[ball]
            )
            z = np.clip(done.x, 0.0, None)
            z *= min(1.0, epsilon / max(np.linalg.norm(z), 1e-12))
            tries.append(sign * value(z))
    return sign * min(tries)


@pytest.mark.parametrize(("p", "sigma", "epsilon"), [(7, 1.0, 1.0), (3, 0.5, 0.3), (1, 1.0, 0.7)])
def test_densities(p, sigma, epsilon):
    c = np.linspace(0.0, 2.0, 9)
    step = 1e-4
    for density, best in ((optimistic, True), (pessimistic, False)):
        table = density(c, p, sigma, epsilon)
        truth = [log_density(v, p, sigma, epsilon, best=best) for v in c]
        np.testing.assert_allclose(table.value, truth, atol=2e-4)
        ahead, behind = (density(c[1:-1] + s, p, sigma, epsilon).value for s in (step, -step))
        np.testing.assert_allclose(table.slope[1:-1], (ahead - behind) / (2 * step), atol=2e-2)


def objective(point, samples, accepted, method, p):
    """F by its definition."""
    far = np.linalg.norm(point - samples, axis=1)
    refused = [
        log_density(c, p, method.sigma, method.epsilon_op, best=True) for c in far[~accepted]
    ]
    good = [log_density(c, p, method.sigma, method.epsilon_pe, best=False) for c in far[accepted]]
    return np.log(np.exp(refused).sum()) - np.log(np.exp(good).sum())


def test_objective_goes_down(case):
    method = pp.baselines.Rbr(case.net, samples=12, radius=0.3, iterations=200).fit(case.train)
    result = method.explain(case.refused)
    checked = 0
    for e in result:
        start = method.boundary(e.encoded_original, 1)
        samples = method.ball(e.encoded_original, start)
        accepted = case.net.predict(samples) == 1
        if not e.found or accepted.all() or not accepted.any() or checked == 2:
            continue
        before = objective(start, samples, accepted, method, 4)
        after = objective(e.encoded_counterfactual, samples, accepted, method, 4)
        value, slope = method.objective(
            e.encoded_counterfactual[None], samples[None], accepted[None]
        )
        assert value[0] == pytest.approx(after, abs=2e-6)
        step = 1e-4 * np.eye(4)
        numeric = [
            np.subtract(
                *(
                    method.objective(
                        (e.encoded_counterfactual + s * d)[None], samples[None], accepted[None]
                    )[0][0]
                    for s in (1, -1)
                )
            )
            / 2e-4
            for d in step
        ]
        np.testing.assert_allclose(slope[0], numeric, atol=1e-3)
        assert after < before - 1e-3
        assert (
            np.abs(e.encoded_counterfactual - e.encoded_original).sum()
            <= np.abs(start - e.encoded_original).sum() + method.delta_plus + 1e-9
        )
        checked += 1
    assert checked == 2


def test_margin_beyond_boundary_is_kept(case):
    method = pp.baselines.Rbr(case.net, delta_plus=0.01).fit(case.train)
    for e in method.explain(case.refused):
        start = method.boundary(e.encoded_original, 1)
        assert (
            np.abs(e.encoded_counterfactual - e.encoded_original).sum()
            <= np.abs(start - e.encoded_original).sum() + 0.01 + 1e-9
        )
        assert case.net.predict(e.encoded_counterfactual)[0] == 1


def test_boundary_is_nearest_point_of_all_lines(case):
    method = pp.baselines.Rbr(case.net, candidates=50).fit(case.train)
    method.prepare(1)
    accepted = case.train[case.net.predict(case.train) == 1]
    for x in case.refused[:4]:
        near = accepted[np.argsort(np.abs(accepted - x).sum(axis=1))[:50]]
        best = np.inf
        for row in near:
            for share in np.linspace(0.0, 1.0, 100):
                point = (1.0 - share) * x + share * row
                if case.net.predict(point)[0] == 1:
                    best = min(best, np.abs(point - x).sum())
                    break
        start = method.boundary(x, 1)
        assert np.abs(start - x).sum() == pytest.approx(best)
        assert case.net.predict(start)[0] == 1


def test_samples_fill_ball(case):
    method = pp.baselines.Rbr(case.net, samples=4000, radius=0.3).fit(case.train)
    far = np.linalg.norm(method.ball(case.refused[0], np.full(4, 0.5)) - 0.5, axis=1)
    assert far.max() <= 0.3
    # uniform: the share within half of the radius is (1/2)^4
    assert np.mean(far < 0.15) == pytest.approx(1 / 16, abs=0.015)


def test_projection_on_l1_ball():
    rng = np.random.default_rng(0)
    steps, radii = rng.normal(size=(20, 3)), rng.uniform(0.2, 2.0, 20)
    result = _project(steps, radii)
    assert (np.abs(result).sum(axis=1) <= radii + 1e-12).all()
    directions = rng.normal(size=(500, 3))
    directions /= np.abs(directions).sum(axis=1, keepdims=True)
    for step, radius, point in zip(steps, radii, result, strict=True):
        others = radius * directions * rng.random((500, 1))
        assert np.linalg.norm(step - point) <= np.linalg.norm(step - others, axis=1).min() + 1e-12
