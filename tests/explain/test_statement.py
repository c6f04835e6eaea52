"""Statements of certificates, encoded anew by the scikit-learn pipeline that they are about."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import proplace as pp
from proplace.certification.certificate import parameters
from proplace.explain.statement import sentence, stated

JOBS, GRADES = ["clerk", "cook", "smith"], ["C", "B", "A"]
NUMBERS = ["age", "income"]
SCHEMA = pp.Schema(
    [
        pp.Continuous("age", 18, 90, step=1, unit="years", immutable=True),
        pp.Continuous("income", 0, 200_000, step=500, unit="dollars", direction="increasing"),
        pp.Categorical("job", JOBS),
        pp.Ordinal("grade", GRADES),
        pp.Binary("member", ["no", "yes"]),
    ]
)
LOAN = pp.Wording("the loan", {"refused": "refused", "granted": "granted"}, "applicant")


def people(count, seed):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, count).astype(float),
            "income": 500.0 * rng.integers(20, 300, count),
            "job": rng.choice(JOBS, count),
            "grade": rng.choice(GRADES, count),
            "member": rng.choice(["no", "yes"], count),
        }
    )


def fitted(table, scaler, ordinal):
    """A pipeline that scales numbers and encodes labels in one column or in one for each."""
    steps = make_column_transformer(
        (make_pipeline(SimpleImputer(), scaler()), NUMBERS),
        (OneHotEncoder(categories=[JOBS]), ["job"]),
        (ordinal(categories=[GRADES]), ["grade"]),
        (OneHotEncoder(categories=[["no", "yes"]], drop="first"), ["member"]),
    )
    score = table.income / 60_000 + 0.4 * (table.job == "cook") + 0.3 * (table.grade == "A")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mlp = MLPClassifier((6,), alpha=0.1, solver="lbfgs", max_iter=150, random_state=0)
        return make_pipeline(steps, mlp).fit(table, np.where(score > 1.5, "granted", "refused"))


def stated_rows(statement, rng, count):
    """Rows of the table within the statement, with its corners, and the row of today."""
    facts = {f["name"]: f for f in statement["features"]}
    rows = {
        name: rng.choice([f["low"], f["value"], f["high"], rng.uniform(f["low"], f["high"])], count)
        if "low" in f
        else [f["value"]] * count
        for name, f in facts.items()
    }
    return pd.DataFrame(rows), pd.DataFrame({name: [f["today"]] for name, f in facts.items()})


@pytest.mark.parametrize("ordinal", [OrdinalEncoder, OneHotEncoder])
@pytest.mark.parametrize("scaler", [StandardScaler, MinMaxScaler])
def test_pipeline_accepts_all_that_is_stated(scaler, ordinal):
    rng, table = np.random.default_rng(0), people(300, 1)
    pipe = fitted(table, scaler, ordinal)
    asked = table[pipe.predict(table) == "refused"].iloc[:8].copy()
    asked.iloc[0, 0] = np.nan  # the model counts the mean
    schema = SCHEMA if ordinal is OrdinalEncoder else None
    source = pp.Model.of(pipe) if schema is None else pp.Model.of(pipe).with_schema(schema)
    result = pp.Proplace(source, 0.002, k=5).fit(table).explain(
        asked, "granted", tolerance={"income": 750.0, "age": (0, 1)}
    )  # fmt: skip
    found = [e for e in result if e.found]
    wide = 0
    for e in found:
        bundle = stated(e, LOAN)
        assert bundle.check(e.setting.guarantee).accepted
        statement, proof = bundle.facts["statement"], bundle.certificates[0]
        assert sentence(statement, proof).startswith("The loan: granted with ")
        rows, today = stated_rows(statement, rng, 200)
        assert (pipe.predict(rows[table.columns]) == "granted").all()
        assert pipe.predict(today[table.columns]) == ["refused"]
        missing = [f["name"] for f in statement["features"] if f["missing"]]
        assert missing == (["age"] if e.index == asked.index[0] else [])
        wide += sum("low" in f and f["low"] < f["high"] for f in statement["features"])
        # The input of the first layer, by the pipeline and from the codes of the certificate.
        value = pd.DataFrame([{f["name"]: f["value"] for f in statement["features"]}])
        net = parameters(e.setting.current.network)
        seen = np.array(proof.facts["input"]) * (net.scale or 1.0) + (net.shift or 0.0)
        if net.matrix:
            seen = np.array(net.matrix) @ seen + (net.offset or 0.0)
        np.testing.assert_allclose(seen, pipe[:-1].transform(value[table.columns])[0], atol=1e-9)
    assert len(found) >= 6
    assert wide >= 6
