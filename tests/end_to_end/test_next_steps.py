"""What a refusal tells people to do works: each hint is done, and the model is read then."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

import proplace as pp
from proplace.core.errors import ModelNotSupported

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")
X = np.random.default_rng(0).normal(size=(200, 3))


def refused(source, message):
    with pytest.raises(ModelNotSupported, match=message):
        pp.Model.of(source)


def agrees(source, module, rows=X):
    """The model is read, and gives every row the class that the module gives it."""
    model = pp.Model.of(source)
    with torch.no_grad():
        z = module(torch.tensor(rows, dtype=torch.float32))[:, 0].double().numpy()
    np.testing.assert_allclose(model.network.logits(model.encode(rows))[:, 0], z, atol=1e-4)
    assert (model.original(rows) == (z >= 0)).all()


def exported(module, path, width=3, **options):
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
            rows = (torch.zeros(4, width),)
            torch.onnx.export(module, rows, path, dynamo=False, **axes, **options)
    finally:
        logging.disable(logging.NOTSET)
    return path


def normed(*last):
    torch.manual_seed(1)
    module = nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 1), *last
    )
    for _ in range(20):
        module(torch.tensor(X, dtype=torch.float32))
    return module


def test_batch_norm_in_training_mode(tmp_path):
    module = normed()
    refused(module.train(), r"call module.eval\(\) first")
    agrees(module.eval(), module)
    training = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    path = exported(module.train(), tmp_path / "a.onnx", **training)
    refused(path, r"BatchNormalization\) is in training mode; export with model.eval\(\)")
    agrees(exported(module.eval(), tmp_path / "b.onnx"), module)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last(h + torch.relu(self.second(h)))


def test_skip_connections_are_sent_nowhere(tmp_path):
    """No other format reads them, and the refusal says so; what it says to train is read."""
    module = Residual().eval()
    refused(module, "read from no other format either. Train the model without them")
    refused(exported(module, tmp_path / "m.onnx"), "no skip connections")
    plain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    agrees(plain.eval(), plain)


def test_torch_script(tmp_path):
    module = normed().eval()
    traced = torch.jit.trace(module, torch.zeros(2, 3))
    refused(traced, "give the nn.Module it was made from, or export it to ONNX")
    agrees(module, module)
    agrees(exported(traced, tmp_path / "m.onnx"), module)


class Embedded(nn.Module):
    def __init__(self, *, at_once):
        super().__init__()
        self.at_once, self.table = at_once, nn.Embedding(4, 2)
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 1)

    def forward(self, x):
        if self.at_once:
            looked = self.table(x[:, 1:3].long()).flatten(1)
        else:
            looked = torch.cat([self.table(x[:, i].long()) for i in (1, 2)], dim=1)
        return self.last(torch.relu(self.first(torch.cat([x[:, :1], looked], dim=1))))


def test_several_categories_looked_up_at_once(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=100), rng.integers(4, size=(100, 2))])
    at_once = Embedded(at_once=True).eval()
    agrees(at_once, at_once, rows)
    path = exported(at_once, tmp_path / "a.onnx")
    refused(path, r"one column of categories at a time, as x\[:, 3\].long\(\)")
    twin = Embedded(at_once=False).eval()
    twin.load_state_dict(at_once.state_dict())
    agrees(exported(twin, tmp_path / "b.onnx"), at_once, rows)


# -- scikit-learn ------------------------------------------------------------------------------

TABLE = pd.DataFrame(
    {
        "age": np.r_[np.arange(20.0, 60.0), np.nan],
        "job": np.array(["cook", "clerk", "smith"])[np.arange(41) % 3],
    }
)
LABELS = np.where(TABLE.age.fillna(30) + 5 * (TABLE.job == "clerk") > 41, "yes", "no")


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        (MinMaxScaler(clip=True), MinMaxScaler(clip=False), "fit it with clip=False"),
        (
            SimpleImputer(add_indicator=True),
            SimpleImputer(add_indicator=False),
            "Fit it with.*add_indicator=False|add_indicator=True.*Fit it with",
        ),
    ],
    ids=["clip", "indicator"],
)
def test_settings_of_steps(wrong, right, message):
    def fitted(step):
        steps = make_column_transformer(
            (make_pipeline(SimpleImputer(), step), ["age"]), (OneHotEncoder(), ["job"])
        )
        if isinstance(step, SimpleImputer):
            steps = make_column_transformer((step, ["age"]), (OneHotEncoder(), ["job"]))
        return make_pipeline(steps, LogisticRegression()).fit(TABLE, LABELS)

    refused(fitted(wrong), message)
    pipe = fitted(right)
    assert (pp.Model.of(pipe).predict(TABLE) == pipe.predict(TABLE)).all()


def test_a_network_of_a_pipeline_with_categories():
    steps = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["job"]))
    table = TABLE.dropna()
    pipe = make_pipeline(steps, LogisticRegression()).fit(table, LABELS[:-1])
    with pytest.raises(ModelNotSupported, match=r"read it whole with Model.of\(model\)"):
        pp.Network.from_sklearn(pipe)
    assert (pp.Model.of(pipe).predict(table) == pipe.predict(table)).all()


def test_a_file_of_several_inputs(tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    from skl2onnx.common.data_types import FloatTensorType

    table = pd.DataFrame({"age": TABLE.age[:-1], "income": np.arange(40.0) % 7})
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, LABELS[:-1])
    several = make_pipeline(
        make_column_transformer((StandardScaler(), ["age", "income"])), LogisticRegression()
    ).fit(table, LABELS[:-1])
    types = [(name, FloatTensorType([None, 1])) for name in table]
    path = tmp_path / "m.onnx"
    options = {"zipmap": False}
    graph = skl2onnx.convert_sklearn(several, "m", types, options=options)
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(ModelNotSupported, match=r"read it whole with Model.of.path., or export it"):
        pp.Network.load(path)
    assert (pp.Model.of(path).predict(table) == several.predict(table)).all()
    one = [("rows", FloatTensorType([None, 2]))]
    pipe.fit(table.to_numpy(), LABELS[:-1])
    path.write_bytes(skl2onnx.convert_sklearn(pipe, "m", one, options=options).SerializeToString())
    net = pp.Network.load(path)
    assert (net.predict(table.to_numpy()) == (pipe.predict(table.to_numpy()) == "yes")).all()
