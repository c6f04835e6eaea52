from __future__ import annotations

import itertools
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from proplace.core.errors import MissingExtraError, ModelFileError, ModelNotSupportedError
from proplace.explain.robustness import certify
from proplace.loaders.model import Model
from support.models import (
    CLASSIFIERS,
    NUMBERS,
    PREPROCESSING,
    export_sklearn,
    fitted,
    people,
)
from support.networks import NetworkOf

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto
RNG = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def run(path, X):
    """All outputs of the graph on X."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (inputs,) = session.get_inputs()
    kind = np.float64 if "double" in inputs.type else np.float32
    return session.run(None, {inputs.name: X.astype(kind)})


def assert_close(mine, theirs):
    """Equal to 1e-6 of the largest value, which is what float32 allows."""
    atol = 1e-6 * max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(mine, theirs, rtol=0.0, atol=atol)


# -- scikit-learn ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "output"),
    [
        *itertools.product(["mlp", "logistic"], ["dictionaries", "array"]),
        ("logistic", "scores"),  # skl2onnx writes none of the other
    ],
)
def test_export_of_rows_of_numbers(*, data, name, kind, output, tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    last = MLPClassifier((8, 6), max_iter=40, random_state=0)
    last = LogisticRegression() if name == "logistic" else last
    pipe = make_pipeline(StandardScaler(), MinMaxScaler(), MaxAbsScaler(), last)
    pipe.fit(data.X, data.y)

    def exported(*, zipmap):
        options = {"zipmap": zipmap} | ({"raw_scores": True} if output == "scores" else {})
        graph = skl2onnx.to_onnx(pipe, data.X[:1].astype(kind), options={id(last): options})
        path = tmp_path / f"{zipmap}.onnx"
        path.write_bytes(graph.SerializeToString())
        return path

    path = exported(zipmap=output == "dictionaries")
    network, theirs = NetworkOf(path), NetworkOf(pipe)
    assert network.model.has_preprocessing
    assert network.precision == np.dtype(kind).name
    assert network.outputs == theirs.outputs
    for mine, layer in zip(network.layers, theirs.layers, strict=True):
        np.testing.assert_allclose(mine.W, layer.W, rtol=1e-12 if kind is np.float64 else 1e-5)
    if output == "dictionaries":  # which onnxruntime does not run in float64
        assert network.network == NetworkOf(exported(zipmap=False)).network
        return
    labels, given = run(path, data.fresh)
    X = data.fresh.astype(kind).astype(np.float64)
    np.testing.assert_allclose(network.predict_proba(X), pipe.predict_proba(X), atol=1e-6)
    if output == "scores":
        given = given[:, -network.outputs :]
        assert_close(network.logits(X), given)
        if network.outputs == 1:  # scores (-z, z) are no logits of a softmax
            with pytest.raises(ModelNotSupportedError, match="no probabilities, which a cut-off"):
                Model.of(path, cutoff={1: 0.8})
    else:
        tolerance = 1e-6 if kind is np.float32 else 1e-9
        np.testing.assert_allclose(network.predict_proba(X), given, atol=tolerance)
    p = np.sort(pipe.predict_proba(X), axis=1)
    clear = p[:, -1] - p[:, -2] > 1e-4
    assert clear.mean() > 0.9
    assert (network.predict(X) == labels)[clear].all()


# -- graphs made by hand -----------------------------------------------------------------------


def node(op, inputs, outputs, **attributes):
    ml = ("Scaler", "LinearClassifier", "ZipMap", "LabelEncoder", "ArrayFeatureExtractor")
    domain = "ai.onnx.ml" if op in ml else ""
    name = attributes.pop("name", f"{op}_{outputs[0]}")
    return helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes)


def write(
    path,
    nodes,
    constants=None,
    *,
    shape=("n", 3),
    outputs=("y",),
    inputs=("x",),
    opset=17,
    labels=(),
    label_type=TensorProto.INT64,
    functions=(),
    producer="",
):
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        + [helper.make_tensor_value_info(name, label_type, None) for name in labels],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in (constants or {}).items()
        ],
    )
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    if functions:
        sets.append(helper.make_opsetid("own", 1))
    model = helper.make_model(graph, opset_imports=sets, ir_version=8, functions=functions)
    model.producer_name = producer
    path.write_bytes(model.SerializeToString())
    return path


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


W1, B1, W2, B2, S = f32(3, 4), f32(4), f32(4, 2), f32(2), np.float32([1.5, 2.5, 3.5])
WEIGHTS = {"W1": W1, "B1": B1, "W2": W2, "B2": B2}
NORMS = {"S": S, "M3": f32(3), "G3": f32(3), "G4": f32(4), "V4": np.float32([0.1, 1.0, 2.0, 3.0])}
HEAD = [node("MatMul", ["h", "W2"], ["m"]), node("Add", ["m", "B2"], ["y"])]
FIRST = [node("MatMul", ["x", "W1"], ["m1"]), node("Add", ["m1", "B1"], ["a1"])]
HIDDEN = [*FIRST, node("Relu", ["a1"], ["h"])]

GRAPHS = {
    "matmul_add": ([*HIDDEN, *HEAD], WEIGHTS),
    "add_constant_first": (
        [
            node("MatMul", ["x", "W1"], ["m1"]),
            node("Add", ["B1", "m1"], ["a1"]),
            node("Relu", ["a1"], ["h"]),
            *HEAD,
        ],
        WEIGHTS,
    ),
    "batch_norm_everywhere": (
        [
            node("BatchNormalization", ["x", "G3", "S", "M3", "S"], ["n"], epsilon=0.01),
            node("MatMul", ["n", "W1"], ["m1"]),
            node("BatchNormalization", ["m1", "G4", "B1", "B1", "V4"], ["a1"]),
            node("Relu", ["a1"], ["r"]),
            node("BatchNormalization", ["r", "V4", "G4", "B1", "V4"], ["h"]),
            *HEAD,
        ],
        WEIGHTS | NORMS,
    ),
    "scalar_bias_and_sub": (
        [
            node("MatMul", ["x", "W1"], ["m1"]),
            node("Sub", ["m1", "c"], ["a1"]),
            node("Relu", ["a1"], ["h"]),
            *HEAD,
        ],
        WEIGHTS | {"c": np.float32(0.25)},
    ),
    "gemm_options": (
        [
            node("Gemm", ["x", "W1", "C"], ["g"], alpha=0.5, beta=2.0),
            node("Relu", ["g"], ["h"]),
            node("Gemm", ["h", "W2T"], ["y"], transB=1),
        ],
        WEIGHTS | {"C": f32(1, 4), "W2T": W2.T.copy()},
    ),
    "scalar_c": (
        [node("Gemm", ["x", "W1", "c"], ["a1"]), node("Relu", ["a1"], ["h"]), *HEAD],
        WEIGHTS | {"c": np.float32(0.5)},
    ),
    "scaled_in_front": (
        [
            node("Sub", ["x", "S"], ["s1"]),
            node("Div", ["s1", "S"], ["s2"]),
            node("Mul", ["s2", "two"], ["s3"]),
            node("Add", ["S", "s3"], ["s4"]),
            node("Sub", ["one", "s4"], ["s5"]),
            node("MatMul", ["s5", "W1"], ["a1"]),
            node("Relu", ["a1"], ["h"]),
            *HEAD,
        ],
        WEIGHTS | {"S": S, "two": np.float32([2.0]), "one": np.float32(1.0)},
    ),
    "scaler": (
        [
            node("Scaler", ["x"], ["s"], offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 4.0]),
            node("Scaler", ["s"], ["t"], offset=[0.5], scale=[3.0]),
            node("MatMul", ["t", "W1"], ["a1"]),
            node("Relu", ["a1"], ["h"]),
            *HEAD,
        ],
        WEIGHTS,
    ),
    "nothing_in_between": (
        [
            node("Identity", ["x"], ["x1"]),
            node("Cast", ["x1"], ["x2"], to=TensorProto.DOUBLE),
            node("Cast", ["x2"], ["x3"], to=TensorProto.FLOAT),
            node("Flatten", ["x3"], ["x4"]),
            node("Reshape", ["x4", "keep"], ["x5"]),
            node("Reshape", ["x5", "also"], ["x6"]),
            node("MatMul", ["x6", "W1"], ["a1"]),
            node("Relu", ["a1"], ["r"]),
            node("Relu", ["r"], ["r2"]),
            node("Dropout", ["r2"], ["h"]),
            *HEAD,
        ],
        WEIGHTS | {"keep": np.int64([-1, 3]), "also": np.int64([0, -1])},
    ),
    "computed_shape": (
        [
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "zero"], ["rows"]),
            node("Concat", ["rows", "minus"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["x1"]),
            node("MatMul", ["x1", "W1"], ["a1"]),
            node("Relu", ["a1"], ["h"]),
            *HEAD,
        ],
        WEIGHTS | {"zero": np.int64([0]), "minus": np.int64([-1])},
    ),
    "folded_constants": (
        [
            node("Constant", [], ["raw"], value=numpy_helper.from_array(W1.T.copy())),
            node("Transpose", ["raw"], ["turned"], perm=[1, 0]),
            node("Identity", ["turned"], ["W"]),
            node("Cast", ["B64"], ["B32"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["B32", "zero"], ["B"]),
            node("MatMul", ["x", "W"], ["m1"]),
            node("Add", ["m1", "B"], ["a1"]),
            node("Relu", ["a1"], ["h"]),
            node("Reshape", ["flatW2", "shape"], ["V"]),
            node("MatMul", ["h", "V"], ["m"]),
            node("Squeeze", ["B22", "zero"], ["Bs"]),
            node("Mul", ["Bs", "half"], ["Bh"]),
            node("Add", ["m", "Bh"], ["y"]),
        ],
        {
            "B64": B1.astype(np.float64),
            "zero": np.int64([0]),
            "flatW2": W2.ravel(),
            "shape": np.int64([4, -1]),
            "B22": B2[None, :],
            "half": np.float32(0.5),
        },
    ),
    "scaled_behind": (
        [*HIDDEN, node("Mul", ["h", "C4"], ["g"]), node("MatMul", ["g", "W2"], ["y"])],
        WEIGHTS | {"C4": np.float32([1.0, 2.0, 3.0, 4.0])},
    ),
    "columns_of_transposed_rows": (
        [
            node("Transpose", ["x"], ["xt"], perm=[1, 0]),
            node("Gather", ["xt", "turn"], ["g"], axis=0),
            node("GatherND", ["g", "places"], ["n"]),
            node("Transpose", ["n"], ["x1"], perm=[1, 0]),
            node("MatMul", ["x1", "W1"], ["a1"]),
            node("Relu", ["a1"], ["h"]),
            *HEAD,
        ],
        WEIGHTS | {"turn": np.int64([2, 0, 1]), "places": np.int64([[1], [2], [0]])},
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name, tmp_path):
    path = write(tmp_path / "model.onnx", *GRAPHS[name])
    X = RNG.standard_normal((40, 3)).astype(np.float32).astype(np.float64)
    network = NetworkOf(path)
    assert_close(network.logits(X), run(path, X)[0])
    assert network.widths == (4,)
    scaled = name in ("scaled_in_front", "scaler", "batch_norm_everywhere")
    assert network.model.has_preprocessing == scaled


def test_batch_and_inputs_without_size(tmp_path):
    path = write(tmp_path / "a.onnx", *GRAPHS["scaled_in_front"], shape=("n", "d"))
    assert NetworkOf(path).inputs == 3
    path = write(tmp_path / "b.onnx", *GRAPHS["matmul_add"], shape=None)
    assert NetworkOf(path).inputs == 3


def classifier(**attributes):
    options = {
        "coefficients": [1.0, 2.0, 3.0, -1.0, -2.0, -3.0],
        "intercepts": [0.5, -0.5],
        "classlabels_ints": [0, 1],
        "post_transform": "LOGISTIC",
    }
    return node("LinearClassifier", ["x"], ["k", "y"], **(options | attributes))


def test_linear_classifier_with_softmax(tmp_path):
    path = write(tmp_path / "model.onnx", [classifier(post_transform="SOFTMAX")])
    X = RNG.standard_normal((20, 3)).astype(np.float32).astype(np.float64)
    assert_close(NetworkOf(path).predict_proba(X), run(path, X)[0])


def test_one_row_of_coefficients(tmp_path):
    path = write(
        tmp_path / "model.onnx", [classifier(coefficients=[1.0, 2.0, 3.0], intercepts=[0.5])]
    )
    X = RNG.standard_normal((20, 3)).astype(np.float32).astype(np.float64)
    p = NetworkOf(path).predict_proba(X)
    assert_close(p, run(path, X)[0])


# -- what comes behind the logits --------------------------------------------------------------

ONE = [node("MatMul", ["x", "w"], ["z"])]
P = [*ONE, node("Sigmoid", ["z"], ["p"])]
SOFT = [*HIDDEN, *HEAD, node("Softmax", ["y"], ["s"], axis=1)]
CONSTANTS = {"w": np.float32([[1.0], [2.0], [-1.0]]), "zero": np.float32(0.0), **WEIGHTS} | {
    name: np.float32(value)
    for name, value in {"one": 1, "two": 2, "half": 0.5, "many": 5, "most": 0.7, "near": 0.5001}.items()
} | {"i0": np.int64([0]), "i1": np.int64([1]), "back": np.int64([1, 0])}  # fmt: skip
LABEL = {"bool": TensorProto.BOOL, "int": TensorProto.INT64, "text": TensorProto.STRING}

# Each contradicts the logits: nodes, float outputs, label outputs and their type.
CONTRADICTIONS = {
    "one_minus_sigmoid": ([*P, node("Sub", ["one", "p"], ["q"])], ["q"], [], "int"),
    "less": ([*ONE, node("Less", ["z", "many"], ["k"])], [], ["k"], "bool"),
    "less_than_zero": ([*ONE, node("Less", ["z", "zero"], ["k"])], [], ["k"], "bool"),
    "not_greater": (
        [*ONE, node("Greater", ["z", "zero"], ["g"]), node("Not", ["g"], ["k"])],
        [],
        ["k"],
        "bool",
    ),
    "high_threshold": ([*P, node("Greater", ["p", "most"], ["k"])], [], ["k"], "bool"),
    "slightly_high_threshold": ([*P, node("Greater", ["p", "near"], ["k"])], [], ["k"], "bool"),
    "probability_as_logit_threshold": ([*ONE, node("Greater", ["z", "half"], ["k"])], [], ["k"], "bool"),
    "threshold_beside_probability": ([*P, node("Greater", ["p", "most"], ["k"])], ["p"], ["k"], "bool"),
    "doubled": ([*P, node("Mul", ["p", "two"], ["q"])], ["q"], [], "int"),
    "shifted": ([*P, node("Add", ["p", "one"], ["q"])], ["q"], [], "int"),
    "negated_probability": ([*P, node("Neg", ["p"], ["q"])], ["q"], [], "int"),
    "sigmoid_of_sigmoid": ([*P, node("Sigmoid", ["p"], ["q"])], ["q"], [], "int"),
    "classes_swapped": (
        [*P, node("Sub", ["one", "p"], ["q"]), node("Concat", ["p", "q"], ["b"], axis=1)],
        ["b"],
        [],
        "int",
    ),
    "where_swaps": (
        [*P, node("Greater", ["p", "half"], ["g"]), node("Where", ["g", "i0", "i1"], ["k"])],
        [],
        ["k"],
        "int",
    ),
    "argmin": ([*SOFT, node("ArgMin", ["s"], ["k"], axis=1)], ["s"], ["k"], "int"),
    "top_of_the_smallest": (
        [*SOFT, node("TopK", ["s", "i1"], ["v", "k"], axis=1, largest=0)],
        ["s"],
        ["k"],
        "int",
    ),
    "argmax_along_rows": ([*SOFT, node("ArgMax", ["s"], ["k"], axis=0)], ["s"], ["k"], "int"),
    "columns_swapped": ([*SOFT, node("Gather", ["s", "back"], ["q"], axis=1)], ["q"], [], "int"),
    "labels_of_swapped_columns": (
        [
            *SOFT,
            node("Gather", ["s", "back"], ["q"], axis=1),
            node("ArgMax", ["q"], ["k"], axis=1),
        ],
        ["s"],
        ["k"],
        "int",
    ),
    "labels_in_another_order": (
        [
            *SOFT,
            node("ArgMax", ["s"], ["a"], axis=1),
            node("LabelEncoder", ["a"], ["k"], keys_int64s=[0, 1], values_int64s=[1, 0]),
        ],
        ["s"],
        ["k"],
        "int",
    ),
    "names_in_another_order": (
        [
            *SOFT,
            node("ArgMax", ["s"], ["a"], axis=1),
            node("LabelEncoder", ["a"], ["k"], keys_int64s=[0, 1], values_strings=["b", "a"]),
        ],
        ["s"],
        ["k"],
        "text",
    ),
    "one_class_only": ([*SOFT, node("ReduceMax", ["s"], ["q"], axes=[1])], ["q"], [], "int"),
    "first_column": ([*SOFT, node("Gather", ["s", "i0"], ["q"], axis=1)], ["q"], [], "int"),
    "constant_beside": ([*SOFT, node("Identity", ["one"], ["q"])], ["s", "q"], [], "int"),
    "zip_map_order": (
        [*SOFT, node("ZipMap", ["s"], ["q"], classlabels_int64s=[1, 0])],
        ["q"],
        [],
        "int",
    ),
    "zip_map_length": (
        [*SOFT, node("ZipMap", ["s"], ["q"], classlabels_int64s=[0, 1, 2])],
        ["q"],
        [],
        "int",
    ),
    "classifier_labels": ([classifier(classlabels_ints=[1, 0])], ["y"], ["k"], "int"),
    "classifier_names": (
        [classifier(classlabels_ints=None, classlabels_strings=["b", "a"])],
        ["y"],
        ["k"],
        "text",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_outputs_that_contradict_logits_are_refused(name, tmp_path):
    """From the content of the graph, before it runs."""
    nodes, outputs, labels, kind = CONTRADICTIONS[name]
    path = tmp_path / "model.onnx"
    write(path, nodes, CONSTANTS, outputs=outputs, labels=labels, label_type=LABEL[kind])
    with pytest.raises(ModelNotSupportedError, match=r"model\.onnx: output '[qkb]' (is|names)"):
        NetworkOf(path)


@pytest.mark.parametrize(
    "last",
    [
        node("Cast", ["named"], ["q"], to=TensorProto.FLOAT),
        node("Reshape", ["named", "i0"], ["q"]),
        node("Neg", ["named"], ["q"]),
        node("ZipMap", ["named"], ["q"], classlabels_int64s=[0, 1]),
    ],
    ids=lambda last: last.op_type,
)
def test_values_by_name_are_not_worked_out_further(tmp_path, last):
    """The output of a ZipMap is not an array, and no exporter continues after it."""
    nodes = [*SOFT, node("ZipMap", ["s"], ["named"], classlabels_int64s=[0, 1]), last]
    path = write(tmp_path / "model.onnx", nodes, CONSTANTS, outputs=("q",))
    with pytest.raises(ModelNotSupportedError, match=r"takes values by name, which is not read"):
        NetworkOf(path)


CONSISTENT = {
    "label": ([*ONE, node("Greater", ["z", "zero"], ["k"])], [], ["k"], "bool"),
    "probability_and_label": (
        [*P, node("GreaterOrEqual", ["p", "half"], ["g"]), node("Where", ["g", "i1", "i0"], ["k"])],
        ["p"],
        ["k"],
        "int",
    ),
    "not_less": (
        [*ONE, node("Less", ["z", "zero"], ["g"]), node("Not", ["g"], ["k"])],
        [],
        ["k"],
        "bool",
    ),
    "both": (
        [*P, node("Sub", ["one", "p"], ["q"]), node("Concat", ["q", "p"], ["b"], axis=1)],
        ["b"],
        [],
        "int",
    ),
    "names": (
        [
            *SOFT,
            node("ArgMax", ["s"], ["a"], axis=1, keepdims=0),
            node("LabelEncoder", ["a"], ["k"], keys_int64s=[0, 1], values_strings=["no", "yes"]),
        ],
        ["s"],
        ["k"],
        "text",
    ),
    "numbers_of_classes": (
        [
            *SOFT,
            node("ArgMax", ["s"], ["a"], axis=1),
            node("LabelEncoder", ["a"], ["k"], keys_int64s=[0, 1], values_int64s=[3, 7]),
        ],
        ["s"],
        ["k"],
        "int",
    ),
    "top": ([*SOFT, node("TopK", ["s", "i1"], ["v", "k"], axis=1)], ["s"], ["k"], "int"),
    "clipped": ([*P, node("Clip", ["p", "zero", "one"], ["q"])], ["q"], [], "int"),
    "swapped_twice": (
        [
            *SOFT,
            node("Gather", ["s", "back"], ["t"], axis=1),
            node("Slice", ["t", "i0", "i1", "i1"], ["one_p"]),
            node("Slice", ["t", "i1", "two_i", "i1"], ["zero_p"]),
            node("Concat", ["zero_p", "one_p"], ["q"], axis=1),
        ],
        ["q"],
        [],
        "int",
    ),
    "logits_and_probabilities": (SOFT, ["y", "s"], [], "int"),
    "log_of_softmax": ([*SOFT, node("Log", ["s"], ["q"])], ["q"], [], "int"),
}


@pytest.mark.parametrize("name", CONSISTENT)
def test_outputs_that_follow_from_logits_are_read(name, tmp_path):
    nodes, outputs, labels, kind = CONSISTENT[name]
    constants = CONSTANTS | {"two_i": np.int64([2])}
    path = tmp_path / "model.onnx"
    write(path, nodes, constants, outputs=outputs, labels=labels, label_type=LABEL[kind])
    network = NetworkOf(path)
    X = RNG.standard_normal((50, 3)).astype(np.float32).astype(np.float64)
    if labels:
        given = np.ravel(run(path, X)[-1]).tolist()
        names = sorted(set(given))
        assert len(names) == 2
        assert network.predict(X).tolist() == [names.index(value) for value in given]


def test_no_output(tmp_path):
    nodes = [*HIDDEN, *HEAD, node("ArgMax", ["y"], ["k"], axis=1)]
    path = write(tmp_path / "model.onnx", nodes, WEIGHTS, outputs=())
    with pytest.raises(ModelFileError, match="has no output"):
        NetworkOf(path)


def test_graph_is_run_for_comparison(tmp_path, monkeypatch):
    """Whatever the reader gets wrong, onnxruntime shows it."""
    path = write(tmp_path / "model.onnx", *GRAPHS["matmul_add"])
    NetworkOf(path)
    monkeypatch.setattr("proplace.loaders.layers.Chain.add_bias", lambda self, where, b: None)
    with pytest.raises(ModelNotSupportedError, match=r"'y' of the graph differs"):
        NetworkOf(path)


def test_labels_are_compared_with_own_run(tmp_path, monkeypatch):
    nodes = [*ONE, node("Add", ["z", "one"], ["a"]), node("Greater", ["a", "zero"], ["k"])]
    path = tmp_path / "m.onnx"
    write(path, nodes, CONSTANTS, outputs=(), labels=("k",), label_type=LABEL["bool"])
    NetworkOf(path)
    monkeypatch.setattr("proplace.loaders.layers.Chain.add_bias", lambda self, where, b: None)
    with pytest.raises(ModelNotSupportedError, match=r"'k' of the graph differs"):
        NetworkOf(path)


def test_only_imported_nodes_are_run(tmp_path, monkeypatch):
    seen = []
    session = runtime.InferenceSession

    def watched(data, options, providers):
        seen.append(data)
        return session(data, options, providers=providers)

    monkeypatch.setattr(runtime, "InferenceSession", watched)
    dead = node("ConstantOfShape", ["size"], ["huge"])
    nodes, constants = GRAPHS["matmul_add"]
    path = write(tmp_path / "m.onnx", [dead, *nodes], constants | {"size": np.int64([10**12])})
    NetworkOf(path)
    (data,) = seen
    assert "ConstantOfShape" not in {
        n.op_type for n in onnx.load_model_from_string(data).graph.node
    }


def test_classes_that_are_named_in_two_ways(tmp_path):
    names = node("ZipMap", ["y"], ["q"], classlabels_int64s=[0, 1])
    for labels in ([0, 1], [0, 127]):
        nodes = [classifier(classlabels_ints=labels), names]
        path = write(tmp_path / "model.onnx", nodes, outputs=("q",), labels=("k",))
        if labels == [0, 1]:
            assert NetworkOf(path).outputs == 1
            continue
        with pytest.raises(ModelNotSupportedError, match=r"name the classes in two ways .*127\]"):
            NetworkOf(path)


def test_attributes_of_another_type(tmp_path):
    nodes = [node("Constant", [], ["c"], value=3), node("MatMul", ["x", "c"], ["y"])]
    with pytest.raises(ModelNotSupportedError, match=r"\(Constant\) holds 'value'. Only numbers"):
        NetworkOf(write(tmp_path / "constant.onnx", nodes))
    path = write(tmp_path / "transform.onnx", [classifier(post_transform=3)], CONSTANTS)
    with pytest.raises(ModelNotSupportedError, match="2 classes and post_transform '3'"):
        NetworkOf(path)


@pytest.mark.parametrize("batch", [1, 3, 64, 200])
def test_fixed_batch_is_compared_too(tmp_path, monkeypatch, batch):
    path = write(tmp_path / "model.onnx", *GRAPHS["matmul_add"], shape=(batch, 3))
    NetworkOf(path)
    monkeypatch.setattr("proplace.loaders.layers.Chain.add_bias", lambda self, where, b: None)
    with pytest.raises(ModelNotSupportedError, match="of the graph differs"):
        NetworkOf(path)


def test_onnxruntime_is_not_needed(tmp_path, monkeypatch):
    path = write(tmp_path / "model.onnx", *GRAPHS["matmul_add"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert NetworkOf(path).inputs == 3


def test_constants_keep_their_rounding(tmp_path):
    fine = np.float64([[1.0 / 3.0], [2.0], [3.0]])
    nodes = [node("Cast", ["W"], ["V"], to=TensorProto.FLOAT), node("MatMul", ["x", "V"], ["y"])]
    network = NetworkOf(write(tmp_path / "model.onnx", nodes, {"W": fine}))
    np.testing.assert_array_equal(network.layers[0].W[0], fine.astype(np.float32)[:, 0])
    assert network.precision == "float32"


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("whole", [False, True])
def test_casts_to_half_precision_are_rejected(tmp_path, kind, whole):
    """Rows, neurons or constants can be cast."""
    to, back = getattr(TensorProto, kind), {"to": TensorProto.FLOAT}
    rows = [
        node("Cast", ["x"], ["u"], to=to),
        node("Cast", ["u"], ["v"], **back),
        node("MatMul", ["v", "W"], ["y"]),
    ]
    weights = [
        node("Cast", ["W"], ["U"], to=to),
        node("Cast", ["U"], ["V"], **back),
        node("MatMul", ["x", "V"], ["y"]),
    ]
    neurons = [
        node("MatMul", ["x", "W"], ["a"]),
        node("Cast", ["a"], ["b"], to=to),
        node("Cast", ["b"], ["y"], **back),
    ]
    constants = {"W": np.float32([[1.0 / 3.0], [2.0], [3.0]])}
    for nodes in (rows, weights, neurons):
        path = write(tmp_path / "model.onnx", nodes, constants)
        with pytest.raises(
            ModelNotSupportedError, match=rf"Cast\) makes {kind.lower()} numbers.*float"
        ):
            Model.of(path) if whole else NetworkOf(path)


# -- pipelines: onnxruntime itself gives the classes ----------------------------------------------

# Exports that skl2onnx does not write: a missing category, 'passthrough' as a step, both at once.
NOT_EXPORTED = {"imputer", "imputer behind a scaler", "nested", "infrequent dropped"}


def run_table(path, frame):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
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
    path = export_sklearn(tmp_path / "m.onnx", pipe, frame, zipmap=zipmap)
    model = Model.of(path)
    assert model.classes == ("no", "yes")
    assert model.network.precision == "float32"
    rows = model.encode(frame)
    clear = np.abs(model.network.logits(rows)[:, 0]) > 1e-4
    assert clear.mean() > 0.9 or name == "untouched numbers"  # which learns nothing
    label, probabilities = run_table(path, frame)
    assert (model.predict(frame) == label)[clear].all()
    assert (model.predict_original(frame) == label).all()
    P = [row["yes"] for row in probabilities] if zipmap else probabilities[:, 1]
    z = model.network.logits(rows)[:, 0]
    np.testing.assert_allclose(expit(z), P, atol=1e-4)


def test_schema_is_that_of_pipeline(tmp_path):
    frame, y = people()
    for name in ("drop chosen", "scaled ordinal"):
        pipe = fitted(name, "mlp", frame, y)
        ours = Model.of(export_sklearn(tmp_path / "m.onnx", pipe, frame)).schema
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
    path = export_sklearn(tmp_path / "m.onnx", pipe, 2, zipmap=False)
    model = Model.of(path)
    assert list(model.schema.by_name) == ["x0", "x1"]
    assert model.schema.by_name["x1"].missing == pytest.approx(np.nanmean(X[:, 1]))
    table = pd.DataFrame(X, columns=["x0", "x1"])
    assert (model.predict(table) == pipe.predict(X)).all()
    assert (model.predict_original(table) == pipe.predict(X)).all()


def test_numbers_as_labels(tmp_path):
    frame, y = people()
    pipe = fitted("drop first", "mlp", frame, np.where(y == "yes", 7, 3))
    model = Model.of(export_sklearn(tmp_path / "m.onnx", pipe, frame, zipmap=False))
    assert model.classes == (3, 7)
    assert (model.predict(frame) == pipe.predict(frame)).mean() > 0.99


def test_three_classes(tmp_path):
    frame, _ = people()
    y = np.array(["bad", "fair", "good"])[np.digitize(frame.income, [45_000, 55_000])]
    for classifier in CLASSIFIERS:
        pipe = fitted("scaler and one-hot", classifier, frame, y)
        model = Model.of(export_sklearn(tmp_path / "m.onnx", pipe, frame, zipmap=False))
        assert model.classes == ("bad", "fair", "good")
        assert (model.predict(frame) == pipe.predict(frame)).mean() > 0.99


def test_float32_margins_are_those_of_table_s_numbers(tmp_path):
    """Far from zero, a float32 model loses digits before it scales: the margin must cover that."""
    rng = np.random.default_rng(0)
    X = 1e6 + 100.0 * rng.standard_normal((200, 2))
    y = (X @ [1.0, 1.0] > 2e6).astype(int)
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    path = export_sklearn(tmp_path / "m.onnx", pipe, 2, zipmap=False)
    model = Model.of(path)
    report = certify(path, X, 0.0)
    margins = np.asarray(report.threshold)
    exact = model.network.logits(model.encode(X))[:, 0]
    deployed = runtime.InferenceSession(str(path)).run(None, {"rows": X.astype(np.float32)})
    P = deployed[1][:, 1].astype(float)
    away = np.abs(np.log(P / (1 - P)) - exact)[(P > 0.01) & (P < 0.99)]
    assert away.max() > 1e-3  # the deployed model errs by so much
    assert (margins > away.max()).all()


MAPPED = {"W": np.float32([[1.0], [-2.0]]), "M": np.float32([[1.0, 1.0], [0.5, 1.0]])}
LAYER = node("MatMul", ["u", "W"], ["y"], name="layer")


def mapped(tmp_path, *nodes, producer="skl2onnx"):
    nodes, shape = [*nodes, LAYER], ("n", 2)
    return write(tmp_path / "m.onnx", nodes, MAPPED, shape=shape, producer=producer)


def test_linear_map_is_fixed_only_where_pipeline_wrote_it(tmp_path):
    """Of two trained layers without a ReLU between them, neither is fixed."""
    pca = node("MatMul", ["x", "M"], ["u"], name="pca")
    model = Model.of(mapped(tmp_path, pca))
    np.testing.assert_array_equal(model.network.layers[0].W, [[1.0, -2.0]])
    np.testing.assert_array_equal(model.network.input_transform.matrix, [[1.0, 0.5], [1.0, 1.0]])
    with pytest.raises(ModelNotSupportedError, match="without a ReLU"):
        Model.of(mapped(tmp_path, pca, producer="pytorch"))


def test_other_maps_are_refused(tmp_path):
    with pytest.raises(ModelNotSupportedError, match="Tanh"):
        Model.of(mapped(tmp_path, node("Tanh", ["x"], ["u"], name="squash")))
    casts = node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("Cast", ["i"], ["u"], to=1)
    with pytest.raises(ModelNotSupportedError, match="cut to whole numbers"):
        Model.of(mapped(tmp_path, *casts))


def embedded(tmp_path, *, place=2, table="V"):
    """Two numbers and a category of three vectors give one logit."""
    constants = {
        "numbers": np.int64([0, 1]),
        "place": np.int64(place),
        "V": np.float32([[1.0, -1.0], [0.5, 2.0], [-3.0, 0.0]]),
        "g": np.float32([2.0, -1.0, 0.5, 1.0]),
        "t": np.float32([0.1, 0.2, 0.3, 0.4]),
        "v": np.float32([1.0, 2.0, 3.0, 4.0]),
        "W": np.float32([[1.0, 0.3], [-1.0, 0.2], [0.4, 0.3], [2.0, -2.0]]),
        "L": np.float32([[1.0], [-0.5]]),
    }
    nodes = [
        node("Gather", ["x", "numbers"], ["n"], axis=1),
        node("Gather", ["x", "place"], ["c"], axis=1),
        node("Cast", ["c"], ["i"], name="cut", to=TensorProto.INT64),
        node("Gather", [table, "i"] if table else ["i", "numbers"], ["e"], name="look"),
        node("Concat", ["n", "e"], ["a"], axis=1),
        node("BatchNormalization", ["a", "g", "t", "t", "v"], ["b"]),
        node("MatMul", ["b", "W"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "L"], ["y"]),
    ]
    return write(tmp_path / "m.onnx", nodes, constants)


def test_embeddings_and_batch_norm_in_front(tmp_path):
    path = embedded(tmp_path)
    model = Model.of(path)
    assert model.schema.by_name["x2"].labels == (0, 1, 2)
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(0, 2, (300, 2)), rng.integers(3, size=300)]).astype(np.float32)
    (z,) = run(path, X)
    np.testing.assert_allclose(model.network.logits(model.encode(X)), z, atol=1e-5)
    assert (model.predict_original(X) == (z[:, 0] >= 0)).all()


def test_single_logit_is_no_probability(tmp_path):
    """Rows whose logits happen to lie between 0 and 1 are of class 1, also by the original."""
    model = Model.of(embedded(tmp_path))
    X = np.column_stack([np.random.default_rng(0).normal(0, 2, (300, 2)), np.zeros(300)])
    z = model.network.logits(model.encode(X))[:, 0]
    small = X[(z > 0.01) & (z < 0.49)]
    assert len(small) > 3
    assert (model.predict_original(small) == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"place": [1, 2]}, "'Concat_a' .Concat. cannot be run"),
        ({"table": ""}, "'look' .Gather. mixes rows"),
    ],
)
def test_other_ways_to_look_up_are_refused(tmp_path, change, message):
    with pytest.raises(ModelNotSupportedError, match=message):
        Model.of(embedded(tmp_path, **change))


# -- what is refused ---------------------------------------------------------------------------


def after_hidden(*nodes):
    return [*HIDDEN, *nodes]


C4 = np.float32([1.0, 2.0, 3.0, 4.0])
REFUSED = {
    "tanh": (
        [*FIRST, node("Tanh", ["a1"], ["h"], name="odd"), *HEAD],
        {},
        "'odd' .Tanh.*only Gemm",
    ),
    "leaky": ([*FIRST, node("LeakyRelu", ["a1"], ["h"]), *HEAD], {}, "LeakyRelu"),
    "no_name": ([*FIRST, node("Elu", ["a1"], ["h"], name=""), *HEAD], {}, "node 'h' .Elu"),
    "batch_norm_in_training": (
        [
            *FIRST,
            node("BatchNormalization", ["a1", *["C4"] * 4], ["b"], name="odd", training_mode=1),
            node("Relu", ["b"], ["h"]),
            *HEAD,
        ],
        {"C4": C4},
        "'odd' .BatchNormalization. is in training mode. Export with model.eval",
    ),
    "batch_norm_between_two_relus": (
        after_hidden(
            node("BatchNormalization", ["h", *["C4"] * 4], ["b"], name="odd"),
            node("Relu", ["b"], ["r"], name="again"),
            node("MatMul", ["r", "W2"], ["y"]),
        ),
        {"C4": C4},
        "'again' .Relu. acts on .*'odd' .BatchNormalization., which follows a ReLU itself",
    ),
    "skip": (
        after_hidden(
            node("Add", ["h", "a1"], ["g"], name="join"), node("MatMul", ["g", "W2"], ["y"])
        ),
        {},
        "'join' .Add. joins two paths.*skip",
    ),
    "square_alone": (
        [node("Mul", ["x", "x"], ["q"], name="odd"), node("MatMul", ["q", "W1"], ["y"])],
        {},
        "'odd' .Mul. multiplies or divides columns by columns",
    ),
    "two_linear": (
        [
            node("MatMul", ["x", "W1"], ["h"], name="one"),
            node("MatMul", ["h", "W2"], ["y"], name="two"),
        ],
        {},
        "'one' .MatMul. and .*'two' .MatMul.*Merge",
    ),
    "ends_in_relu": ([*FIRST, node("Relu", ["a1"], ["y"])], {}, "ends in a ReLU after .*MatMul"),
    "divided_by_rows": (
        [node("Div", ["c", "x"], ["q"], name="odd"), node("MatMul", ["q", "W1"], ["y"])],
        {"c": np.float32(1.0)},
        "'odd' .Div. multiplies or divides",
    ),
    "hidden_sigmoid": (
        [*FIRST, node("Sigmoid", ["a1"], ["h"], name="odd"), *HEAD],
        {},
        "'odd' .Sigmoid. is followed by .*Hidden layers need ReLU",
    ),
    "sigmoid_of_two": (
        after_hidden(*HEAD[:1], node("Sigmoid", ["m"], ["y"], name="odd")),
        {},
        "'odd' .Sigmoid. gives two outputs",
    ),
    "sigmoid_of_four": (
        [*FIRST, node("Sigmoid", ["a1"], ["y"], name="odd")],
        {},
        "'odd'.*4 outputs",
    ),
    "softmax_axis": (
        after_hidden(*HEAD[:1], node("Softmax", ["m"], ["y"], name="odd", axis=0)),
        {},
        "output 'y' is neither",
    ),
    "transposed_rows_scaled": (
        [
            node("Transpose", ["x"], ["xt"], perm=[1, 0]),
            node("Mul", ["xt", "S"], ["st"], name="odd"),
            node("Transpose", ["st"], ["q"], perm=[1, 0]),
            node("MatMul", ["q", "W1"], ["y"]),
        ],
        {"S": S[:, None]},
        "'odd' .Mul. acts on transposed rows. Export it without Transpose",
    ),
    "equal_codes_out_of_order": (
        [
            node("Equal", ["x", "S"], ["q"], name="odd"),
            node("Cast", ["q"], ["c"], to=TensorProto.FLOAT),
            node("MatMul", ["c", "W1"], ["y"]),
        ],
        {"S": S},
        "'odd' .Equal. is not part of a ReLU network",
    ),
    "int_cast": (
        [
            node("Cast", ["x"], ["q"], to=TensorProto.INT64),
            node("MatMul", ["q", "W1"], ["y"], name="odd"),
        ],
        {},
        "'odd' .MatMul. takes a column that was cut to whole numbers",
    ),
    "reshape": (
        [node("Reshape", ["x", "s"], ["q"], name="odd"), node("MatMul", ["q", "W1"], ["y"])],
        {"s": np.int64([3, -1])},
        "'odd' .Reshape. mixes rows",
    ),
    "reshape_all": (
        [node("Reshape", ["x", "s"], ["q"], name="odd"), node("MatMul", ["q", "W1"], ["y"])],
        {"s": np.int64([-1])},
        "'odd' .Reshape. mixes rows",
    ),
    "computed_reshape": (
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "turn"], ["t"]),
            node("Reshape", ["x", "t"], ["q"], name="odd"),
            node("MatMul", ["q", "W1"], ["y"]),
        ],
        {"turn": np.int64([1, 0])},
        "'odd' .Reshape. mixes rows",
    ),
    "gemm_data": ([node("Gemm", ["W1", "x"], ["y"], name="odd")], {}, "'odd' .Gemm. does not mult"),
    "gemm_trans": ([node("Gemm", ["x", "W1"], ["y"], name="odd", transA=1)], {}, "'odd' .Gemm"),
    "left_matmul": (
        [node("MatMul", ["W1", "x"], ["y"], name="odd")],
        {},
        "'odd' .MatMul. does not multiply rows",
    ),
    "row_constant": (
        [node("Add", ["x", "c"], ["q"], name="odd"), node("MatMul", ["q", "W1"], ["y"])],
        {"c": f32(3, 1)},
        r"'odd' .Add. takes fixed numbers of shape \(3, 1\)",
    ),
    "training_dropout": (
        after_hidden(
            node("Dropout", ["h", "r", "t"], ["d"], name="odd"), node("MatMul", ["d", "W2"], ["y"])
        ),
        {"r": np.float32(0.5), "t": np.bool_(True)},
        "'odd' .Dropout. is in training mode",
    ),
    "one_vs_rest": (
        [
            classifier(
                coefficients=[1.0] * 9, intercepts=[1.0] * 3, classlabels_ints=[0, 1, 2], name="odd"
            )
        ],
        {},
        "output 'y' is neither",
    ),
    "not_opposite": ([classifier(intercepts=[1.0, 1.0], name="odd")], {}, "'odd'.*two outputs"),
    "probit": ([classifier(post_transform="PROBIT", name="odd")], {}, "'odd'.*PROBIT"),
    "foreign": (
        [helper.make_node("Magic", ["x"], ["y"], name="odd", domain="com.example")],
        {},
        "'odd' .Magic",
    ),
    "if": (
        [
            *FIRST,
            node("Greater", ["a1", "B1"], ["g"]),
            node("Where", ["g", "a1", "B1"], ["y"], name="odd"),
        ],
        {},
        "'y' is neither",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_graphs_are_refused_by_name(name, tmp_path):
    nodes, constants, message = REFUSED[name]
    path = write(tmp_path / "model.onnx", nodes, WEIGHTS | constants)
    with pytest.raises(ModelNotSupportedError, match=message):
        NetworkOf(path)


def test_batch_norm_without_variance(tmp_path):
    norm = node("BatchNormalization", ["a1", "C4", "C4", "C4", "V4"], ["b"], name="odd")
    nodes = [*FIRST, norm, node("Relu", ["b"], ["h"]), *HEAD]
    path = write(tmp_path / "model.onnx", nodes, WEIGHTS | {"C4": C4, "V4": -C4})
    with pytest.raises(
        ModelFileError, match=r"'odd' .BatchNormalization. has a variance that is not"
    ):
        NetworkOf(path)


def test_inputs_are_refused(tmp_path):
    path = write(tmp_path / "b.onnx", *GRAPHS["matmul_add"], shape=("n", 1, 3))
    with pytest.raises(ModelNotSupportedError, match="input 'x' has 3 dimensions"):
        NetworkOf(path)
    path = write(tmp_path / "c.onnx", *GRAPHS["matmul_add"], outputs=("h", "y"))
    with pytest.raises(
        ModelNotSupportedError, match=r"output 'h' cannot be worked out from the logits"
    ):
        NetworkOf(path)


# -- damaged files -----------------------------------------------------------------------------


def test_any_cut_or_changed_byte_is_error_of_this_package(tmp_path):
    path = write(tmp_path / "model.onnx", *GRAPHS["folded_constants"])
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(300):
        content = bytearray(whole)
        for place in rng.integers(len(whole), size=3):
            content[place] = rng.integers(256)
        path.write_bytes(bytes(content[: rng.integers(len(whole) // 2, len(whole) + 1)]))
        try:
            network = NetworkOf(path)
        except (ModelFileError, ModelNotSupportedError):
            continue
        assert network.inputs == 3


@pytest.mark.parametrize(
    ("nodes", "constants", "message"),
    [
        ([node("MatMul", ["x", "W1"], ["dead"])], {}, "nothing in the graph gives the output 'y'"),
        (
            [node("Cast", ["x"], ["q"]), node("MatMul", ["q", "W1"], ["y"])],
            {},
            "not a readable ONNX",
        ),
        (
            [node("Identity", ["x"], ["q"]), node("Identity", ["q"], ["x"])],
            {},
            "nothing in the graph gives the output 'y'",
        ),
        ([classifier(intercepts=[1.0] * 3)], {}, "3 rows of coefficients for 2 classes"),
    ],
)
def test_graphs_that_no_exporter_writes(nodes, constants, message, tmp_path):
    path = write(tmp_path / "model.onnx", nodes, WEIGHTS | constants)
    with pytest.raises(ModelFileError, match=message):
        NetworkOf(path)


def test_nan_weights(tmp_path):
    path = write(tmp_path / "model.onnx", [node("MatMul", ["x", "W"], ["y"])],
                 {"W": np.full((3, 1), np.nan, dtype=np.float32)})  # fmt: skip
    with pytest.raises(ModelFileError, match=r"model\.onnx: W of layer 1 has NaN"):
        NetworkOf(path)


def external(path, change=lambda info: None):
    """Write a graph whose W1 lies in a file of its own."""
    write(path, *GRAPHS["matmul_add"])
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            change(entry)
    path.write_bytes(model.SerializeToString())


def test_external_data_beside_model(tmp_path):
    path = tmp_path / "model.onnx"
    external(path)
    X = RNG.standard_normal((20, 3)).astype(np.float32).astype(np.float64)
    assert_close(NetworkOf(path).logits(X), run(path, X)[0])


def test_external_data_elsewhere_is_refused(tmp_path):
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "model.onnx"

    def set_location(location):
        def change(entry):
            if entry.key == "location":
                entry.value = location

        return change

    for location in ("../weights.bin", "/etc/passwd", ""):
        external(path, set_location(location))
        (path.parent / "weights.bin").replace(tmp_path / "weights.bin")
        with pytest.raises(ModelFileError, match="outside of the model's folder"):
            NetworkOf(path)
    external(path)
    (path.parent / "weights.bin").replace(tmp_path / "weights.bin")
    with pytest.raises(ModelFileError, match=r"weights\.bin', which is missing"):
        NetworkOf(path)
    (path.parent / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelFileError, match="outside of the model's folder"):
        NetworkOf(path)


def test_truncated_external_data(tmp_path):
    path = tmp_path / "model.onnx"
    external(path)
    (tmp_path / "weights.bin").write_bytes(b"123")
    with pytest.raises(ModelFileError, match="truncated"):
        NetworkOf(path)


def test_missing_onnx(monkeypatch, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"proplace\[onnx\]"):
        Model.of(tmp_path / "model.onnx")
