"""Statements for readers follow from proofs: gaps, folded weights, original models."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import proplace as pp
from proplace.batch import explain_file
from proplace.core.errors import ResultsError, SchemaError
from support.errors import raises

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(RNG.normal(50.0, 10.0, (300, 3)).round(1), columns=["income", "debt", "age"])
CLASS = np.where(TABLE["income"] - TABLE["debt"] > 0, "yes", "no")


def fitted(*steps):
    net = MLPClassifier((6,), solver="lbfgs", max_iter=300, random_state=0, alpha=0.1)
    return make_pipeline(*steps, net).fit(TABLE, CLASS)


@pytest.fixture(scope="module")
def gaps():
    pipe = fitted(SimpleImputer(strategy="mean"), StandardScaler())
    refused = TABLE[pipe.predict(TABLE) == "no"].iloc[:4].copy()
    refused.iloc[1, 0] = np.nan
    refused.iloc[2, 2] = np.nan
    refused = refused[pipe.predict(refused) == "no"]
    return pipe, refused


def test_missing_cell_is_described_as_imputed(gaps):
    pipe, refused = gaps
    result = pp.Proplace(pipe, 0.003, k=5).fit(TABLE).explain(refused, "yes")
    assert all(e.found for e in result)
    for e, (_, row) in zip(result, refused.iterrows(), strict=True):
        missing = [name for name in TABLE if pd.isna(row[name])]
        assert list(e.imputed) == missing
        words = e.describe()
        assert ("The model replaces missing values" in words.sentence) == bool(missing)
        for name in missing:
            assert f"{name} by {e.original[name]:.0f}"[:8] in words.sentence
            assert dict(words.person)[name].startswith("missing, the model uses")
            assert e.original[name] == pytest.approx(TABLE[name].mean())
    assert sum(len(e.imputed) for e in result) >= 1


def test_stream_names_imputed_features_of_each_part(gaps):
    pipe, refused = gaps
    explainer = pp.Proplace(pipe, 0.003, k=5).fit(TABLE)
    whole = explainer.explain(refused, "yes", count=2)
    assert {e.imputed for e in whole} == {("age",), ()}
    parts = list(explainer.stream([refused], explainer.request("yes", count=2), every=0.0))
    assert len(parts) == len(refused)
    found = [e for part in parts for e in part]
    assert [(e.index, e.rank) for e in found] == [(e.index, e.rank) for e in whole]
    assert [e.imputed for e in found] == [e.imputed for e in whole]


def test_results_folder_contains_imputed_features(gaps, tmp_path):
    pipe, refused = gaps
    refused.to_csv(tmp_path / "people.csv", index=False)
    explainer = pp.Proplace(pipe, 0.003, k=5).fit(TABLE)
    result = explainer.explain(refused, "yes")
    request = explainer.request("yes")
    explain_file(explainer, tmp_path / "people.csv", tmp_path / "out", request)
    read = pp.read_results(tmp_path / "out")
    assert [e.imputed for e in read] == [e.imputed for e in result]
    assert [e.describe().sentence for e in read] == [e.describe().sentence for e in result]
    cells = pd.read_csv(tmp_path / "out" / "results.csv")
    for name in TABLE:  # an imputed value is not the person's own
        empty = [name in e.imputed for e in result]
        assert cells[f"original_{name}"].isna().tolist() == empty
        assert result.to_frame()[f"original_{name}"].isna().tolist() == empty
    for one, same in zip(read, result, strict=True):
        assert one.original.to_dict() == same.original.to_dict()
        np.testing.assert_array_equal(one.encoded_original, same.encoded_original)


def test_row_with_missing_and_bad_cell_has_no_imputed_feature(gaps):
    pipe, refused = gaps
    bad = refused.astype(object).iloc[:1].assign(age=None, debt="much")
    (e,) = pp.Proplace(pipe, 0.003, k=5).fit(TABLE).explain(bad, "yes")
    assert (e.status, e.imputed) == ("bad_input", ())


def test_range_without_models_own_value_is_refused(gaps):
    pipe, _ = gaps
    schema = pp.Schema([pp.Continuous(name, 60, 100, step=0.1) for name in TABLE])
    with raises(SchemaError, name="income", match="60.0 to"):
        pp.Model.of(pipe).with_schema(schema)
    # a mean is no multiple of the step, which is for answers
    pp.Model.of(pipe).with_schema(
        pp.Schema([pp.Continuous(name, 0, 100, step=0.1) for name in TABLE])
    )


def module(*, norm):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(5)] if norm else []
    made = nn.Sequential(nn.Linear(3, 5), *middle, nn.ReLU(), nn.Linear(5, 1)).double()
    X = torch.tensor(RNG.normal(size=(200, 3)))
    if norm:
        made.train()
        made(X)
    return made.eval(), X.numpy()


FOLDED = "those with batch norm folded in"


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("delta", [0.001, [(0.001, 0.002), (0.001, 0.001)]])
def test_sentence_names_trained_weights(norm, delta, tmp_path):
    source, X = module(norm=norm)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    explainer = pp.Proplace(source, delta, k=5).fit(frame)
    assert explainer.net_.folded == norm
    refused = frame[explainer.model_.predict(frame) == 0][:3]
    said = (
        "whose weights and biases each differ from the current model by at most 0.001"
        if delta == 0.001
        else "each differ from the current model by at most what is set for their layer"
    )
    result = explainer.explain(refused)
    assert all(said in e.describe().sentence for e in result)
    assert all(FOLDED not in e.describe().sentence for e in result)
    assert result.provenance.delta == (delta if delta == 0.001 else [list(pair) for pair in delta])
    cells = result.to_frame()["delta"]
    assert (cells == (0.001 if delta == 0.001 else "[[0.001, 0.002], [0.001, 0.001]]")).all()
    page = result.report(tmp_path / "page.html").read_text()
    assert FOLDED not in page
    refused.to_csv(tmp_path / "people.csv", index=False)
    explain_file(explainer, tmp_path / "people.csv", tmp_path / "out")
    read = pp.read_results(tmp_path / "out")
    assert [e.describe().sentence for e in read] == [e.describe().sentence for e in result]
    assert read[0].setting.current.shifts == explainer.shifts_
    assert read[0].setting.current.network == explainer.net_


def test_sentence_names_folded_weights():
    source, X = module(norm=True)
    net = pp.Model.of(source).network
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    box = pp.Shifts(*(pp.Shifts.of(net, 0.001).low, pp.Shifts.of(net, 0.001).high))
    explainer = pp.Proplace(source, box, k=5).fit(frame)
    for e in explainer.explain(frame[explainer.model_.predict(frame) == 0][:3]):
        assert FOLDED in e.describe().sentence


def test_results_folder_whose_batch_norm_was_changed_is_refused(tmp_path):
    source, X = module(norm=True)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    explainer = pp.Proplace(source, 0.001, k=5).fit(frame)
    frame[explainer.model_.predict(frame) == 0][:1].to_csv(tmp_path / "people.csv", index=False)
    explain_file(explainer, tmp_path / "people.csv", tmp_path / "out")
    path = tmp_path / "out" / "network.npz"
    arrays = dict(np.load(path))
    arrays["fold_rows0"] = arrays["fold_rows0"] / 2.0
    np.savez(path, **arrays)
    with raises(ResultsError, name="network.npz"):
        pp.read_results(tmp_path / "out")


def test_original_model_evaluates_people_with_target_class():
    pipe = fitted(StandardScaler())
    explainer = pp.Proplace(pipe, 0.003, k=5).fit(TABLE)
    accepted = TABLE[pipe.predict(TABLE) == "yes"][:4]
    assert {e.status for e in explainer.explain(accepted, "yes")} == {"already_valid"}
    pipe[-1].intercepts_[-1] -= 100.0  # afterwards it refuses everybody
    for e in explainer.explain(accepted, "yes"):
        assert (e.status, e.certificate) == ("model_mismatch", None)
        assert "'no' and not 'yes'" in e.reason


def test_withheld_counterfactual_keeps_no_claim():
    pipe = fitted(StandardScaler())
    refused = TABLE[pipe.predict(TABLE) == "no"][:4]
    explainer = pp.Proplace(pipe, 0.003, k=5).fit(TABLE)
    before = explainer.explain(refused, "yes")
    assert any(e.guaranteed_ranges for e in before)
    assert not any(np.isnan(e.plausibility) for e in before)
    pipe[-1].intercepts_[-1] -= 100.0
    for e in explainer.explain(refused, "yes"):
        assert e.status == "model_mismatch"
        assert (e.encoded_counterfactual, e.counterfactual, e.certificate) == (None, None, None)
        assert dict(e.guaranteed_ranges) == {}
        assert np.isnan([e.distance, e.margin, e.plausibility]).all()
        assert e.nearest_row is None


def test_pictures_of_models_with_matrix_in_front(tmp_path):
    pipe = fitted(StandardScaler(), PCA(2))
    result = (
        pp.Proplace(pipe, 0.003, k=5)
        .fit(TABLE)
        .explain(TABLE[pipe.predict(TABLE) == "no"][:2], "yes")
    )
    assert all(e.found for e in result)
    result[0].plot()
    result.plot()
    assert "<img" in result.report(tmp_path / "page.html").read_text()


def test_pictures_of_people_outside_of_range(tmp_path):
    net = pp.Network([([[-1.0, 0.5]], [0.2])])
    schema = pp.Schema(
        [
            pp.Continuous("debt", 0, 10, scaling="minmax"),
            pp.Continuous("age", 20, 60, scaling="minmax", direction="increasing"),
        ]
    )
    train = pd.DataFrame({"debt": [1.0, 2.0, 3.0, 9.0], "age": [30.0, 40.0, 50.0, 25.0]})
    person = pd.DataFrame({"debt": [9.5], "age": [63.0]})
    result = pp.Proplace(net, 0.01, schema=schema, k=3).fit(train).explain(person)
    assert result[0].found
    assert result[0].counterfactual["age"] == 63.0
    result[0].plot()
    result.plot()
    result.report(tmp_path / "page.html")


def test_drafted_schema_contains_imputed_values(tmp_path):
    """Also if it lies outside the range of the table."""
    from skl2onnx import to_onnx
    from typer.testing import CliRunner

    from proplace.cli import app

    pipe = fitted(SimpleImputer(strategy="constant", fill_value=-1.0), StandardScaler())
    TABLE.to_csv(tmp_path / "train.csv", index=False)
    model = to_onnx(pipe, TABLE[:1].astype("float32"), options={"zipmap": False})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    words = ["schema", tmp_path / "train.csv", "--model", tmp_path / "m.onnx"]
    done = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / "s.yaml")])
    assert done.exit_code == 0, done.output
    schema = pp.Schema.read(tmp_path / "s.yaml")
    assert pp.Schema.infer(TABLE, immutable=["age"]).by_name["income"].lower > 0.0
    assert [(f.lower, f.step) for f in schema.features] == [(-1.0, 0.1)] * 3
    row = TABLE[:1].astype(object)
    row.iloc[0, 0] = None
    assert not schema.problems(row)
