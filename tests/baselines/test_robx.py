"""RobX: answers are stable, on the right line, between the right rows."""

from __future__ import annotations

import numpy as np
import pytest

import proplace as pp


def stability(net, point, sigma, noise):
    logits = net.logits(point + sigma * noise)[:, 0]
    p = 1.0 / (1.0 + np.exp(-logits))
    return p.mean() - p.std()


def test_answers_are_stable(case):
    method = pp.baselines.RobX(case.net, tau=0.55, sigma=0.05, samples=1000).fit(case.train)
    result = method.explain(case.refused)
    assert all(e.found for e in result)
    fresh = np.random.default_rng(99).standard_normal((20_000, 4))
    for e in result:
        assert stability(case.net, e.encoded_counterfactual, 0.05, fresh) >= 0.55 - 0.03
        assert method.stability(e.encoded_counterfactual[None])[0] >= 0.55


def test_stability_by_its_definition(case):
    method = pp.baselines.RobX(case.net, sigma=0.1, samples=500, seed=4).fit(case.train)
    noise = np.random.default_rng(4).normal(0.0, 0.1, (500, 4))
    truth = [stability(case.net, x, 1.0, noise) for x in case.train[:5]]
    np.testing.assert_allclose(method.stability(case.train[:5]), truth, atol=1e-12)


def test_answer_lies_on_line_between_two_rows(case):
    method = pp.baselines.RobX(case.net, tau=0.6, sigma=0.1, samples=200, steps=10).fit(case.train)
    accepted = case.train[case.net.predict(case.train) == 1]
    stable = accepted[method.stability(accepted) >= 0.6]
    moved = 0
    for e in method.explain(case.refused):
        first = accepted[np.abs(accepted - e.encoded_original).sum(axis=1).argmin()]
        last = stable[np.abs(stable - e.encoded_original).sum(axis=1).argmin()]
        line = [(1 - s) * first + s * last for s in np.linspace(0.0, 1.0, 11)]
        good = [
            p for p in line if method.stability(p[None])[0] >= 0.6 and case.net.predict(p)[0] == 1
        ]
        np.testing.assert_allclose(e.encoded_counterfactual, good[0], atol=1e-12)
        moved += bool((good[0] != first).any())
    assert moved >= 2


def test_no_stable_row_is_reported(case):
    result = (
        pp.baselines.RobX(case.net, tau=0.999, sigma=0.5).fit(case.train).explain(case.refused[:2])
    )
    assert [e.status for e in result] == ["not_found"] * 2
    assert "stability of 0.999" in result[0].reason


@pytest.mark.parametrize("tau", [0.5, 0.7])
def test_higher_tau_goes_farther(case, tau):
    low = pp.baselines.RobX(case.net, tau=0.4, sigma=0.05).fit(case.train).explain(case.refused)
    high = pp.baselines.RobX(case.net, tau=tau, sigma=0.05).fit(case.train).explain(case.refused)
    method = pp.baselines.RobX(case.net, sigma=0.05).fit(case.train)
    assert (
        method.stability(high.encoded_counterfactuals).mean()
        > method.stability(low.encoded_counterfactuals).mean()
    )
