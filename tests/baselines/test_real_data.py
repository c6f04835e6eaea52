"""All methods on COMPAS, as it is encoded in the paper."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import proplace as pp
from proplace.baselines import METHODS, RobustBaseline, published

FOLDER = Path(
    os.environ.get("PROPLACE_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")
)
FEWER = {"PROTO-R": {"iterations": 300, "c_steps": 6}, "RBR": {"iterations": 200}}


@pytest.fixture(scope="module")
def compas():
    path = FOLDER / "compas.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there; set PROPLACE_DATA to the folder of the data sets")
    frame = pd.read_csv(path).sample(2500, random_state=0)
    y = frame.pop("score").astype(int).to_numpy()
    numbers = frame.select_dtypes("number")
    scaled = (numbers - numbers.min()) / (numbers.max() - numbers.min())
    words = frame.drop(columns=numbers.columns)
    flags = [(words[c] == words[c].max()).astype(float) for c in words]
    X = np.column_stack([scaled.to_numpy(), *flags])
    model = MLPClassifier((10, 10), max_iter=20, learning_rate_init=0.01, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return pp.Model.of(model).network, X


@pytest.mark.parametrize("name", ["WCE", "RBR", "RobX", "ROAR", "PROTO-R", "MILP-R", "RNCE"])
def test_published_options_on_compas(compas, name):
    net, X = compas
    refused = X[net.predict(X) == 0][:6]
    delta = 0.02
    options = published(name, "compas") | FEWER.get(name, {})
    robust = issubclass(METHODS[name], RobustBaseline)
    if robust:
        options["delta"] = delta
    result = METHODS[name](net, **options).fit(X).explain(refused)
    found = [e for e in result if e.found]
    assert len(found) >= 5
    points = np.array([e.encoded_counterfactual for e in found])
    assert (net.predict(points) == 1).all()
    assert np.mean([e.distance for e in found]) < 0.25
    if robust:
        verdicts = pp.certify(net, points, delta).robust
        assert verdicts.tolist() == [e.status == "feasible" for e in found]
        assert verdicts.mean() >= 0.8
