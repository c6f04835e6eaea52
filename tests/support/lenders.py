"""Lenders: tables, models, their answers, and ledgers whose promises are written as they are wanted."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
import zlib
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from proplace.core.guarantee import Guarantee, Member
from proplace.explain.results import Setting
from proplace.ledger.chain import canonical
from proplace.ledger.issue import Draft, append_promise
from proplace.ledger.promise import open_groups
from proplace.ledger.tables import now
from proplace.ledger.terms import terms_documents

# -- two features, whose answers are found in an instant -------------------------------------------

INCOME_DEBT = pp.Schema(
    [pp.Continuous("income", 0, 100, step=1), pp.Continuous("debt", 0, 50, step=1)]
)
TRAINING = pd.DataFrame({"income": [20, 60, 80, 90, 95], "debt": [30, 10, 5, 20, 8]})
NET = pp.Network([([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [-0.45])])
LATER = pp.Network([([[2.01, -1.0], [-1.0, 1.49]], [-0.1, 0.21]), ([[1.5, -0.71]], [-0.45])])
STRICT = pp.Network([([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [-0.9])])


def refused(count, start=0):
    """Refused people. The first 900 are all different."""
    numbers = range(start, start + count)
    return pd.DataFrame(
        {"income": [n % 30 for n in numbers], "debt": [20 + n // 30 % 30 for n in numbers]}
    )


def answers(count=1, start=0, *, net=NET, delta=0.01, **options):
    """Certified answers of some people."""
    wishes = ("target", "count", "tolerance")
    how = {name: options.pop(name) for name in wishes if name in options}
    explainer = pp.Proplace(net, delta, schema=INCOME_DEBT, k=3, **options).fit(TRAINING)
    return explainer.explain(refused(count, start), **how)


def changed(result, n=0, **fields):
    """The result with some fields of one answer changed by hand."""
    own = list(result)
    own[n] = dataclasses.replace(own[n], **fields)
    return type(result)(own, provenance=result.provenance)


def repayments(seed=0, rows=400, *, strict=25.0):
    """A table of incomes and debts, and who repays."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"income": rng.uniform(10, 90, rows).round(1), "debt": rng.uniform(0, 60, rows).round(1)}
    )
    return table, (table["income"] - table["debt"] > strict).astype(int)


def repaying(labels=(0, 1), seed=0):
    """A trained pipeline that predicts repayment."""
    table, good = repayments()
    mlp = MLPClassifier((6, 5), max_iter=200, random_state=seed, learning_rate_init=0.01)
    return _fit(make_pipeline(StandardScaler(), mlp), table, [labels[one] for one in good])


def open_promises(ledger, day=None):
    """Open promises in groups of the same terms, as an audit reads them."""
    with ledger._database.read() as connection:
        yield from open_groups(connection, str(day or now()[:10]))


# -- a network, and features of every kind ---------------------------------------------------------

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


class Lender:
    """Training rows, the current network, two retrained ones, and the results of a few people."""

    def __init__(self):
        self.frame = _every_kind(400, 0)
        self.X = SCHEMA.encode(self.frame)
        rng = np.random.default_rng(1)
        score = 2 * self.X[:, 1] - 2 * self.X[:, 0] + 0.5 * self.X[:, 3] + 0.5 * self.X[:, -1]
        self.y = (score + 0.2 * rng.normal(size=len(score)) > 0.3).astype(int)
        self.net = self._trained(0)
        self.retrained = [self._trained(seed) for seed in (1, 2)]
        people = self.frame[self.net.predict(self.X) == 0].iloc[:4]
        self.explainer = pp.Proplace(self.net, DELTA, schema=SCHEMA).fit(self.frame)
        self.result = self.explainer.explain(people, count=2)

    def _trained(self, seed):
        model = MLPClassifier((8, 8), max_iter=40, learning_rate_init=0.01, random_state=seed)
        with pytest.warns(ConvergenceWarning):
            model.fit(self.X, self.y)
        return pp.Model.of(model).network


def _every_kind(count, seed):
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


# -- a pipeline, and counterfactuals with tolerances -----------------------------------------------

JOBS = ["clerk", "cook", "smith"]
NUMBERS = ("age", "income", "share")
APPLICANTS = pp.Schema(
    [
        pp.Continuous("age", 18, 90, step=1, direction="increasing", unit="years"),
        pp.Continuous("income", 0, 200_000, step=500, unit="dollars"),
        pp.Continuous("share", 0, 1),
        pp.Categorical("job", JOBS),
        pp.Binary("member", ["no", "yes"]),
    ]
)
TOLERANCE = {"income": 750.0, "share": 0.01}


def applicants(count, seed):
    """A table of people who apply."""
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


def deciding(frame, seed=0, *, jobs=JOBS, scaler=StandardScaler):
    """A trained pipeline that decides on applicants."""
    score = frame.income / 75_000 + 2 * (0.5 - frame.share) + 0.4 * (frame.job == "cook")
    score += 0.2 * (frame.member == "yes") + frame.age / 200
    steps = make_column_transformer(
        (make_pipeline(SimpleImputer(), scaler()), list(NUMBERS)),
        (OneHotEncoder(categories=[jobs]), ["job"]),
        (OneHotEncoder(categories=[["no", "yes"]], drop="first"), ["member"]),
    )
    mlp = MLPClassifier((6,), alpha=0.1, solver="lbfgs", max_iter=150, random_state=seed)
    return _fit(make_pipeline(steps, mlp), frame, np.where(score > 1.6, "granted", "refused"))


class PipelineLender:
    """A current pipeline, and counterfactuals with tolerances for a few refused people."""

    def __init__(self):
        self.frame = applicants(300, 0)
        self.pipe = deciding(self.frame)
        self.wanted, self.other = "granted", "refused"
        self.people = self.frame[self.pipe.predict(self.frame) == self.other].iloc[:5]
        model = pp.Model.of(self.pipe).with_schema(APPLICANTS)
        explainer = pp.Proplace(model, 0.005, k=5).fit(self.frame)
        self.result = explainer.explain(self.people, self.wanted, tolerance=TOLERANCE)
        self.sign = 1.0 if self.pipe.classes_[1] == self.wanted else -1.0

    def accepting(self, by=50.0):
        return tilted(self.pipe, self.sign * by)

    def refusing(self, by=50.0):
        return tilted(self.pipe, -self.sign * by)


def tilted(pipe, by):
    """The same pipeline, with the last bias moved: it accepts more, or fewer."""
    other = copy.deepcopy(pipe)
    other[-1].intercepts_[-1] = other[-1].intercepts_[-1] + by
    return other


def written(value):
    """A number as it is written down, as a fraction."""
    return Fraction(repr(float(value)))


def intervals(promise):
    """The interval of each number, computed from the promise as fractions."""
    found = {}
    for name in NUMBERS:
        answer = written(promise.facts["answer"][name])
        miss = written(TOLERANCE.get(name, 0.0))
        low, high = answer - miss, answer + miss
        if name in promise.facts["guaranteed_ranges"]:
            ends = [written(end) for end in promise.facts["guaranteed_ranges"][name]]
            low, high = min(low, ends[0]), max(high, ends[1])
        found[name] = (low, high)
    return found


def _fit(pipe, table, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pipe.fit(table, labels)


# -- ledgers whose promises are written as they are wanted -----------------------------------------


def setting_of(model, shifts, others=(), distance=None):
    """The subject of promises: a model and a shift set."""
    first = Member(model.network, shifts, "the current model")
    return Setting(Guarantee((first, *others)), model.without_original(), distance)


def with_current(setting, **changes):
    """A setting with another member for the current model."""
    first, *others = setting.guarantee.members
    first = dataclasses.replace(first, **changes)
    return dataclasses.replace(setting, guarantee=Guarantee((first, *others)))


def write(ledger, setting, rows, points, target=1, *, box=None, expires=None):
    """Write promises without any check, and return their numbers."""
    documents = terms_documents(setting, target, None)
    numbers = []
    with ledger._database.write(None) as writer:
        writer.store_documents(documents)
        for n, (answer, point) in enumerate(zip(rows, points, strict=True)):
            low, high = (None, None) if box is None else (end[n].tobytes() for end in box)
            facts = {
                "original": answer,
                "answer": answer,
                "sentence": f"Be number {n}.",
                "index": n,
            }
            draft = Draft(
                f"person {n}",
                canonical(facts),
                np.asarray(point, dtype="<f8").tobytes(),
                low,
                high,
                zlib.compress(b"{}"),
                documents[-1].digest,
            )
            numbers.append(append_promise(writer, draft, expires))
    return numbers


def promise_rows(ledger, net, shifts, rows, target=1, *, box=None, others=(), expires=None):
    """Promise rows of a network without a schema, whose columns are x1, x2, ..."""
    model = pp.Model.of(net)
    setting = setting_of(model, shifts, others)
    table = [dict(zip(model.schema.by_name, map(float, row), strict=True)) for row in rows]
    return write(ledger, setting, table, rows, target, box=box, expires=expires)


def verdicts(audit):
    """Verdicts by the number of the promise."""
    return audit.to_frame()["verdict"].to_dict()


def last(ledger):
    """Facts of the last entry."""
    return json.loads(list(ledger.entries())[-1].body)
