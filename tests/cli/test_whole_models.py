"""The command line on a model with its own preprocessing, compared with the original model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from commands import good, run
from proplace.core.errors import SchemaError, TargetError
from proplace.project import Project
from support.errors import ANY, failed
from support.models import export_sklearn, fitted, people

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def lender(tmp_path_factory):
    """A pipeline with categories and a scaler, as an ONNX file, and its tables."""
    folder = tmp_path_factory.mktemp("lender")
    frame, y = people()
    frame = frame.drop(columns=["id", "grade"])
    pipe = fitted("drop first", "mlp", frame, y)
    export_sklearn(folder / "m.onnx", pipe, frame, zipmap=False)
    frame.to_csv(folder / "train.csv", index=False)
    refused = frame[pipe.predict(frame) == "no"].iloc[:12]
    refused.assign(name=[f"n{i}" for i in range(len(refused))]).to_csv(
        folder / "people.csv", index=False
    )
    return folder, pipe, refused


def words(folder, *more):
    return ("explain", "--model", folder / "m.onnx", "--train", folder / "train.csv", *more)


def test_every_answer_of_batch_is_accepted_by_model(lender, tmp_path):
    folder, pipe, refused = lender
    rest = ("--delta", 0.003, "explainer.k:", 5, "--target", "yes", "--id", "name")
    given = words(folder, "--input", folder / "people.csv", "--out", tmp_path / "out", *rest)
    good(*given)
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    found = results[results.status.isin(["optimal", "feasible"])]
    assert len(found) >= 8
    assert (pipe.predict(found[refused.columns]) == "yes").all()
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"))
    feeds = {
        e.name: found[[e.name]].to_numpy(np.float32 if "float" in e.type else object)
        for e in session.get_inputs()
    }
    assert (session.run(None, feeds)[0] == "yes").all()
    certificates = ("check", tmp_path / "out" / "certificates", "--model", folder / "m.onnx")
    assert len(good(*certificates, "--json").json["certificates"]) >= len(found)


def test_one_person_by_label(lender):
    folder, pipe, refused = lender
    person = [f"{name}={value}" for name, value in refused.iloc[0].items()]
    given = words(folder, "--delta", 0.003, "explainer.k:", 5, "--target", "yes", "--json")
    (answer,) = good(*given, *person).json
    assert pipe.predict(pd.DataFrame([answer["counterfactual"]])) == ["yes"]


@pytest.mark.parametrize(
    ("classes", "text", "label"),
    [
        ((0.0, 1.0), "1", 1.0),
        ((0.0, 1.0), "1.0", 1.0),
        ((0.0, 0.5), "0.5", 0.5),
        ((False, True), "true", True),
        ((False, True), "True", True),
        ((0, 1), "1", 1),
        (("0", "1"), "1", "1"),
    ],
)
def test_label_is_found_by_its_text(classes, text, label):
    assert Project(target=text).label(SimpleNamespace(classes=classes)) is label


def test_class_that_is_none_is_refused(lender):
    """The user may not have given '1', the default, so the error names the classes."""
    folder, _, _ = lender
    for given, value, hint in (
        ((), ANY, "1"),
        (("--target", "yess"), "yess", "did you mean 'yes'"),
    ):
        done = run(*words(folder, "--delta", 0.003, *given, "age=30"))
        failed(done, TargetError, value=value)
        assert "'no', 'yes'" in done.stderr
        assert hint in done.stderr


def test_certify_by_label(lender, tmp_path):
    folder, pipe, _ = lender
    good(
        *("certify", "--model", folder / "m.onnx", "--input", folder / "train.csv"),
        *("--delta", 0.003, "--target", "yes", "--out", tmp_path / "v.csv"),
    )
    verdicts = pd.read_csv(tmp_path / "v.csv")
    table = pd.read_csv(folder / "train.csv")
    own = pipe.predict(table)
    assert (verdicts["class"] == own).mean() > 0.99
    robust = verdicts.verdict == "robust"
    assert 0 < robust.sum() < len(table)
    assert (own[robust] == "yes").all()


def test_schema_of_model_is_its_own(lender, tmp_path):
    folder, pipe, refused = lender
    schema = tmp_path / "schema.yaml"
    good(
        *("schema", folder / "train.csv", "--model", folder / "m.onnx", "--out", schema),
        *("--increasing", "age"),
    )
    text = schema.read_text()
    assert "scaling:" not in text  # each model keeps its own, also a retrained one
    assert "dropfirst" in text
    out = tmp_path / "out"
    good(
        *words(folder, "--input", folder / "people.csv", "--out", out, "--schema", schema),
        *("--delta", 0.003, "explainer.k:", 5, "--target", "yes", "--id", "name"),
    )
    results = pd.read_csv(out / "results.csv")
    found = results[results.status.isin(["optimal", "feasible"])]
    assert len(found) >= 5
    assert (pipe.predict(found[refused.columns]) == "yes").all()
    assert (found.age.to_numpy() >= refused.age.to_numpy()[found.row]).all()


def test_schema_of_exported_file_fits_its_pipeline(lender, tmp_path):
    """The file has the constants of the pipeline in float32, and the proof is about the file."""
    folder, pipe, refused = lender
    path = tmp_path / "schema.yaml"
    good("schema", folder / "train.csv", "--model", folder / "m.onnx", "--out", path)
    drafted, train = pp.Schema.read(path), pd.read_csv(folder / "train.csv")
    scaled = pp.Model.of(folder / "m.onnx").with_schema(drafted).schema
    assert scaled != drafted
    both = []
    for given in (scaled, drafted):
        model = pp.Model.of(pipe).with_schema(given)
        scalings = [
            (f.offset, f.scale) for f in model.schema.features if isinstance(f, pp.Continuous)
        ]
        steps = pipe.named_steps["columntransformer"].named_transformers_
        (scaler,) = (step for step in steps.values() if isinstance(step, StandardScaler))
        assert scalings == list(zip(scaler.mean_, scaler.scale_, strict=True))
        both.append(pp.Proplace(pipe, 0.003, k=5, schema=given).fit(train).explain(refused, "yes"))
    assert [e.certificate.digest for e in both[0] if e.found] == [
        e.certificate.digest for e in both[1] if e.found
    ]
    assert any(e.found for e in both[0])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_true_and_false_need_no_schema(tmp_path, suffix):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"income": rng.uniform(1, 9, 99).round(2), "owner": rng.random(99) < 0.5})
    pp.Network([([[1.0, 3.0]], [-6.0])]).save(tmp_path / "m.npz")
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame.to_parquet(tmp_path / "train.parquet")
    words = ("--model", tmp_path / "m.npz", "--delta", 0.01)
    train = ("--train", tmp_path / f"train.{suffix}", "explainer.k:", 5)
    (answer,) = good("explain", *words, *train, "income=2", "owner=false", "--json").json
    assert answer["original"]["owner"] is False
    assert answer["counterfactual"]["owner"] in (True, False)
    facts = good("certify", *words, "--input", tmp_path / f"train.{suffix}", "--json").json
    robust = (frame.income + 3 * frame.owner - 6 >= 0.01 * (1 + frame.income + frame.owner)).sum()
    assert (facts["robust"], facts["bad_input"]) == (robust, 0)


def test_schema_drafted_without_model_scales_nothing_twice(tmp_path):
    """A min-max schema before a model with its own scaler made 73% of the results wrong."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(50, 10, 400), "b": rng.normal(1000, 200, 400)}).round(2)
    y = (X.a / 10 + X.b / 200 + rng.normal(0, 0.3, 400) > 10).astype(int)
    pipe = make_pipeline(
        StandardScaler(), MLPClassifier((8,), solver="lbfgs", max_iter=100, random_state=0)
    ).fit(X.to_numpy(), y)
    export_sklearn(tmp_path / "m.onnx", pipe, 2, zipmap=False)
    X.to_csv(tmp_path / "train.csv", index=False)
    refused = X[pipe.predict(X.to_numpy()) == 0][:15]
    refused.to_csv(tmp_path / "people.csv", index=False)
    schema = tmp_path / "schema.yaml"
    good("schema", tmp_path / "train.csv", "--out", schema)
    rest = ("--schema", schema, "--delta", 0.003, "explainer.k:", 5)
    out = tmp_path / "out"
    good(*words(tmp_path, "--input", tmp_path / "people.csv", "--out", out, *rest))
    results = pd.read_csv(out / "results.csv")
    found = results[results.status.isin(["optimal", "feasible"])]
    assert len(found) >= 10
    assert (pipe.predict(found[["a", "b"]].to_numpy()) == 1).all()
    # an explicit scaling is rejected
    schema.write_text(schema.read_text().replace("step:", "scaling: minmax, step:"))
    done = run(*words(tmp_path, "--input", tmp_path / "people.csv", "--out", tmp_path / "2", *rest))
    failed(done, SchemaError)
