"""WCE: a point with status valid is narrowly valid, and lost rows are reported."""

from __future__ import annotations

import numpy as np
import pytest

import proplace as pp


def test_wachter_stops_at_first_valid_point(case):
    result = pp.baselines.Wachter(case.net, rate=0.005).fit(case.train).explain(case.refused)
    found = [e for e in result if e.found]
    assert len(found) >= 9
    for e in found:
        assert case.net.predict(e.encoded_counterfactual)[0] == 1
        # one step before, no column more than a few steps away, the class was not reached
        back = e.encoded_counterfactual - 0.02 * np.sign(
            e.encoded_counterfactual - e.encoded_original
        )
        assert case.net.margin(back)[0] < e.margin


def test_way_is_that_of_adam_on_loss(case):
    torch = pytest.importorskip("torch")
    layers = [
        (torch.tensor(layer.W.copy()), torch.tensor(layer.bias.copy())) for layer in case.net.layers
    ]

    def margin(z):
        for W, b in layers[:-1]:
            z = torch.relu(W @ z + b)
        return (layers[-1][0] @ z + layers[-1][1])[0]

    low, high = torch.tensor(case.train.min(axis=0)), torch.tensor(case.train.max(axis=0))
    result = (
        pp.baselines.Wachter(case.net, rate=0.02, penalty=0.3).fit(case.train).explain(case.refused)
    )
    compared = 0
    for e in result:
        x = torch.tensor(e.encoded_original)
        z = x.clone().requires_grad_()
        adam = torch.optim.Adam([z], lr=0.02, amsgrad=True)
        for _ in range(100):
            if margin(z) >= 1e-6:
                break
            adam.zero_grad()
            ((margin(z) - 1.0) ** 2 + 0.3 * (z - x).abs().sum()).backward()
            adam.step()
            with torch.no_grad():
                z.copy_(torch.clamp(z, torch.minimum(low, x), torch.maximum(high, x)))
        if margin(z) >= 1e-6:  # within the first hundred steps: the penalty is still the first one
            np.testing.assert_allclose(e.encoded_counterfactual, z.detach().numpy(), atol=1e-6)
            compared += 1
    assert compared >= 6


def test_large_penalty_keeps_person_and_is_relaxed():
    net = pp.Network([([[2.0]], [-1.0])])
    # At the start, the slope of the loss is 2 (m - 1) 2 = -6.24, and the penalty outweighs it at once.
    options = {"rate": 0.01, "penalty": 40.0, "iterations": 50}
    stuck = pp.baselines.Wachter(net, rounds=1, **options).fit([[0.0], [1.0]]).explain([[0.22]])
    assert stuck[0].status == "not_found"
    assert "50 steps" in stuck[0].reason
    freed = pp.baselines.Wachter(net, rounds=8, **options).fit([[0.0], [1.0]]).explain([[0.22]])
    assert freed[0].status == "valid"


def test_row_without_gradient_is_not_found():
    # relu(x - 2) is flat for all rows of the unit interval.
    net = pp.Network([([[1.0]], [-2.0]), ([[1.0]], [-0.5])])
    result = pp.baselines.Wachter(net).fit([[0.0], [3.0]]).explain([[0.5]])
    assert result[0].status == "not_found"
    assert result[0].encoded_counterfactual is None
