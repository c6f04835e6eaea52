"""A small lender: features of every kind, a trained network and a few answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import proplace as pp

SCHEMA = pp.Schema(
    [
        pp.Continuous("debt", 0, 100, step=1, unit="% of income", label="obligations"),
        pp.Continuous("income", 0, 200_000, step=500, unit="$", label="yearly income"),
        pp.Continuous("share", 0, 1),
        pp.Ordinal("grade", ["C", "B", "A"]),
        pp.Categorical("job", ["cook", "clerk", "<script>document.title='hacked'</script>"]),
        pp.Binary("cosigner", label="has a cosigner"),
    ]
)
LOAN = pp.Wording("the loan", ["refused", "approved"], "applicant")
DELTA = 0.01


def table(count, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "debt": rng.integers(0, 101, count),
            "income": 500 * rng.integers(0, 401, count),
            "share": rng.random(count).round(3),
            "grade": rng.choice(["C", "B", "A"], count),
            "job": rng.choice(list(SCHEMA.by_name["job"].categories), count),
            "cosigner": rng.integers(0, 2, count),
        }
    )


def trained(X, y, seed):
    model = MLPClassifier((8, 8), max_iter=40, learning_rate_init=0.01, random_state=seed)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    return pp.Network.from_sklearn(model)


class Lender:
    """Training rows, the network in use, two retrained ones, and the answers of a few people."""

    def __init__(self):
        self.frame = table(400, 0)
        self.X = SCHEMA.encode(self.frame)
        rng = np.random.default_rng(1)
        score = 2 * self.X[:, 1] - 2 * self.X[:, 0] + 0.5 * self.X[:, 3] + 0.5 * self.X[:, -1]
        self.y = (score + 0.2 * rng.normal(size=len(score)) > 0.3).astype(int)
        self.net = trained(self.X, self.y, 0)
        self.retrained = [trained(self.X, self.y, seed) for seed in (1, 2)]
        refused = self.frame[self.net.predict(self.X) == 0].iloc[:4]
        self.explainer = pp.Proplace(self.net, DELTA, schema=SCHEMA).fit(self.frame)
        self.result = self.explainer.explain(refused, count=2)
