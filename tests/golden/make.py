"""Golden data: what the searches and the loaders gave, to compare after a change of the code.

    make golden        # prints every moved status, distance and digest, and saves the new ones

``answers.json`` holds one line per person: status, distance, and digests of the point and of its
certificate. There are 20 people for each of the paper's data sets, once with the paper's encoding and
once behind a scikit-learn pipeline. ``models.json`` describes the models of the end-to-end tests as the
loaders read them. Networks are stored in ``networks``, because training differs by processor.

Digests depend on the last digit of every sum, so they are compared before and after a change on one
machine only. The tests compare statuses and distances.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
from pandas.api.types import is_numeric_dtype
from sklearn.compose import make_column_transformer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, RobustScaler, StandardScaler

import proplace as pp
import real_data
from proplace.certification.certificate import digest as network_digest

FOLDER = Path(__file__).parent
PEOPLE = 20
TOLERANCE = 1e-7  # of distances, on any machine
ANSWERS, MODELS = FOLDER / "answers.json", FOLDER / "models.json"


class Case(NamedTuple):
    """One data set with a stored network, and the radius of the shift set."""

    dataset: str
    pipeline: bool
    widths: tuple[int, ...]
    delta: float

    @property
    def name(self):
        return f"{self.dataset}, {'own pipeline' if self.pipeline else 'paper encoding'}"

    @property
    def network(self):
        kind = "pipeline" if self.pipeline else "paper"
        return FOLDER / "networks" / f"{self.dataset}-{kind}.npz"


CASES = [
    Case("adult", False, (20, 20), 0.003),
    Case("compas", False, (20, 20), 0.025),
    Case("gmc", False, (20, 20), 0.045),
    Case("heloc", False, (20, 20), 0.007),
    Case("adult", True, (15, 15), 0.01),
    Case("compas", True, (15, 15), 0.02),
    Case("gmc", True, (10, 10), 0.03),
    Case("heloc", True, (15, 15), 0.007),
]
SCALERS = {"adult": RobustScaler}  # the others: StandardScaler


# -- people ------------------------------------------------------------------------------------


def answers(case, people=PEOPLE):
    """Explain the first refused people of a case: [status, distance, point, certificate] each."""
    data = real_data.dataset(case.dataset)
    order = np.random.default_rng(1).permutation(len(data.X))
    train, test = order[:2000], order[2000:6000]
    if case.pipeline:
        model, schema = pipeline(case, data), plain_schema(data)
        rows, refused = data.frame.iloc[train], data.frame.iloc[test]
        refused = refused[model.predict(refused) == 0]
    else:
        model = pp.Network.load(case.network)
        schema, rows = encoded_schema(data.X), data.X[train]
        refused = data.X[test]
        refused = refused[model.predict(refused) == 0]
    explainer = pp.Proplace(model, case.delta, schema=schema, time_limit=None).fit(rows)
    return [line(found) for found in explainer.explain(refused[:people], gap=0)]


def line(found):
    distance = None if found.encoded_counterfactual is None else found.distance
    point = (
        None
        if found.encoded_counterfactual is None
        else digest(found.encoded_counterfactual.tobytes())
    )
    proof = None if found.certificate is None else digest(found.certificate.to_json().encode())
    return [found.status, distance, point, proof]


def digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


def encoded_schema(X):
    """Features of encoded columns: 0/1 columns are binary, the others continuous without steps."""
    return pp.Schema(
        [
            pp.Binary(f"x{i}")
            if np.isin(column, (0.0, 1.0)).all()
            else pp.Continuous(f"x{i}", 0.0, 1.0, scaling="none")
            for i, column in enumerate(X.T)
        ]
    )


def words_of(frame):
    return [name for name in frame if not is_numeric_dtype(frame[name])]


def plain_schema(data):
    """Features in original units, without steps."""
    words = words_of(data.frame)
    return pp.Schema(
        [
            pp.Categorical(name, sorted(cells.unique()))
            if name in words
            else pp.Continuous(name, float(cells.min()), float(cells.max()))
            for name, cells in data.frame.items()
        ]
    )


def untrained(case, data):
    words = words_of(data.frame)
    scaler = SCALERS.get(case.dataset, StandardScaler)()
    numbers = [name for name in data.frame if name not in words]
    encoder = make_column_transformer((scaler, numbers), (OneHotEncoder(), words))
    return encoder, MLPClassifier(case.widths, max_iter=10, random_state=0)


def pipeline(case, data):
    """The pipeline of a case: the encoder is fitted, the network is the stored one."""
    order = np.random.default_rng(1).permutation(len(data.X))[:2000]
    encoder, mlp = untrained(case, data)
    X = encoder.fit_transform(data.frame.iloc[order])
    mlp.partial_fit(X[:200], data.y[order[:200]], classes=[0, 1])
    stored = pp.Network.load(case.network)
    mlp.coefs_ = [layer.W.T.copy() for layer in stored.layers]
    mlp.intercepts_ = [layer.b.copy() for layer in stored.layers]
    return make_pipeline(encoder, mlp)


def train(case):
    """Train and store the network of a case."""
    data = real_data.dataset(case.dataset)
    order = np.random.default_rng(1).permutation(len(data.X))[:8000]
    encoder, mlp = untrained(case, data)
    X = encoder.fit_transform(data.frame.iloc[order]) if case.pipeline else data.X[order]
    mlp.fit(X, data.y[order])
    layers = [(W.T, b) for W, b in zip(mlp.coefs_, mlp.intercepts_, strict=True)]
    case.network.parent.mkdir(exist_ok=True)
    pp.Network(layers).save(case.network)


# -- models ------------------------------------------------------------------------------------


def models(folder):
    """Describe every model of the end-to-end tests as the loaders read it."""
    from end_to_end.sources import SOURCES
    from end_to_end.tables import TABLES

    table = TABLES["loans"]()
    found = {}
    for name, make in SOURCES.items():
        source = make(table, folder)
        for way, given in (("object", source.given), ("file", source.file)):
            if given is not None:
                found[f"{name}, {way}"] = model_facts(given, folder)
    return found


def model_facts(given, folder):
    model = pp.Model.of(given)
    model.schema.write(folder / "schema.yaml")
    return {
        "widths": list(model.network.widths),
        "classes": [str(label) for label in model.classes],
        "columns": list(model.columns),
        "network": network_digest(model.network)[:16],
        "encoding": model.encoding[:16],
        "schema": digest((folder / "schema.yaml").read_bytes()),
    }


STRUCTURE = ("widths", "classes", "columns")  # the same on every machine


# -- command -----------------------------------------------------------------------------------


def moved(name, before, after):
    """Print the lines of a case that are not as they were."""
    if before is None:
        print(f"{name}: new")
        return
    if isinstance(before, list):
        before, after = dict(enumerate(before)), dict(enumerate(after))
    for key in sorted(set(before) | set(after), key=str):
        if before.get(key) != after.get(key):
            print(f"{name}, {key}: {before.get(key)} -> {after.get(key)}")


def stored(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(path, old, new):
    for name in new:
        moved(name, old.get(name), new[name])
    lines = [f"  {json.dumps(name)}: {one_line_each(facts)}" for name, facts in sorted(new.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def one_line_each(facts):
    if isinstance(facts, dict):
        return json.dumps(facts)
    return "[\n" + ",\n".join(f"    {json.dumps(fact)}" for fact in facts) + "\n  ]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--train", action="store_true", help="train the stored networks anew")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.name]
    for case in cases:
        if options.train or not case.network.exists():
            train(case)
    before = stored(ANSWERS)
    save(ANSWERS, before, before | {case.name: answers(case) for case in cases})
    if options.only in "models":
        with tempfile.TemporaryDirectory() as folder:
            save(MODELS, stored(MODELS), models(Path(folder)))


if __name__ == "__main__":
    main()
