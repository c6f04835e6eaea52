"""The original model evaluates training rows and counterfactuals, given as arrays or as tables."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from torch import nn

import proplace as pp
from proplace.baselines import Wachter
from proplace.core.errors import ModelMismatchError
from proplace.explain.record import explanation_json
from support.errors import raises

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(200, 3))
CLASS = (X.sum(axis=1) > 1.5).astype(int)
SCHEMA = pp.Schema([pp.Continuous(name, 0, 50, step=0.01) for name in "abc"])


def module(seed=0):
    """A small module near the boundary a + b + c = 1.5."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(4, 3) + 0.1 * torch.randn(4, 3))
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[1.0, 1.0, 1.0, 0.1]]))
        net[2].bias.fill_(-1.5)
    return net.eval()


def negate_torch(net):
    with torch.no_grad():
        net[-1].weight.neg_()
        net[-1].bias.neg_()


def sklearn_model():
    return MLPClassifier((6,), solver="lbfgs", max_iter=300, random_state=0).fit(X, CLASS)


def negate_sklearn(net):
    net.coefs_[-1] *= -1.0
    net.intercepts_[-1] *= -1.0


def keras_model():
    keras = pytest.importorskip("keras")
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    net.set_weights([np.ones((3, 1)), np.array([-1.5])])
    return net


def negate_keras(net):
    net.set_weights([-weights for weights in net.get_weights()])


KINDS = {
    "torch": (module, negate_torch),
    "sklearn": (sklearn_model, negate_sklearn),
    "keras": (keras_model, negate_keras),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def read(kind):
    make, negate = KINDS[kind]
    source = make()
    return pp.Model.of(source), lambda: negate(source)


def refused(model, count=6):
    return X[model.predict(X) == 0][:count]


@kinds
def test_fit_compares_every_row_of_array(kind):
    model, negate = read(kind)
    pp.Proplace(model, 0.002, k=5).fit(X)
    negate()
    with raises(ModelMismatchError, match="row 0"):
        pp.Proplace(model, 0.002, k=5).fit(X)
    with raises(ModelMismatchError, match="row 0"):
        Wachter(model).fit(X)


@kinds
def test_fit_compares_encoded_rows_of_schema(kind):
    model, negate = read(kind)
    rows = SCHEMA.encode(pd.DataFrame(np.round(50.0 * X, 2), columns=list("abc")))
    pp.Proplace(model, 0.002, schema=SCHEMA, k=5).fit(rows)
    negate()
    with raises(ModelMismatchError):
        pp.Proplace(model, 0.002, schema=SCHEMA, k=5).fit(rows)


@kinds
def test_explain_withholds_counterfactuals_of_arrays_that_original_refuses(kind):
    model, negate = read(kind)
    explainer = pp.Proplace(model, 0.002, k=5).fit(X)
    people = np.vstack([refused(model), X[model.predict(X) == 1][:2]])
    before = explainer.explain(people)
    assert [e.status for e in before[-2:]] == ["already_valid"] * 2
    assert all(e.checked_with_original for e in before)
    for e in before:
        assert model.predict_original(e.encoded_counterfactual[None])[0] == 1
    negate()
    after = explainer.explain(people)
    assert {e.status for e in after} == {"model_mismatch"}
    for e in after:
        assert (e.encoded_counterfactual, e.counterfactual, e.certificate) == (None, None, None)
    assert [e.index for e in after] == list(range(8))


@kinds
def test_parts_of_stream_and_encoded_rows_are_checked(kind):
    model, negate = read(kind)
    rows = SCHEMA.encode(pd.DataFrame(np.round(50.0 * X, 2), columns=list("abc")))
    explainer = pp.Proplace(model, 0.002, schema=SCHEMA, k=5).fit(rows)
    people = rows[explainer.net_.predict(rows) == 0][:3]
    parts = list(explainer.stream([people], explainer.request(count=2), every=0.0))
    assert len(parts) == 3
    assert all(e.found and e.checked_with_original for part in parts for e in part)
    negate()
    for part in explainer.stream([people], explainer.request(count=2), every=0.0):
        assert {e.status for e in part} == {"model_mismatch"}


def test_condition_in_forward_is_found_on_training_rows_or_counterfactual():
    """The module negates its output for a batch whose sum is above 0, from after it was read."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double().eval()
    model = pp.Model.of(module)
    plain = module.forward
    module.forward = lambda x: -plain(x) if x.sum() > 0 else plain(x)
    rows = RNG.normal(size=(300, 2))
    rows -= rows.mean(axis=0) + 0.1
    with raises(ModelMismatchError):
        pp.Proplace(model, 0.01, k=5).fit(-rows)
    explainer = pp.Proplace(model, 0.01, k=5).fit(rows)
    statuses = []
    for x in rows[model.predict(rows) == 0][:12]:
        (e,) = explainer.explain([x])
        statuses.append(e.status)
        if e.found:
            assert model.predict_original(e.encoded_counterfactual[None])[0] == 1
            assert e.checked_with_original
    assert statuses.count("model_mismatch") >= 3
    assert statuses.count("optimal") >= 3


def test_required_model_is_compared_and_evaluated_on_arrays():
    own, other = module(), module(1)
    model, required = pp.Model.of(own), pp.Model.of(other)
    explainer = pp.Proplace(model, 0.002, required_models=[required], k=5).fit(X)
    people = X[model.predict(X) == 0][:4]
    result = explainer.explain(people)
    assert all(e.found for e in result)
    assert [one["has_original"] for one in result.provenance.guarantee["members"]] == [True, True]
    negate_torch(other)
    for e in explainer.explain(people):
        assert e.status == "model_mismatch"
        assert e.reason.startswith("the original of network 2")
    with raises(ModelMismatchError, match="network 2"):
        pp.Proplace(model, 0.002, required_models=[required], k=5).fit(X)


@kinds
def test_certify_compares_its_rows_with_original(kind):
    model, negate = read(kind)
    report = pp.certify(model, X, 0.002)
    assert report.checked_with_original
    encoded = SCHEMA.encode(pd.DataFrame(np.round(50.0 * X, 2), columns=list("abc")))
    assert pp.certify(model, encoded, 0.002, schema=SCHEMA).checked_with_original
    negate()
    for call in (pp.certify, pp.output_range):
        with raises(ModelMismatchError):
            call(model, X, 0.002)
    with raises(ModelMismatchError):
        pp.worst_case(model, X[0], 0.002)
    with raises(ModelMismatchError):
        pp.certify(model, encoded, 0.002, schema=SCHEMA)
    with raises(ModelMismatchError):
        table = pd.DataFrame(X, columns=list("abc"))
        pp.certify(model, table, 0.002, schema=pp.Schema([pp.Continuous(n, 0, 1) for n in "abc"]))


# -- properties of a result --------------------------------------------------------------------------


def files(folder):
    """Sources whose original model cannot be run, by name."""
    net = pp.Model.of(module()).network
    net.save(folder / "net.npz")
    return {
        "network": net,
        "npz": folder / "net.npz",
        "onnx": dataclasses.replace(pp.Model.of(module()), _original=None),
    }


@pytest.mark.parametrize("kind", ["network", "npz", "onnx"])
def test_result_reports_that_original_was_not_run(kind, tmp_path):
    source = files(tmp_path)[kind]
    explainer = pp.Proplace(source, 0.002, k=5).fit(X)
    result = explainer.explain(refused(explainer.model_, 3))
    assert all(e.found for e in result)
    assert not any(e.checked_with_original for e in result)
    assert not result.to_frame()["checked_with_original"].any()
    assert result.provenance.has_original is False
    facts = explanation_json(result[0], result.provenance)
    assert facts["checked_with_original"] is False
    assert pp.certify(source, X, 0.002).checked_with_original is False
    page = result.report(tmp_path / "page.html").read_text()
    assert "It could not be run on any answer" in page
    assert "It was run on each" not in page


def test_result_reports_that_original_was_run(tmp_path):
    model, _ = read("torch")
    explainer = pp.Proplace(model, 0.002, k=5).fit(X)
    result = explainer.explain(refused(model, 3))
    assert result.to_frame()["checked_with_original"].all()
    assert result.provenance.has_original
    assert explanation_json(result[0], result.provenance)["checked_with_original"] is True
    page = result.report(tmp_path / "page.html").read_text()
    assert "It was run on each answer" in page
    (member,) = json.loads(json.dumps(result.provenance.to_dict()))["guarantee"]["members"]
    assert member["has_original"] is True
    mixed = pp.Explanations(
        [result[0], dataclasses.replace(result[1], checked_with_original=False)],
        provenance=result.provenance,
    )
    page = mixed.report(tmp_path / "mixed.html").read_text()
    assert "It could not be run on 1 of 2 answers" in page


def test_onnx_file_is_evaluated_without_runtime(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    path = tmp_path / "m.onnx"
    file = skl2onnx.to_onnx(sklearn_model(), X[:1].astype(np.float32))
    path.write_bytes(file.SerializeToString())
    for installed in (True, False):
        if not installed:
            monkeypatch.setitem(sys.modules, "onnxruntime", None)
        explainer = pp.Proplace(path, 0.002, k=5).fit(X)
        result = explainer.explain(refused(explainer.model_, 3))
        assert [e.checked_with_original for e in result if e.found] == [True] * 3
        assert result.provenance.has_original


def test_folder_and_ledger_keep_whether_original_was_run(tmp_path):
    from proplace.batch import explain_file

    for n, source in enumerate((module(), pp.Model.of(module()).network)):
        table = pd.DataFrame(np.round(50.0 * X, 2), columns=list("abc"))
        explainer = pp.Proplace(source, 0.002, schema=SCHEMA, k=5).fit(table)
        people = table[explainer.model_.predict(table) == 0][:2]
        path = tmp_path / f"{n}.csv"
        people.to_csv(path, index=False)
        explain_file(explainer, path, tmp_path / str(n))
        read_back = pp.read_results(tmp_path / str(n))
        assert [e.checked_with_original for e in read_back] == [n == 0] * 2
        assert read_back.provenance.has_original is (n == 0)
        with pp.Ledger(tmp_path / f"{n}.db") as ledger:
            issued = ledger.issue(explainer.explain(people), ["p", "q"])
            kept = [ledger.promise(i).explanation.checked_with_original for i in issued.ids]
            assert kept == [n == 0] * 2
