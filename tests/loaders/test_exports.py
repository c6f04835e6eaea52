"""Pipelines exported as ``to_onnx(pipe, table[:1])`` from the tables that people have."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import proplace as pp
from proplace.core.errors import ModelNotSupportedError, SchemaError

skl2onnx = pytest.importorskip("skl2onnx")
pytest.importorskip("onnxruntime")


def people(n=300):
    """A table of every type, and the class of each row."""
    rng = np.random.default_rng(0)
    income, age = rng.integers(20_000, 90_000, n), rng.integers(18, 80, n)
    table = pd.DataFrame(
        {
            "income": income,
            "children": rng.integers(0, 5, n),
            "age": age + 0.125,
            "rate": rng.random(n).astype(np.float32),
            "ratio": income / 30_000,
            "share": rng.random(n).astype(np.float32),
            "rich": income > 55_000,
            "degree": rng.choice(["none", "school"], n),
            "owner": rng.random(n) > 0.5,
            "job": pd.Series(rng.choice(["cook", "clerk", "nurse"], n), dtype=object),
            "town": pd.Categorical(rng.choice(["Ulm", "Bonn"], n)),
            "in-come": age - 18,
            "my age": age,
        }
    )
    wanted = income + 20_000 * table.owner + 5_000 * table.children > 70_000
    return table, np.where(wanted ^ (rng.random(n) < 0.05), "yes", "no")


TABLES = {
    "int64": ["income", "children"],
    "float64": ["age", "ratio"],
    "float32": ["rate", "share"],
    "bool": ["owner", "rich"],
    "text": ["job", "degree"],
    "category": ["town", "income"],
    "mixed": ["income", "children", "age", "owner", "job", "town"],
    "odd names": ["income", "in-come", "my age"],
}
CLASSIFIERS = [LogisticRegression(), MLPClassifier((6,), max_iter=200, random_state=0)]


def encoder(table):
    words = [name for name in table if table[name].dtype.kind not in "iufb"]
    flags = [name for name in table if table[name].dtype.kind == "b"]
    numbers = [name for name in table if name not in (*words, *flags)]
    steps = [(StandardScaler(), numbers), ("passthrough", flags), (OneHotEncoder(), words)]
    return make_column_transformer(*(step for step in steps if step[1]))


def export(folder, pipe, table, *, zipmap=True, name="model.onnx", options=None):
    made = skl2onnx.to_onnx(pipe, table[:1], options=options or {"zipmap": zipmap})
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.every(3)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("zipmap", [True, False], ids=["zipmap", "array"])
@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=["logistic", "mlp"])
@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES)
def test_export_of_table_answers_as_pipeline(tmp_path, columns, classifier, zipmap):
    table, y = people()
    table = table[columns]
    pipe = make_pipeline(encoder(table), classifier).fit(table, y)

    model = pp.Model.of(export(tmp_path, pipe, table, zipmap=zipmap))

    assert model.has_original
    assert (model.predict(table) == pipe.predict(table)).all()
    assert (model.predict_original(table) == pipe.predict(table)).all()
    model.check_agreement(table)


@pytest.mark.parametrize("kind", ["int64", "float64", "float32"])
def test_export_of_scaler_alone_takes_each_type_of_number(tmp_path, kind):
    table, y = people()
    table = table[["income", "children"]].astype(kind)
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, y)

    model = pp.Model.of(export(tmp_path, pipe, table)).with_column_names(list(table))

    assert model.has_original
    assert (model.predict(table) == pipe.predict(table)).all()


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_imputer_of_whole_numbers_is_read(tmp_path):
    table, y = people()
    table = table[["income", "children"]]
    imputer = SimpleImputer(strategy="constant", fill_value=0)
    pipe = make_pipeline(imputer, StandardScaler(), LogisticRegression()).fit(table, y)
    model = pp.Model.of(export(tmp_path, pipe, table)).with_column_names(list(table))

    assert (model.predict(table) == pipe.predict(table)).all()


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
def test_one_against_rest_is_read_from_its_scores(tmp_path, loss):
    table, y = people()
    table = table[["income", "age", "job"]]
    y = np.where(table.age > 60, "old", y)
    classifier = SGDClassifier(loss=loss, random_state=0)
    pipe = make_pipeline(encoder(table), classifier).fit(table, y)
    with pytest.raises(ModelNotSupportedError, match="'raw_scores': True"):
        pp.Model.of(export(tmp_path, pipe, table))

    scores = {id(classifier): {"raw_scores": True}}
    exported = export(tmp_path, pipe, table, options=scores)
    for source in (exported, pipe):
        assert (pp.Model.of(source).predict(table) == pipe.predict(table)).all()


def test_bool_column_of_export_is_binary_feature(tmp_path):
    table, y = people()
    table = table[["income", "owner"]]
    pipe = make_pipeline(encoder(table), LogisticRegression()).fit(table, y)
    model = pp.Model.of(export(tmp_path, pipe, table))

    assert model.schema.by_name["owner"] == pp.Binary("owner", [False, True])


@pytest.mark.parametrize("scaled", [False, True], ids=["passthrough", "scaled"])
def test_model_of_pipeline_counts_true_as_one(scaled):
    table, y = people()
    table = table[["income", "owner"]]
    front = StandardScaler() if scaled else encoder(table)
    pipe = make_pipeline(front, LogisticRegression()).fit(table, y)
    model = pp.Model.of(pipe)

    for same in (table, table.astype({"owner": "boolean"}), table.astype({"owner": object})):
        assert (model.predict(same) == pipe.predict(table)).all()
    model.check_agreement(table)


@pytest.mark.parametrize("scaled", [False, True], ids=["passthrough", "scaled"])
def test_counterfactuals_of_export_keep_names_and_types_of_table(tmp_path, scaled):
    table, y = people()
    table = table[["in-come", "income", "owner"]]
    front = encoder(table)
    if scaled:
        front = make_pipeline(front, StandardScaler())
    pipe = make_pipeline(front, LogisticRegression()).fit(table, y)
    refused = table[pipe.predict(table) == "no"][:3]

    explainer = pp.Proplace(export(tmp_path, pipe, table), 0.001).fit(table)
    answers = explainer.explain(refused, "yes")

    found = pd.DataFrame([answer.counterfactual for answer in answers])[list(table)]
    assert (pipe.predict(found.astype(table.dtypes)) == "yes").all()


def test_columns_that_exporters_write_alike_are_rejected_with_next_step_that_works(tmp_path):
    table, y = people()
    table = table[["my age", "in-come", "owner"]].rename(columns={"my age": "in come"})
    pipe = make_pipeline(encoder(table), LogisticRegression()).fit(table, y)
    model = pp.Model.of(export(tmp_path, pipe, table))

    with pytest.raises(SchemaError, match=r"'in come', 'in-come' alike.*with_column_names"):
        model.predict(table)
    named = model.with_column_names(list(table))
    assert (named.predict(table[table.columns[::-1]]) == pipe.predict(table)).all()


@pytest.mark.parametrize("scaled", [False, True], ids=["passthrough", "scaled"])
def test_shift_sets_of_pipelines_fit_table_with_booleans(scaled):
    table, y = people()
    table = table[["income", "owner"]]

    def fitted(part):
        front = StandardScaler() if scaled else encoder(table)
        return make_pipeline(front, LogisticRegression()).fit(table[part], y[part])

    pipes = [fitted(slice(250)), fitted(slice(25, 275)), fitted(slice(50, 300))]
    refused = table[pipes[0].predict(table) == "no"][:3]
    shifts = pp.Shifts.bounding(pipes, source=pipes[0])

    answers = (
        pp.Proplace(pipes[0], shifts, required_models=[pipes[1]]).fit(table).explain(refused, "yes")
    )

    found = pd.DataFrame([answer.counterfactual for answer in answers])[list(table)]
    for pipe in pipes:
        assert (pipe.predict(found.astype(table.dtypes)) == "yes").all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        # its first layer is trained, unlike the matrix of a PCA
        (MLPClassifier((3,), activation="identity", max_iter=20), "without a ReLU"),
        (CalibratedClassifierCV(LogisticRegression(), cv=2), "Export a single classifier"),
    ],
)
def test_exports_of_several_linear_maps_are_rejected(tmp_path, classifier, message):
    table, y = people(60)
    table = table[["income", "children"]]
    pipe = make_pipeline(StandardScaler(), classifier).fit(table, y)
    with pytest.raises(ModelNotSupportedError, match=message):
        pp.Model.of(export(tmp_path, pipe, table))


def test_export_that_cuts_decimals_is_rejected_with_next_step_that_works(tmp_path):
    table, y = people()
    table = table[["children", "age"]]
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, y)
    with pytest.raises(ModelNotSupportedError, match=r"export table.astype\(float\)\[:1\]"):
        pp.Model.of(export(tmp_path, pipe, table))
    model = pp.Model.of(export(tmp_path, pipe, table.astype(float)))
    assert (model.predict(table) == pipe.predict(table)).all()


def test_softmax_over_opposite_scores_keeps_both(tmp_path):
    table, y = people()
    table = table[["income", "children"]]
    pipe = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis()).fit(table, y)
    for zipmap in (True, False):
        model = pp.Model.of(export(tmp_path, pipe, table, zipmap=zipmap))
        assert (model.predict(table) == pipe.predict(table)).all()


def test_whole_numbers_are_scaled_without_onnxruntime(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    table, y = people()
    table = table[["income", "children"]]
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, y)
    model = pp.Model.of(export(tmp_path, pipe, table))
    assert (model.predict_original(table) == pipe.predict(table)).all()


def test_exported_tree_is_rejected_by_its_own_name(tmp_path):
    table, y = people()
    table = table[["income", "job"]]
    pipe = make_pipeline(encoder(table), DecisionTreeClassifier(max_depth=3)).fit(table, y)
    with pytest.raises(ModelNotSupportedError, match="TreeEnsembleClassifier"):
        pp.Model.of(export(tmp_path, pipe, table))
