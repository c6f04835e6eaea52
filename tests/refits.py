"""Pipelines that are fitted again: the scalers and encoders too."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

JOBS = ["clerk", "cook", "smith"]
GRADES = ["C", "B", "A"]


def people(count, seed):
    """A table, and who is accepted."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 70, count),
            "income": rng.uniform(0.0, 9_000.0, count).round(2),
            "job": rng.choice(JOBS, count),
            "grade": rng.choice(GRADES, count),
        }
    )
    score = table["income"] / 9_000 + 0.3 * (table["job"] == "cook") + table["age"] / 100
    score += 0.2 * (table["grade"] == "A")
    return table, np.where(score + 0.02 * rng.normal(size=count) > 1.0, "yes", "no")


SHAPES = {
    "standard": lambda: [
        (StandardScaler(), ["age", "income"]),
        (OneHotEncoder(), ["job", "grade"]),
    ],
    "minmax, dropped": lambda: [
        (MinMaxScaler(), ["age", "income"]),
        (OneHotEncoder(drop="first"), ["job", "grade"]),
    ],
    "robust, ordinal": lambda: [
        (RobustScaler(), ["income", "age"]),
        (OrdinalEncoder(categories=[GRADES]), ["grade"]),
        (OneHotEncoder(), ["job"]),
    ],
}


def pipeline(steps, *, epochs=150, sizes=(6,)):
    mlp = MLPClassifier(sizes, alpha=0.05, learning_rate_init=0.02, max_iter=epochs, random_state=0)
    return make_pipeline(make_column_transformer(*steps), mlp)


def fitted(steps, table, decided, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pipeline(steps, **options).fit(table, decided)


def retrained(pipe, steps, table, decided, epochs=3):
    """A pipeline on other people: everything in front is fitted again, the layers trained a little."""
    front = make_column_transformer(*steps)
    X = front.fit_transform(table)
    mlp = MLPClassifier(pipe[-1].hidden_layer_sizes, alpha=0.05, learning_rate_init=1e-4)
    mlp.set_params(random_state=1, shuffle=True)
    mlp.partial_fit(X, decided, classes=pipe[-1].classes_)
    mlp.coefs_ = [W.copy() for W in pipe[-1].coefs_]
    mlp.intercepts_ = [b.copy() for b in pipe[-1].intercepts_]
    for _ in range(epochs):
        mlp.partial_fit(X, decided)
    return make_pipeline(front, mlp)
