"""Data that the models of all frameworks are trained on."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sklearn.datasets import make_classification

os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports keras


class Data:
    """Rows with columns of very different sizes, and classes 0..k-1."""

    def __init__(self, classes):
        X, self.y = make_classification(
            300,
            5,
            n_informative=4,
            n_redundant=0,
            n_classes=classes,
            n_clusters_per_class=1,
            random_state=classes,
        )
        self.Z = X
        self.X = X * [1.0, 10.0, 0.1, 100.0, 1.0] + [0.0, 5.0, -1.0, 300.0, 2.0]
        rng = np.random.default_rng(0)
        self.fresh = self.X[rng.integers(300, size=100)] + rng.standard_normal((100, 5))
        self.fresh_Z = rng.standard_normal((100, 5)) * 2.0


@pytest.fixture(scope="session")
def binary():
    return Data(2)


@pytest.fixture(scope="session")
def multi():
    return Data(3)


@pytest.fixture(scope="session", params=[2, 3], ids=["two_classes", "three_classes"])
def data(request, binary, multi):
    return {2: binary, 3: multi}[request.param]
