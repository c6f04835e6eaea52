"""A lender with a pipeline, answers with room around them, and what was promised in plain fractions."""

from __future__ import annotations

import copy
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp

JOBS = ["clerk", "cook", "smith"]
SCHEMA = pp.Schema(
    [
        pp.Continuous("age", 18, 90, step=1, direction="increasing", unit="years"),
        pp.Continuous("income", 0, 200_000, step=500, unit="dollars"),
        pp.Continuous("share", 0, 1),
        pp.Categorical("job", JOBS),
        pp.Binary("member", ["no", "yes"]),
    ]
)
TOLERANCE = {"income": 750.0, "share": 0.01}
NUMBERS = ("age", "income", "share")


def table(count, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, count).astype(float),
            "income": 500.0 * rng.integers(20, 300, count),
            "share": rng.random(count).round(4),
            "job": rng.choice(JOBS, count),
            "member": rng.choice(["no", "yes"], count),
        }
    )


def pipeline(frame, seed=0):
    score = frame.income / 75_000 + 2 * (0.5 - frame.share) + 0.4 * (frame.job == "cook")
    score += 0.2 * (frame.member == "yes") + frame.age / 200
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    steps = make_column_transformer(
        (numbers, list(NUMBERS)),
        (OneHotEncoder(categories=[JOBS]), ["job"]),
        (OneHotEncoder(categories=[["no", "yes"]], drop="first"), ["member"]),
    )
    mlp = MLPClassifier((6,), alpha=0.1, solver="lbfgs", max_iter=150, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = np.where(score > 1.6, "granted", "refused")
        return make_pipeline(steps, mlp).fit(frame, named)


def tilted(pipe, by):
    """The same pipeline, with the last bias moved: it accepts more, or fewer."""
    other = copy.deepcopy(pipe)
    other[-1].intercepts_[-1] = other[-1].intercepts_[-1] + by
    return other


class Lender:
    """A pipeline in use, and answers of a few people it refuses, with room around each number."""

    def __init__(self):
        self.frame = table(300, 0)
        self.pipe = pipeline(self.frame)
        said = self.pipe.predict(self.frame)
        self.wanted, self.other = "granted", "refused"
        self.people = self.frame[said == self.other].iloc[:5]
        model = pp.Model.of(self.pipe).with_schema(SCHEMA)
        explainer = pp.Proplace(model, 0.005, k=5, tolerance=TOLERANCE, holds=True)
        self.result = explainer.fit(self.frame).explain(self.people, self.wanted)
        self.sign = 1.0 if self.pipe.classes_[1] == self.wanted else -1.0

    def accepting(self, by=50.0):
        return tilted(self.pipe, self.sign * by)

    def refusing(self, by=50.0):
        return tilted(self.pipe, -self.sign * by)


def written(value):
    """A number as it is written down, as a fraction."""
    return Fraction(repr(float(value)))


def promised(promise):
    """Each number's interval, worked out anew from what the promise says, as fractions."""
    found = {}
    for name in NUMBERS:
        answer = written(promise.facts["answer"][name])
        miss = written(TOLERANCE.get(name, 0.0))
        low, high = answer - miss, answer + miss
        if name in promise.facts["holds"]:
            ends = [written(end) for end in promise.facts["holds"][name]]
            low, high = min(low, ends[0]), max(high, ends[1])
        found[name] = (low, high)
    return found
