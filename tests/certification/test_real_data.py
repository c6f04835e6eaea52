"""HELOC applicants, a trained network, and one mixed-integer program each."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import proplace as pp
from oracles import milp_margin
from real_data import dataset


@pytest.fixture(scope="module")
def heloc():
    table = dataset("heloc")
    sample = np.random.default_rng(0).choice(len(table.y), 2500, replace=False)
    X, y = table.X[sample], table.y[sample]
    model = MLPClassifier((10, 10), max_iter=30, learning_rate_init=0.01, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return pp.Model.of(model).network, X


def test_verdicts_on_heloc(heloc):
    net, X = heloc
    delta = 0.01
    accepted = X[net.predict(X) == 1]
    worst = pp.certify(net, accepted, delta, exact_margin=True).upper
    hardest = accepted[np.argsort(np.abs(worst))[:30]]  # those nearest to the border
    truth = np.array([milp_margin(net, x, delta, 1) for x in hardest])
    report = pp.certify(net, hardest, delta)
    clear = np.abs(truth) > 1e-6
    np.testing.assert_array_equal(report.robust[clear], (truth >= 0.0)[clear])
    assert report.robust.any()
    assert not report.robust.all()
    np.testing.assert_allclose(
        pp.certify(net, hardest, delta, exact_margin=True).upper, truth, atol=1e-6
    )
