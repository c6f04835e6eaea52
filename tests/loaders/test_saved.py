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
from commands import good
from proplace.certification import digest
from proplace.core.errors import ModelFileError
from proplace.loaders.align import in_coordinates_of

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


@pytest.mark.every(3)
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
def test_copy_answers_as_pipeline(tmp_path, labels, cutoff, table, scaler):
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


def test_schema_and_labels_are_in_file(tmp_path):
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


def test_bare_network_stays_one(tmp_path):
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
        lambda facts: {**facts, "earlier_encodings": [3]},
    ],
)
def test_damaged_description_is_refused(tmp_path, change):
    path = tmp_path / "model.npz"
    pp.Model.of(pp.Network([(np.array([[1.0, 0.5]]), np.array([-0.4]))])).save(path)
    rewritten(path, change)
    with pytest.raises(ModelFileError, match=r"Save the model again with Model.save"):
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


# -- every question, of every framework ------------------------------------------------------------

OWNERS = pd.DataFrame(
    {
        "in-come": TABLE["income"],
        "rate": TABLE["rate"],
        "owner": TABLE["owner"],
        "job": TABLE["job"],
    }
)
KINDS = {
    "numbers": ["in-come", "rate"],
    "booleans": ["in-come", "owner"],
    "words": ["rate", "owner", "job"],
}


def sklearn_model(rows, labels, folder):
    """A pipeline that scales its booleans, too."""
    words = [name for name in rows if rows[name].dtype == object]
    steps = make_column_transformer((OneHotEncoder(), words), remainder=StandardScaler())
    net = MLPClassifier((5,), solver="lbfgs", alpha=1.0, max_iter=60, random_state=0)
    return make_pipeline(steps, net).fit(rows, labels)


def onnx_model(rows, labels, folder):
    skl2onnx = pytest.importorskip("skl2onnx")
    steps = make_column_transformer(
        (StandardScaler(), [name for name in rows if rows[name].dtype.kind in "if"]),
        ("passthrough", [name for name in rows if rows[name].dtype.kind == "b"]),
        (OneHotEncoder(), [name for name in rows if rows[name].dtype == object]),
    )
    net = MLPClassifier((5,), solver="lbfgs", alpha=1.0, max_iter=60, random_state=0)
    pipe = make_pipeline(steps, net).fit(rows, labels)
    path = folder / f"{len(rows)}.onnx"
    path.write_bytes(skl2onnx.to_onnx(pipe, rows[:1]).SerializeToString())
    return path


def coded(rows):
    """The table with numbers alone."""
    words = [name for name in rows if rows[name].dtype == object]
    codes = {name: pd.Categorical(rows[name]).codes for name in words}
    return rows.assign(**codes).astype(float), words


def trained_layers(rows, labels):
    """The layers of a network on scaled numbers and the 0/1 columns of words, and their scaling."""
    numbers, words = coded(rows)
    plain = numbers.drop(columns=words)
    parts = [(plain - plain.mean()) / plain.std(ddof=0)]
    parts += [np.eye(3)[numbers[name].astype(int)] for name in words]
    net = MLPClassifier((5,), solver="lbfgs", alpha=1.0, max_iter=60, random_state=0)
    net.fit(np.hstack(parts), labels)
    return plain, words, list(zip(net.coefs_, net.intercepts_, strict=True))


def torch_model(rows, labels, folder):
    torch = pytest.importorskip("torch")
    plain, words, layers = trained_layers(rows, labels)
    count = plain.shape[1]

    class Lender(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.tensor(plain.mean().to_numpy()).float())
            self.register_buffer("std", torch.tensor(plain.std(ddof=0).to_numpy()).float())
            self.first, self.last = (torch.nn.Linear(*W.shape) for W, _ in layers)
            for own, (W, b) in zip((self.first, self.last), layers, strict=True):
                own.weight.data, own.bias.data = torch.tensor(W.T).float(), torch.tensor(b).float()

        def forward(self, x):
            parts = [(x[:, :count] - self.mean) / self.std]
            if words:
                parts.append(torch.nn.functional.one_hot(x[:, count].long(), 3).float())
            return self.last(torch.relu(self.first(torch.cat(parts, dim=1))))

    return Lender().eval()


def keras_model(rows, labels, folder):
    keras = pytest.importorskip("keras")
    plain, words, layers = trained_layers(rows, labels)
    inputs = [keras.Input((1,), name=name) for name in plain]
    parts = [
        keras.layers.Normalization(mean=plain[name].mean(), variance=plain[name].var(ddof=0))(given)
        for name, given in zip(plain, inputs, strict=True)
    ]
    for name in words:
        inputs.append(keras.Input((1,), name=name, dtype="int32"))
        parts.append(keras.layers.CategoryEncoding(3, "one_hot")(inputs[-1]))
    hidden = keras.layers.Dense(5, "relu")(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    for own, given in zip(dense, layers, strict=True):
        own.set_weights(list(given))
    return model


SOURCES = [sklearn_model, onnx_model, torch_model, keras_model]


@pytest.fixture(params=[(make, kind) for make in SOURCES for kind in KINDS], ids=lambda p: (
    f"{p[0].__name__}-{p[1]}"
))  # fmt: skip
def case(request, tmp_path):
    """A model, another one that was trained on fewer rows, and the table."""
    make, kind = request.param
    rows, labels = OWNERS[KINDS[kind]], (SCORE > 0.6).astype(int).to_numpy()
    sources = [make(rows[part], labels[part], tmp_path) for part in (slice(N), slice(20, N))]
    models = [pp.Model.of(source) for source in sources]
    if make in (torch_model, keras_model):
        rows = coded(rows)[0].astype({name: bool for name in rows if name == "owner"})
    if make is torch_model:
        models = [model.with_column_names(list(rows)) for model in models]
    return *models, rows


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_saved_models_answer_every_question_as_live_one(case, tmp_path):
    live, later, rows = case
    refused = rows[live.predict(rows) == 0][:2]
    explainer = pp.Proplace(live, 0.001, k=5).fit(rows)
    answers = explainer.explain(refused, 1)
    shifts = pp.Shifts.bounding([live, later], source=live)
    robust = pp.certify(live, rows[:20], 0.001, 1).lower
    aligned = in_coordinates_of(live, later)
    ledger = pp.Ledger(tmp_path / "promises.db")
    promise, _ = ledger.issue(answers, ids=["a", "b"]).ids
    person = pd.Series(answers[0].counterfactual)

    for number, model in enumerate((live, explainer.model_)):
        copy = copy_of(model, tmp_path)
        again = pp.Proplace(copy, 0.001, k=5).fit(rows)
        found = again.explain(refused, 1)
        for one, other in zip(found, answers, strict=True):
            assert one.certificate.to_json() == other.certificate.to_json()
            assert one.certificate.check(again.model_.network).accepted
            assert list(one.counterfactual) == list(other.counterfactual)
        assert copy.earlier_coordinates == model.earlier_coordinates
        pp.Proplace(copy, shifts, k=5).fit(rows)
        np.testing.assert_array_equal(pp.certify(copy, rows[:20], 0.001, 1).lower, robust)
        if number == 0:
            assert digest(in_coordinates_of(copy, later)) == digest(aligned)
        assert digest(in_coordinates_of(live, copy)) is not None
        assert ledger.audit(copy, record=False).counts["proved"] == 2
        assert ledger.redeem(promise, person, copy, record=False).verdict == "met_exactly"


@pytest.mark.parametrize("saved", ["as read", "fitted"])
def test_certificate_of_scaled_boolean_is_checked_against_saved_model(tmp_path, saved):
    rows, labels = OWNERS[KINDS["booleans"]], np.where(SCORE > 0.6, "yes", "no")
    live = pp.Model.of(sklearn_model(rows, labels, tmp_path))
    explainer = pp.Proplace(live, 0.001, k=5).fit(rows)
    answer = explainer.explain(rows[live.predict(rows) == "no"][:1], "yes")[0]
    answer.certificate.save(tmp_path / "proof.json")
    (live if saved == "as read" else explainer.model_).save(tmp_path / "model.npz")

    assert answer.certificate.check(explainer.model_.network).accepted
    words = ["check", tmp_path / "proof.json", "--model", tmp_path / "model.npz"]
    assert "accepted" in good(*words, "--target", "yes").stdout
