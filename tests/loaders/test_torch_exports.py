"""ONNX files that both exporters of torch write: the file is read as the module is."""

from __future__ import annotations

import numpy as np
import pytest

from proplace import Model
from proplace.core.errors import ModelNotSupportedError
from support.models import export_torch
from support.tiers import thorough

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
nn, F = torch.nn, torch.nn.functional

WIDTH = 5  # columns, of which the first and the last hold categories in some modules
pytestmark = pytest.mark.filterwarnings("ignore")


def export(module, path, exporter, rows=None, **options):
    """Write a file that takes any number of rows."""
    if exporter == "new":
        pytest.importorskip("onnxscript")
        options |= {"dynamo": True, "verbose": False}
        options["dynamic_shapes"] = ({0: torch.export.Dim("n")},)
    else:
        options |= {"dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    return export_torch(module, path, torch.zeros(4, WIDTH) if rows is None else rows, **options)


class Front(nn.Module):
    """Steps before the first layer, then layers with a last step."""

    def __init__(self, front, width, *, outputs=2, relu=F.relu, last=lambda z: z):
        super().__init__()
        self.front, self.relu, self.last = front, relu, last
        self.register_buffer("order", torch.tensor([3, 1, 0, 2, 4]))
        self.register_buffer("mean", torch.arange(5.0))
        self.one, self.two = nn.Embedding(4, 3), nn.Embedding(3, 2)
        self.a, self.b = nn.Linear(width, 4), nn.Linear(4, outputs)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.last(self.b(self.relu(self.norm(self.a(self.front(self, x))))))


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = F.relu(self.a(x))
        return self.b(h) + h


def embedded(m, x):
    return torch.cat([m.one(x[:, 0].long()), x[:, 1:4], m.two(x[:, 4].long())], 1)


def one_hot(m, x):
    return torch.cat([F.one_hot(x[:, 0].long(), 4).float(), x[:, 1:4]], 1)


def sequential(*last, outputs=1):
    hidden = [
        nn.Flatten(),
        nn.Linear(WIDTH, 8),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(8, 6, bias=False),
    ]
    return nn.Sequential(*hidden, nn.ReLU(), nn.Linear(6, outputs), *last)


MODULES = {
    "logits": lambda: sequential(outputs=3),
    "sigmoid": lambda: sequential(nn.Sigmoid()),
    "flat": lambda: sequential(nn.Sigmoid(), nn.Flatten(0)),
    "softmax": lambda: sequential(nn.Softmax(1), outputs=3),
    "linear": lambda: nn.Sequential(nn.Linear(WIDTH, 1)),
    "clamped": lambda: Front(lambda m, x: x, 5, relu=lambda z: z.clamp(min=0)),
    "scaled": lambda: Front(
        lambda m, x: ((x - m.mean) / (m.mean + 1)).view(x.size(0), -1),
        5,
        outputs=3,
        last=lambda z: torch.log_softmax(z, dim=-1),
    ),
    "permuted": lambda: Front(lambda m, x: x[:, m.order] / 2, 5),
    "listed": lambda: Front(lambda m, x: x[:, [1, 2, 4]] - 1, 3),
    "embedded": lambda: Front(embedded, 8),
    "two embedded at once": lambda: Front(lambda m, x: m.one(x[:, [0, 4]].long()).flatten(1), 6),
    "one-hot": lambda: Front(one_hot, 7),
}


@pytest.mark.parametrize("exporter", thorough("old", "new"))
@pytest.mark.parametrize("name", MODULES)
def test_exported_module_is_read_as_module(name, exporter, tmp_path):
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, WIDTH))
    if "embedded" in name or name == "one-hot":
        X[:, [0, 4]] = rng.integers(3, size=(60, 2))
    X = X[:, :4] if name == "one-hot" else X
    X = X.astype(np.float32).astype(np.float64)
    path = export(module, tmp_path / "m.onnx", exporter, torch.as_tensor(X).float())

    model, original = Model.of(path), Model.of(module)

    assert [type(f) for f in model.schema.features] == [type(f) for f in original.schema.features]
    exact = original.network.logits(original.encode(X))
    np.testing.assert_allclose(model.network.logits(model.encode(X)), exact, atol=1e-6)
    sure = np.sort(exact, axis=1)[:, -1] - (0.0 if exact.shape[1] < 2 else np.sort(exact)[:, -2])
    sure = np.abs(sure) > 1e-5
    for given in (model.predict_original(X), model.predict(X)):
        assert (given == original.predict_original(X))[sure].all()
    assert (model.network.precision, sure.mean() > 0.9) == ("float32", True)


@pytest.mark.every(3)
@pytest.mark.parametrize("exporter", ["old", "new"])
@pytest.mark.parametrize("name", ["sigmoid", "scaled"])
def test_exported_float64_module_has_margins_of_float64(name, exporter, tmp_path):
    module = MODULES[name]().double().eval()
    X = np.random.default_rng(0).standard_normal((50, WIDTH))
    path = export(module, tmp_path / "m.onnx", exporter, torch.as_tensor(X))
    model, original = Model.of(path), Model.of(module)
    exact = original.network.logits(original.encode(X))
    np.testing.assert_allclose(model.network.logits(model.encode(X)), exact, atol=1e-9)
    assert model.network.precision == "float64"


def test_file_without_dynamic_batch_is_read(tmp_path):
    module = MODULES["permuted"]().eval()
    path = export_torch(module, tmp_path / "m.onnx", torch.zeros(4, WIDTH), dynamo=False)
    X = np.random.default_rng(0).standard_normal((50, WIDTH))
    assert (Model.of(path).predict_original(X) == Model.of(module).predict(X)).all()


def test_batch_norm_in_training_mode(tmp_path):
    module = MODULES["permuted"]().train()
    with pytest.raises(
        ModelNotSupportedError, match=r"'norm' \(BatchNorm1d\) is in training mode.*module.eval\(\)"
    ):
        Model.of(module)
    training = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    with pytest.raises(
        ModelNotSupportedError, match=r"is in training mode. Export with model.eval"
    ):
        Model.of(export(module, tmp_path / "a.onnx", "old", **training))
    module.eval()
    path = export(module, tmp_path / "b.onnx", "old")
    assert Model.of(path).network.widths == Model.of(module).network.widths


def test_skip_connections_are_sent_nowhere(tmp_path):
    """No other format reads them, and both refusals point that out."""
    module = nn.Sequential(Skip(), nn.ReLU(), nn.Linear(WIDTH, 1)).eval()
    for source in (module, export(module, tmp_path / "m.onnx", "old")):
        with pytest.raises(
            ModelNotSupportedError, match=r"read from no other format either. Train"
        ):
            Model.of(source)


def test_torch_script_is_sent_to_its_export(tmp_path):
    module = MODULES["sigmoid"]().eval()
    traced = torch.jit.trace(module, torch.zeros(2, WIDTH))
    with pytest.raises(
        ModelNotSupportedError, match=r"Give the nn.Module it was made from, or export it"
    ):
        Model.of(traced)
    path = export(traced, tmp_path / "m.onnx", "old")
    assert Model.of(path).network.widths == Model.of(module).network.widths


@pytest.mark.slow
def test_graphs_in_half_precision_are_rejected_and_advice_works(tmp_path):
    module = MODULES["sigmoid"]().half().eval()
    path = export(module, tmp_path / "a.onnx", "new", torch.zeros(4, WIDTH).half())
    with pytest.raises(ModelNotSupportedError, match=r"float16 numbers.*export\(model\.float\(\)"):
        Model.of(path)
    module = module.float()
    model = Model.of(export(module, tmp_path / "b.onnx", "new"))
    assert model.network.precision == "float32"
    np.testing.assert_array_equal(model.network.layers[0].W, module[1].weight.detach().double())
