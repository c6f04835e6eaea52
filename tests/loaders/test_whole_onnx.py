"""Whole ONNX files: the graph's own run by onnxruntime is the referee."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from onnx import TensorProto, helper
from scipy.special import expit
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from loaders.test_whole_sklearn import CLASSIFIERS, NUMBERS, PREPROCESSING, fitted, people
from proplace import Model
from proplace.errors import ModelNotSupported

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
# What skl2onnx itself does not write: a missing category, 'passthrough' as a step, both at once.
NOT_EXPORTED = {"imputer", "imputer behind a scaler", "nested", "infrequent dropped"}


def save(path, pipe, types, **options):
    graph = convert_sklearn(pipe, "model", types, options=options or None)
    path.write_bytes(graph.SerializeToString())
    return path


def by_column(frame):
    return [
        (
            c,
            FloatTensorType([None, 1])
            if frame[c].dtype.kind in "if"
            else StringTensorType([None, 1]),
        )
        for c in frame
    ]


def run(path, frame):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {
        entry.name: frame[[entry.name]].to_numpy(
            np.float32 if entry.type == "tensor(float)" else object
        )
        for entry in session.get_inputs()
    }
    return session.run(None, feeds)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
@pytest.mark.parametrize("name", [n for n in PREPROCESSING if n not in NOT_EXPORTED])
def test_every_prediction_is_onnxruntime_s_own(tmp_path, name, classifier):
    frame, y = people()
    pipe = fitted(name, classifier, frame, y)
    zipmap = name in ("pca", "drop first")
    path = save(tmp_path / "m.onnx", pipe, by_column(frame), zipmap=zipmap)
    model = Model.of(path)
    assert model.classes == ("no", "yes")
    assert model.network.precision == "float32"
    rows = model.encode(frame)
    clear = np.abs(model.network.logits(rows)[:, 0]) > 1e-4
    assert clear.mean() > 0.9 or name == "untouched numbers"  # which learns nothing
    label, probabilities = run(path, frame)
    assert (model.predict(frame) == label)[clear].all()
    assert (model.original(frame) == label).all()
    P = [row["yes"] for row in probabilities] if zipmap else probabilities[:, 1]
    z = model.network.logits(rows)[:, 0]
    np.testing.assert_allclose(expit(z), P, atol=1e-4)


def test_the_schema_is_that_of_the_pipeline(tmp_path):
    frame, y = people()
    for name in ("drop chosen", "scaled ordinal"):
        pipe = fitted(name, "mlp", frame, y)
        ours = Model.of(save(tmp_path / "m.onnx", pipe, by_column(frame))).schema
        theirs = Model.of(pipe).schema
        assert set(ours.by_name) == set(theirs.by_name)
        for feature, own in theirs.by_name.items():
            found = ours.by_name[feature]
            assert type(found) is type(own)
            if feature in NUMBERS:
                assert (found.offset, found.scale) == pytest.approx((own.offset, own.scale), 1e-6)
            else:
                assert found.labels == own.labels


def test_one_input_of_all_columns(tmp_path):
    frame, y = people(missing=True)
    X = frame[NUMBERS].to_numpy()
    pipe = make_pipeline(
        SimpleImputer(), StandardScaler(), MLPClassifier((5,), max_iter=20, random_state=0)
    ).fit(X, y)
    path = save(tmp_path / "m.onnx", pipe, [("rows", FloatTensorType([None, 2]))], zipmap=False)
    model = Model.of(path)
    assert list(model.schema.by_name) == ["x0", "x1"]
    assert model.schema.by_name["x1"].missing == pytest.approx(np.nanmean(X[:, 1]))
    table = pd.DataFrame(X, columns=["x0", "x1"])
    assert (model.predict(table) == pipe.predict(X)).all()
    assert (model.original(table) == pipe.predict(X)).all()


def test_numbers_as_labels(tmp_path):
    frame, y = people()
    pipe = fitted("drop first", "mlp", frame, np.where(y == "yes", 7, 3))
    model = Model.of(save(tmp_path / "m.onnx", pipe, by_column(frame), zipmap=False))
    assert model.classes == (3, 7)
    assert (model.predict(frame) == pipe.predict(frame)).mean() > 0.99


def test_three_classes(tmp_path):
    frame, _ = people()
    y = np.array(["bad", "fair", "good"])[np.digitize(frame.income, [45_000, 55_000])]
    for classifier in CLASSIFIERS:
        pipe = fitted("scaler and one-hot", classifier, frame, y)
        model = Model.of(save(tmp_path / "m.onnx", pipe, by_column(frame), zipmap=False))
        assert model.classes == ("bad", "fair", "good")
        assert (model.predict(frame) == pipe.predict(frame)).mean() > 0.99


def graph(tmp_path, nodes, *, producer="skl2onnx"):
    W = helper.make_tensor("W", TensorProto.FLOAT, [2, 1], [1.0, -2.0])
    M = helper.make_tensor("M", TensorProto.FLOAT, [2, 2], [1.0, 1.0, 0.5, 1.0])
    end = nodes[-1].output[0]
    nodes = [*nodes, helper.make_node("MatMul", [end, "W"], ["z"], name="layer")]
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, 2])
    logits = helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 1])
    made = helper.make_graph(nodes, "g", [rows], [logits], [W, M])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(made, producer_name=producer, opset_imports=opsets, ir_version=8)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_linear_map_is_fixed_only_where_a_pipeline_wrote_it(tmp_path):
    """Of two trained layers without a ReLU between them, neither is fixed."""
    nodes = [helper.make_node("MatMul", ["rows", "M"], ["u"], name="pca")]
    model = Model.of(graph(tmp_path, nodes))
    np.testing.assert_array_equal(model.network.layers[0].W, [[1.0, -2.0]])
    np.testing.assert_array_equal(model.network.input_map.matrix, [[1.0, 0.5], [1.0, 1.0]])
    with pytest.raises(ModelNotSupported, match="without a ReLU"):
        Model.of(graph(tmp_path, nodes, producer="pytorch"))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (helper.make_node("Tanh", ["rows"], ["u"], name="squash"), "Tanh"),
        (helper.make_node("Cast", ["rows"], ["i"], to=TensorProto.INT64), "rounds the values"),
    ],
)
def test_what_is_no_linear_map_is_refused(tmp_path, op, message):
    nodes = [op]
    if op.op_type == "Cast":
        nodes.append(helper.make_node("Cast", ["i"], ["u"], to=TensorProto.FLOAT))
    with pytest.raises(ModelNotSupported, match=message):
        Model.of(graph(tmp_path, nodes))
