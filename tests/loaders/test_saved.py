"""``Model.save`` and ``Model.load``: one file from the table to the class, without pickle."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import proplace as pp
from proplace.core.errors import ModelFileError

rng = np.random.default_rng(5)
N = 160
TABLE = pd.DataFrame(
    {
        "income": rng.integers(10, 90, N) * 1000,
        "rate": rng.uniform(0, 1.5, N),
        "job": pd.Series(rng.choice(["cook", "clerk", "no"], N), dtype=object),
        "grade": pd.Series(rng.choice(["low", "mid", "high"], N), dtype=object),
        "owner": rng.random(N) < 0.4,
    }
)
SCORE = TABLE["income"] / 50_000 - TABLE["rate"] + 0.5 * TABLE["owner"]
HOLES = TABLE.assign(rate=TABLE["rate"].where(rng.random(N) > 0.1))


def pipeline(table, labels, scaler):
    steps = make_column_transformer(
        (make_pipeline(SimpleImputer(), scaler), ["rate", "income"]),
        (OneHotEncoder(), ["job", "owner"]),
        (OrdinalEncoder(categories=[["low", "mid", "high"]]), ["grade"]),
        remainder="passthrough",
    )
    net = MLPClassifier((6, 5), max_iter=300, random_state=0)
    return make_pipeline(steps, net).fit(table, labels)


def copy_of(model, folder):
    model.save(folder / "model.npz")
    return pp.Model.load(folder / "model.npz")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("labels", "cutoff"),
    [
        (np.where(SCORE > 0.6, "approved", "refused"), None),
        (np.where(SCORE > 0.6, "approved", "refused"), {"approved": 0.7}),
        ((SCORE > 0.6).to_numpy(), 0.6),
        (np.digitize(SCORE, [0.2, 0.8]), None),
    ],
)
@pytest.mark.parametrize(
    ("table", "scaler"), [(TABLE, StandardScaler()), (HOLES, MinMaxScaler((-1, 2)))]
)
def test_a_copy_answers_as_the_pipeline(tmp_path, labels, cutoff, table, scaler):
    model = pp.Model.of(pipeline(table, labels, scaler), cutoff=cutoff)
    copy = copy_of(model, tmp_path)
    assert repr(copy) == repr(model)
    assert copy.encode(table).tobytes() == model.encode(table).tobytes()
    assert copy.coordinates == model.coordinates
    expected = model.predict_original(table)
    np.testing.assert_array_equal(copy.predict(table), expected)
    target = model.classes[-1]
    people = table[expected != target][:3]
    answers = [pp.Proplace(m, 0.001, k=5).fit(table).explain(people, target) for m in (model, copy)]
    first, second = (answer.to_frame().drop(columns="checked_with_original") for answer in answers)
    times = [name for name in first if "second" in name]
    pd.testing.assert_frame_equal(first.drop(columns=times), second.drop(columns=times))


def test_a_schema_and_labels_are_in_the_file(tmp_path):
    schema = pp.Schema(
        [
            pp.Continuous("income", 0, 100, step=5, unit="dollars", direction="increasing"),
            pp.Binary("owner", ["no", "yes"], immutable=True),
        ],
        rules=[pp.schema.Linear({"income": 1.0, "owner": 2.0}, upper=101.0)],
    )
    net = pp.Network([(np.array([[1.0, 0.5]]), np.array([-0.4]))])
    model = pp.Model.of(net).with_schema(schema).with_classes(["refused", "approved"])
    copy = copy_of(model, tmp_path)
    assert copy.to_dict() == model.to_dict()
    assert copy.schema == model.schema
    assert copy.classes == ("refused", "approved")
    assert copy_of(copy, tmp_path).to_dict() == model.to_dict()


def test_a_bare_network_stays_one(tmp_path):
    net = pp.Network([(np.array([[1.0, 0.5]]), np.array([-0.4]))])
    copy = copy_of(pp.Model.of(net), tmp_path)
    assert copy.bare
    assert not copy.labelled
    np.testing.assert_array_equal(copy.predict([[1, 1], [0, 0]]), [1, 0])


def rewritten(path, change):
    """Change the description in a saved file."""
    network = pp.Network.load(path)
    facts = pp.Model.load(path).to_dict()
    with path.open("wb") as file:
        network.write(file, json.dumps(change(facts)))


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: [],
        lambda facts: {**facts, "more": 1},
        lambda facts: {**facts, "features": facts["features"][:1]},
        lambda facts: {**facts, "features": 3},
        lambda facts: {**facts, "features": [{"kind": "other"}]},
        lambda facts: {**facts, "rules": [{"kind": "linear", "terms": {"none": 1}, "upper": 2}]},
        lambda facts: {**facts, "columns": ["x0"]},
        lambda facts: {**facts, "columns": None},
        lambda facts: {**facts, "classes": [0]},
        lambda facts: {**facts, "classes": [0, 0]},
        lambda facts: {**facts, "classes": [[], {}]},
        lambda facts: {**facts, "cutoff": [7, 0.5]},
        lambda facts: {**facts, "cutoff": [1, 2.0]},
        lambda facts: {**facts, "declared": "no"},
    ],
)
def test_a_damaged_description_is_refused(tmp_path, change):
    path = tmp_path / "model.npz"
    pp.Model.of(pp.Network([(np.array([[1.0, 0.5]]), np.array([-0.4]))])).save(path)
    rewritten(path, change)
    with pytest.raises(ModelFileError, match=r"save the model again with Model.save"):
        pp.Model.of(path)


def test_no_pickle_is_written(tmp_path):
    path = tmp_path / "model.npz"
    pp.Model.of(pp.Network([(np.array([[1.0]]), np.array([0.0]))])).save(path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                assert not np.lib.format.read_array(file, allow_pickle=False).dtype.hasobject
    with pytest.raises(ModelFileError, match=r"must end in \.npz"):
        pp.Model.of(path).save(tmp_path / "model.bin")
