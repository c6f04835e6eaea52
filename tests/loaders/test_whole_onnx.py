"""Whole ONNX files: the graph's own run by onnxruntime is the referee."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy.special import expit
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from loaders.test_whole_sklearn import CLASSIFIERS, NUMBERS, PREPROCESSING, fitted, people
from proplace import Model
from proplace.core.errors import ModelNotSupported

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
        (helper.make_node("Cast", ["rows"], ["i"], to=TensorProto.INT64), "cuts off decimals"),
    ],
)
def test_what_is_no_linear_map_is_refused(tmp_path, op, message):
    nodes = [op]
    if op.op_type == "Cast":
        nodes.append(helper.make_node("Cast", ["i"], ["u"], to=TensorProto.FLOAT))
    with pytest.raises(ModelNotSupported, match=message):
        Model.of(graph(tmp_path, nodes))


# -- torch writes other graphs ---------------------------------------------------------------------


def embedded(tmp_path, *, index=None, cast=True):
    """Two numbers and a category of three vectors; one logit comes out."""
    constants = {
        "numbers": np.int64([0, 1]),
        "place": np.int64(2) if index is None else np.int64(index),
        "V": np.float32([[1.0, -1.0], [0.5, 2.0], [-3.0, 0.0]]),
        "g": np.float32([2.0, -1.0, 0.5, 1.0]),
        "t": np.float32([0.1, 0.2, 0.3, 0.4]),
        "v": np.float32([1.0, 2.0, 3.0, 4.0]),
        "W": np.float32([[1.0, 0.3], [-1.0, 0.2], [0.4, 0.3], [2.0, -2.0]]),
        "L": np.float32([[1.0], [-0.5]]),
    }
    nodes = [
        helper.make_node("Gather", ["rows", "numbers"], ["n"], axis=1),
        helper.make_node("Gather", ["rows", "place"], ["c"], axis=1),
        helper.make_node("Cast", ["c"], ["i"], name="cut", to=TensorProto.INT64),
        helper.make_node("Gather", ["V", "i"] if cast else ["i", "numbers"], ["e"], name="look"),
        helper.make_node("Concat", ["n", "e"], ["a"], axis=1),
        helper.make_node("BatchNormalization", ["a", "g", "t", "t", "v"], ["b"]),
        helper.make_node("MatMul", ["b", "W"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "L"], ["z"]),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_embeddings_and_batch_norm_in_front(tmp_path):
    path = embedded(tmp_path)
    model = Model.of(path)
    assert model.schema.by_name["x2"].labels == (0, 1, 2)
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(0, 2, (300, 2)), rng.integers(3, size=300)]).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (z,) = session.run(None, {"rows": X})
    np.testing.assert_allclose(model.network.logits(model.encode(X)), z, atol=1e-5)
    assert (model.original(X) == (z[:, 0] >= 0)).all()


def test_a_single_logit_is_no_probability(tmp_path):
    """Rows whose logits happen to lie between 0 and 1 are of class 1, by the referee as well."""
    model = Model.of(embedded(tmp_path))
    X = np.column_stack([np.random.default_rng(0).normal(0, 2, (300, 2)), np.zeros(300)])
    z = model.network.logits(model.encode(X))[:, 0]
    small = X[(z > 0.01) & (z < 0.49)]
    assert len(small) > 3
    assert (model.original(small) == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": [1, 2]}, "'look' .Gather. looks up several columns at once; look up one"),
        ({"cast": False}, "'cut' .Cast. cuts off decimals"),
    ],
)
def test_other_ways_to_look_up_are_refused(tmp_path, change, message):
    with pytest.raises(ModelNotSupported, match=message):
        Model.of(embedded(tmp_path, **change))
