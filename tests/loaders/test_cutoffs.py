"""Cut-offs: the model that was read accepts iff the original's own probability reaches the cut-off."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import DeltaError, ModelMismatchError, ModelNotSupportedError, OptionError
from support.errors import raises

COLUMNS = ["age", "income", "debt"]
LABELS = [("approved", "refused"), ("no", "yes"), (0, 1), (False, True)]
CLASSIFIERS = {
    "logistic": LogisticRegression,
    "no intercept": lambda: LogisticRegression(fit_intercept=False),
    "mlp": lambda: MLPClassifier((6,), max_iter=300, random_state=0),
}


def table(seed=0, n=300):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(rng.normal(size=(n, 3)) * [10, 2, 1] + [40, 0, 5], columns=COLUMNS)


def fitted(labels, kind, seed=0):
    frame = table(seed)
    rng = np.random.default_rng(seed + 100)
    score = (frame.age - 40) / 10 + frame.income - frame.debt + 5 + rng.normal(size=len(frame))
    y = [labels[int(one)] for one in score > 0.5]
    return make_pipeline(StandardScaler(), CLASSIFIERS[kind]()).fit(frame, y)


def chance(pipe, frame, label):
    """The probability of a label by scikit-learn alone."""
    return pipe.predict_proba(frame)[:, list(pipe.classes_).index(label)]


def wanted(pipe, frame, label, p):
    other = next(one for one in pipe.classes_ if one != label)
    return [label if one >= p else other for one in chance(pipe, frame, label)]


def moved(pipe, delta, rng):
    """A copy whose trained parameters are moved by up to delta, by scikit-learn's own arrays."""
    twin = copy.deepcopy(pipe)
    clf = twin[-1]
    arrays = (
        [clf.coef_, clf.intercept_] if hasattr(clf, "coef_") else [*clf.coefs_, *clf.intercepts_]
    )
    if getattr(clf, "fit_intercept", True) is False:
        arrays = arrays[:1]
    for array in arrays:
        signs = rng.choice([-1.0, 1.0], size=array.shape)
        array[...] = array + delta * signs * rng.choice([1.0, rng.random()])
    return twin


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("labels", LABELS, ids=str)
@pytest.mark.parametrize("number", [0, 1])
def test_model_predicts_label_from_cutoff_on(labels, kind, number):
    pipe, frame, label = fitted(labels, kind), table(1), labels[number]
    for p in (0.3, 0.5, 0.7, 0.9):
        model = pp.Model.of(pipe, cutoff={label: p})
        clear = np.abs(chance(pipe, frame, label) - p) > 1e-12
        expected = np.array(wanted(pipe, frame, label, p), dtype=object)
        assert (model.predict(frame) == expected)[clear].all()
        assert model.predict_original(frame).tolist() == wanted(pipe, frame, label, p)
        assert model.cutoff == {label: p}
        assert f"cutoff {{{label!r}: {p}}}" in repr(model)


@pytest.mark.parametrize("labels", LABELS[2:], ids=str)
def test_bare_number_is_that_of_label_1(labels):
    pipe = fitted(labels, "logistic")
    model = pp.Model.of(pipe, cutoff=0.7)
    assert model.cutoff == {labels[1]: 0.7}
    assert model.network == pp.Model.of(pipe, cutoff={labels[1]: 0.7}).network


def test_cutoff_one_half_changes_nothing():
    for kind in CLASSIFIERS:
        pipe = fitted(("no", "yes"), kind)
        plain, half = pp.Model.of(pipe), pp.Model.of(pipe, cutoff={"yes": 0.5})
        assert half.network == plain.network
        assert half.coordinates == plain.coordinates
        assert half.predict(table(1)).tolist() == plain.predict(table(1)).tolist()


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize(
    ("labels", "label"),
    [(("approved", "refused"), "approved"), (("no", "yes"), "yes"), ((0, 1), 0)],
)
def test_counterfactuals_reach_cutoff_under_every_shift(kind, labels, label):
    pipe, frame, rng = fitted(labels, kind), table(1), np.random.default_rng(3)
    moves = [moved(pipe, 0.02, rng) for _ in range(20)]
    for p in (0.3, 0.9):
        explainer = pp.Proplace(pipe, 0.02, cutoff={label: p}, k=5).fit(table())
        refused = frame[chance(pipe, frame, label) < p][:3]
        found = [e for e in explainer.explain(refused, target=label) if e.found]
        assert len(found) == 3
        answers = pd.DataFrame([e.counterfactual for e in found])[COLUMNS]
        for one in (pipe, *moves):
            assert (chance(one, answers, label) >= p).all()
        # The cut-off matters: near 0.3, no counterfactual reaches 0.9, and the bound is near.
        assert chance(pipe, answers, label).min() < p + 0.2
        report = pp.certify(pp.Model.of(pipe, cutoff={label: p}), frame, 0.02, target=label)
        robust = frame[report.robust]
        for one in moves:
            assert (chance(one, robust, label) >= p).all()


def test_network_without_bias_gets_one_that_stays():
    pipe = fitted((0, 1), "no intercept")
    net = pp.Model.of(pipe, cutoff=0.7).network
    assert net.layers[-1].b == pytest.approx([-np.log(0.7 / 0.3)])
    box = pp.Shifts.of(net, 0.1)
    assert box.low.layers[-1].b == box.high.layers[-1].b == net.layers[-1].b


def test_fit_notices_model_that_changed():
    pipe = fitted((0, 1), "mlp")
    model = pp.Model.of(pipe, cutoff=0.7)
    pipe[-1].intercepts_[-1] += 0.5
    with raises(ModelMismatchError):
        model.check_agreement(table())


def test_required_model_has_cutoff_of_current_one_unless_it_states_its_own():
    pipe, later = fitted(("no", "yes"), "logistic"), fitted(("no", "yes"), "mlp", 5)
    frame = table(1)
    refused = frame[chance(pipe, frame, "yes") < 0.6][:5]
    for own, p in ((later, 0.6), (pp.Model.of(later, cutoff={"yes": 0.9}), 0.9)):
        explainer = pp.Proplace(pipe, 0.01, cutoff={"yes": 0.6}, required_models=[own], k=5).fit(
            table()
        )
        answers = explainer.explain(refused, target="yes")
        rows = pd.DataFrame([e.counterfactual for e in answers if e.found])[COLUMNS]
        assert len(rows) == 5
        assert (chance(pipe, rows, "yes") >= 0.6).all()
        assert (chance(later, rows, "yes") >= p).all()
    net = pp.Model.of(later).network
    bare = pp.Proplace(pp.Model.of(net), 0.01, cutoff=0.8, required_models=[net]).fit(
        np.zeros((3, 3))
    )
    assert next(iter(bare.required_models_.values())).network == bare.net_


def test_calibration_reads_retrained_models_with_cutoff():
    pipe = fitted(("no", "yes"), "logistic")
    later = [fitted(("no", "yes"), "logistic", seed) for seed in (1, 2)]
    model = pp.Model.of(pipe, cutoff={"yes": 0.7})
    own = [pp.Model.of(one, cutoff={"yes": 0.7}) for one in later]
    found = [
        pp.calibrate_delta(
            model, table(), retrained=given, people=table(1, 40), target="yes", deltas=[0.4], k=5
        )
        for given in (later, own)
    ]
    assert found[0].change_per_model.tolist() == found[1].change_per_model.tolist()
    assert found[0].curve.equals(found[1].curve)


def test_hull_has_cutoff_of_its_source_and_no_other():
    pipe = fitted(("no", "yes"), "logistic")
    later = [fitted(("no", "yes"), "logistic", seed) for seed in (1, 2)]
    model = pp.Model.of(pipe, cutoff={"yes": 0.7})
    box = pp.Shifts.bounding(later, source=model)
    plain = pp.Shifts.bounding(later, source=pipe)
    logit = np.log(0.7 / 0.3)
    np.testing.assert_allclose(box.low.layers[0].b, plain.low.layers[0].b - logit, rtol=1e-12)
    pp.Proplace(model, box, k=5).fit(table())
    with raises(DeltaError, match="cut-off"):
        pp.Proplace(model, plain, k=5).fit(table())
    with raises(DeltaError, match="cut-off"):
        pp.Proplace(pipe, box, k=5).fit(table())


# -- other frameworks ------------------------------------------------------------------------------


def outputs_of(torch, one, form):
    layers = [torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1 if one else 2)]
    last = {
        "logits": [],
        "sigmoid": [torch.nn.Sigmoid()],
        "softmax": [torch.nn.Softmax(dim=1)],
        "log_softmax": [torch.nn.LogSoftmax(dim=1)],
    }[form]
    return torch.nn.Sequential(*layers, *last)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("one", "form"),
    [
        (True, "logits"),
        (True, "sigmoid"),
        (False, "logits"),
        (False, "softmax"),
        (False, "log_softmax"),
    ],
)
def test_torch_module_decides_by_its_probabilities(one, form, number):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    module = outputs_of(torch, one, form)
    rows = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    with torch.no_grad():
        z = torch.nn.Sequential(*list(module)[:3])(torch.as_tensor(rows)).double()
        P = torch.sigmoid(z)[:, 0] if one else torch.softmax(z, dim=1)[:, 1]
    chances = P.numpy() if number == 1 else 1.0 - P.numpy()
    for p in np.quantile(chances, [0.3, 0.8]).tolist():
        model = pp.Model.of(module, cutoff={number: p})
        clear = np.abs(chances - p) > 1e-5
        expected = np.where(chances >= p, number, 1 - number)
        assert 60 < (expected == number).sum() < 340
        assert (model.predict(rows) == expected)[clear].all()
        assert (model.predict_original(rows) == expected)[clear].all()
        model.check_agreement(model.table(rows))


@pytest.mark.parametrize("p", [0.999, 0.9999])
def test_rounding_of_probability_near_1_is_covered(p):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sigmoid())
    with torch.no_grad():
        module[0].weight[:], module[0].bias[:] = 1.0, 0.0
    logit = np.log(p / (1 - p))
    rows = logit + np.linspace(-1e-3, 1e-3, 4001)[:, None]
    rows = rows.astype(np.float32).astype(float)
    model = pp.Model.of(module, cutoff=p)
    apart = (model.predict_original(rows) == 1) != (rows[:, 0] >= logit)
    distance = np.abs(rows[apart, 0] - logit)
    bound = model.rounding(rows)[0]
    assert apart.any()
    assert distance.max() <= bound < 100 * distance.max() + 1e-4
    model.check_agreement(model.table(rows))
    margin = np.max(model.margins(pp.Shifts.of(model.network, 0.0), rows, None))
    assert distance.max() <= margin


@pytest.mark.parametrize(("outputs", "activation"), [(1, "sigmoid"), (1, None), (2, "softmax")])
def test_keras_model_decides_by_its_probabilities(outputs, activation):
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(outputs, activation)]
    )
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    given = np.asarray(keras.ops.convert_to_numpy(net(rows)), dtype=float)
    chances = given[:, -1] if activation else 1.0 / (1.0 + np.exp(-given[:, 0]))
    model = pp.Model.of(net, cutoff=0.6)
    clear = np.abs(chances - 0.6) > 1e-5
    assert (model.predict(rows) == (chances >= 0.6))[clear].all()
    assert (model.predict_original(rows) == (chances >= 0.6))[clear].all()


@pytest.mark.parametrize("zipmap", [False, True])
@pytest.mark.parametrize("label", ["approved", "refused"])
def test_onnx_file_decides_by_its_probabilities(tmp_path, label, zipmap):
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    pipe, frame = fitted(("approved", "refused"), "mlp"), table(1)
    file = skl2onnx.to_onnx(
        pipe, frame[:1].astype(np.float32).to_numpy(), options={id(pipe): {"zipmap": zipmap}}
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(file.SerializeToString())
    model = pp.Model.of(path, cutoff={label: 0.8})
    rows = frame.to_numpy()
    clear = np.abs(chance(pipe, frame, label) - 0.8) > 1e-4
    expected = np.array(wanted(pipe, frame, label, 0.8), dtype=object)
    assert (model.predict_original(rows) == expected)[clear].all()
    assert (model.predict(rows) == expected)[clear].all()


def test_onnx_file_of_labels_alone_is_rejected(tmp_path):
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    pipe = fitted(("approved", "refused"), "mlp")
    file = skl2onnx.to_onnx(pipe, table(1)[:1].astype(np.float32).to_numpy())
    del file.graph.output[1:]
    path = tmp_path / "m.onnx"
    path.write_bytes(file.SerializeToString())
    pp.Model.of(path)
    with raises(ModelNotSupportedError, match="no probabilities"):
        pp.Model.of(path, cutoff={"approved": 0.8})


# -- names and errors ------------------------------------------------------------------------------


def test_cutoff_follows_names_that_are_given_later():
    net = pp.Network([([[1.0]], [0.0])])
    model = pp.Model.of(net, cutoff={1: 0.9}).with_classes(["refused", "approved"])
    assert model.cutoff == {"approved": 0.9}
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(1, 1)).double()
    named = pp.Model.of(module).with_classes(["refused", "approved"])
    cut = pp.Model.of(named.with_column_names(["a"]), cutoff={"refused": 0.9})
    with torch.no_grad():
        module[0].weight[:], module[0].bias[:] = 1.0, 0.0
    cells = pd.DataFrame({"a": [-3.0, 0.0, 3.0]})
    assert cut.predict_original(cells).tolist() == ["refused", "approved", "approved"]


@pytest.mark.parametrize(
    ("cutoff", "words"),
    [
        (0.7, "names no label"),
        ({"aproved": 0.7}, "did you mean 'approved'"),
        ({"approved": 0.7, "refused": 0.3}, "one label, not 2"),
        ({}, "one label, not 0"),
        ({"approved": 1.0}, "between 0 and 1"),
        ({"approved": 0.0}, "between 0 and 1"),
        ({"approved": float("nan")}, "between 0 and 1"),
        ({"approved": True}, "between 0 and 1"),
        ({"approved": 1e-17}, "1e-09"),  # 1 - p is 0 in float64
        ({"approved": 1.0 - 1e-10}, "1e-09"),
        ({"approved": "0.7"}, "between 0 and 1"),
        ("0.7", "names no label"),
    ],
)
def test_wrong_cutoff_is_rejected(cutoff, words):
    pipe = fitted(("approved", "refused"), "logistic")
    for read in (
        lambda: pp.Model.of(pipe, cutoff=cutoff),
        lambda: pp.Proplace(pipe, 0.1, cutoff=cutoff).fit(table()),
    ):
        with raises(OptionError, match=words) as error:
            read()
        assert error.value.name == "cutoff"


def test_cutoff_of_several_classes_is_rejected():
    net = pp.Network([(np.eye(3), np.zeros(3))])
    with raises(OptionError, match="the model has 3"):
        pp.Model.of(net, cutoff=0.7)


def test_second_cutoff_is_rejected():
    model = pp.Model.of(pp.Network([([[1.0]], [0.0])]), cutoff=0.7)
    assert pp.Model.of(model, cutoff={1: 0.7}) is model
    with raises(OptionError, match="already"):
        pp.Model.of(model, cutoff=0.8)
