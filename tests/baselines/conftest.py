"""Small networks and tables for the methods: both classes, no framework, no files."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import proplace as pp


def random_net(seed, sizes, gain=4.0):
    """A random network whose classes both occur in the unit cube."""
    rng = np.random.default_rng(seed)
    while True:
        layers = [
            (rng.normal(0.0, gain / np.sqrt(n), (m, n)), rng.normal(0.0, 0.5, m))
            for n, m in itertools.pairwise(sizes)
        ]
        logits = pp.Network(layers).logits(rng.random((500, sizes[0])))
        if (np.diff(np.quantile(logits, (0.3, 0.6, 0.9), axis=0), axis=0) > 0.1).all():
            W, b = layers[-1]
            layers[-1] = (W, b - np.quantile(logits, 0.6, axis=0))
            return pp.Network(layers)


class Case:
    """A network, training rows, and refused rows to explain."""

    def __init__(self, seed=0, sizes=(4, 8, 6, 1), target=1):
        self.net = random_net(seed, sizes)
        rng = np.random.default_rng(seed + 1)
        self.train = rng.random((300, sizes[0]))
        X = rng.random((200, sizes[0]))
        self.refused = X[self.net.predict(X) != target][:12]
        assert len(self.refused) == 12


@pytest.fixture(scope="session")
def make_net():
    return random_net


@pytest.fixture(scope="session")
def make_case():
    return Case


@pytest.fixture(scope="session")
def case():
    return Case()


@pytest.fixture(scope="session")
def several_classes():
    return Case(seed=3, sizes=(3, 8, 3), target=2)


@pytest.fixture(scope="session")
def frame_case():
    """A table in original units: whole numbers, a category, a binary and an immutable feature."""
    rng = np.random.default_rng(5)
    schema = pp.Schema(
        [
            pp.Continuous("age", 20, 70, step=1, immutable=True),
            pp.Continuous("income", 0, 1000),
            pp.Continuous("loans", 0, 8, step=1),
            pp.Categorical("job", ["clerk", "nurse", "smith"]),
            pp.Binary("owner", values=("no", "yes")),
        ]
    )
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 71, 400),
            "income": rng.uniform(0, 1000, 400).round(2),
            "loans": rng.integers(0, 9, 400),
            "job": rng.choice(["clerk", "nurse", "smith"], 400),
            "owner": rng.choice(["no", "yes"], 400),
        },
        index=[f"p{i}" for i in range(400)],
    )
    net = random_net(7, (schema.width, 8, 1))
    return net, schema, frame
