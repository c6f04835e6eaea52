"""Torch modules: the table goes in, the module's own class comes out."""

from __future__ import annotations

import copy
import itertools
import sys
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proplace import Model, Schema
from proplace.core.errors import InputError, MissingExtraError, ModelNotSupportedError, SchemaError
from proplace.loaders.layers import Chain
from proplace.loaders.torch import from_torch
from proplace.schema import Binary, Categorical, Continuous
from support.networks import NetworkOf
from support.tiers import examples

torch = pytest.importorskip("torch")
prune = pytest.importorskip("torch.nn.utils.prune")
nn = torch.nn
F = torch.nn.functional

WIDTH = 5  # columns of the table. In modules with categories, these are the first and the fourth
LABELS = (4, 3)
MEAN, STD = [50_000.0, 40.0, 0.0], [12_000.0, 11.0, 2.0]


def rows(n=200, seed=0, *, labels=LABELS):
    """Two categories among three numbers of very different sizes."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((n, 3)) * STD + MEAN
    first, second = (rng.integers(k, size=n) for k in labels)
    return np.column_stack([first, numbers[:, 0], numbers[:, 1], second, numbers[:, 2]])


def head(inputs, *widths, outputs=1, last=()):
    sizes = [inputs, *widths]
    hidden = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs), *last)


class Front(nn.Module):
    """Steps of subclasses on a row, then Linear layers."""

    width = WIDTH

    def __init__(self, *widths, outputs=1, last=()):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN))
        self.register_buffer("std", torch.tensor(STD))
        self.prepare()
        self.head = head(self.width, *widths, outputs=outputs, last=last)

    def prepare(self):
        pass

    def scaled(self, x):
        return (x[:, [1, 2, 4]] - self.mean) / self.std

    def front(self, x):
        return x

    def forward(self, x):
        return self.head(self.front(x))


class Plain(Front):
    pass


class Scaled(Front):
    """All columns, by buffers: also rows of a single column would run."""

    def prepare(self):
        full = torch.tensor([[1.5, *MEAN, 1.0], [1.2, *STD, 0.8]])
        self.register_buffer("all_means", full[0])
        self.register_buffer("all_stds", full[1])

    def front(self, x):
        return (x - self.all_means) / torch.sqrt(self.all_stds**2 + 1e-5)


class Numbers(Front):
    width = 3

    def front(self, x):
        return self.scaled(x)


class Reversed(Front):
    width = 3

    def front(self, x):
        return 1.0 - self.scaled(x).flip(1) * torch.tensor([2.0, -1.0, 0.5])


class Sums(Front):
    width = 4

    def front(self, x):
        z = self.scaled(x)
        columns = [z[:, 0] + z[:, 1], z[:, 0] - z[:, 2], -z[:, 1], 0.0 * z[:, 2]]
        return torch.stack(columns, dim=1)  # noqa: PD013


class OneEmbedding(Front):
    width = 5

    def prepare(self):
        self.job = nn.Embedding(LABELS[0], 2)

    def front(self, x):
        return torch.cat([self.job(x[:, 0].long()), self.scaled(x)], dim=1)


class TwoEmbeddings(Front):
    width = 8

    def prepare(self):
        self.tables = nn.ModuleList([nn.Embedding(LABELS[0], 2), nn.Embedding(LABELS[1], 3)])

    def front(self, x):
        first = self.tables[0](x[:, 0].to(torch.int64))
        second = self.tables[1](x[:, 3:4].int()).squeeze(1)
        return torch.cat((first, self.scaled(x.float()), second), -1)


class SharedEmbedding(Front):
    """One table for two columns."""

    width = 7

    def prepare(self):
        self.table = nn.Embedding(4, 2)

    def front(self, x):
        return torch.cat([self.table(x[:, [0, 3]].long()).flatten(1), self.scaled(x)], dim=1)


class NormedEmbedding(Front):
    width = 5

    def prepare(self):
        self.job, self.norm = nn.Embedding(LABELS[0], 2), nn.BatchNorm1d(5)

    def front(self, x):
        return self.norm(torch.hstack([self.scaled(x), self.job(x[:, 0].type("torch.LongTensor"))]))


class OneHot(Front):
    width = 7

    def front(self, x):
        job = F.one_hot(x[:, 0].long(), num_classes=LABELS[0]).float()
        return torch.concat([self.scaled(x), job], dim=1)


class CategoryAndNumber(Front):
    """A category that counts as a number, too."""

    width = 4

    def prepare(self):
        self.job = nn.Embedding(LABELS[0], 2)

    def front(self, x):
        return torch.cat([self.job(x[:, 0].long()), x[:, :1] / 3, self.scaled(x)[:, 1:2]], 1)


class Views(Front):
    width = 3

    def front(self, x):
        a, b = self.scaled(x).split([1, 2], dim=1)
        z = torch.cat([b, a], dim=1).unsqueeze(1).view(x.size(0), -1)
        return z.reshape(x.shape[0], 3).contiguous().detach().to(x.device)


FRONTS = [Plain, Scaled, Numbers, Reversed, Sums, Views]
CATEGORIES = [
    OneEmbedding,
    TwoEmbeddings,
    SharedEmbedding,
    NormedEmbedding,
    OneHot,
    CategoryAndNumber,
]


class Functional(nn.Module):
    """ReLU in all ways of writing it, with a last activation."""

    def __init__(self, outputs, last):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 6), nn.Linear(6, 4), nn.Linear(4, 4)])
        self.more, self.out = nn.Linear(4, 5), nn.Linear(5, outputs)
        self.drop, self.last = nn.Dropout(0.5), last

    def forward(self, x, temperature=2.0):
        x = F.relu(self.layers[0](x / 10_000))
        x = F.dropout(torch.relu(self.layers[1](x)), 0.3, self.training)
        x = self.drop(self.layers[2](x).relu())
        x = torch.clamp(self.more(x), min=0)
        return self.last(self.out(x) / temperature)


class Subclass(nn.Linear):
    """A Linear layer under another name."""


class ByHand(nn.Module):
    """Parameters of its own, used as Linear layers use them."""

    def __init__(self):
        super().__init__()
        self.W1, self.b1 = nn.Parameter(torch.randn(4, WIDTH)), nn.Parameter(torch.randn(4))
        self.W2 = nn.Parameter(torch.randn(1, 4))

    def forward(self, x):
        return F.linear(F.relu(F.linear(x / 10_000, self.W1, self.b1)), self.W2)


def normed(*places, outputs=1, bias=True):
    """Batch norm before, behind and between the layers."""
    first, second, last = nn.Linear(WIDTH, 6, bias=bias), nn.Linear(6, 4), nn.Linear(4, outputs)
    parts = {
        "front": nn.BatchNorm1d(WIDTH),
        "behind": nn.BatchNorm1d(6),
        "between": nn.BatchNorm1d(6, affine=False),
        "twice": nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4)),
        "end": nn.BatchNorm1d(outputs),
    }
    chosen = {name: part if name in places else nn.Identity() for name, part in parts.items()}
    return nn.Sequential(
        *(chosen["front"], first, chosen["behind"], nn.ReLU(), chosen["between"]),
        *(second, nn.ReLU(), chosen["twice"], last, chosen["end"]),
    )


def settled(module, X, *, spread=1.0):
    """Give batch norms statistics and weights of both signs, then evaluation mode."""
    generator = torch.Generator().manual_seed(7)
    module.train()
    with torch.no_grad():
        for _ in range(30):
            module(torch.as_tensor(X, dtype=torch.float32))
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm1d) and norm.affine:
                norm.weight.copy_(spread * torch.randn(norm.weight.shape, generator=generator))
                norm.bias.copy_(torch.randn(norm.bias.shape, generator=generator))
    return module.eval()


def doubled(module, X):
    """Outputs of a float64 copy, with casts to float32 turned into ones to float64."""
    twin = copy.deepcopy(module).double().eval()
    cast = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    try:
        with torch.no_grad():
            return twin(torch.as_tensor(X, dtype=torch.float64)).numpy()
    finally:
        torch.Tensor.float = cast


def single(module, X):
    with torch.no_grad():
        return module.eval()(torch.as_tensor(X, dtype=torch.float32)).numpy()


def classes(Y, threshold=0.0):
    return (Y.reshape(len(Y)) >= threshold).astype(int) if Y.size == len(Y) else Y.argmax(axis=1)


def check(module, X, *, threshold=0.0, to_logits=lambda Y: Y):
    """Every logit and every class is the module's own, in Model and, for numbers, in from_torch."""
    model = Model.of(module)
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    exact = to_logits(doubled(module, X)).reshape(len(X), model.network.outputs)
    for table in (X, frame, frame.sample(frac=1.0, axis=1, random_state=0)):
        ours = model.network.logits(model.encode(table))
        np.testing.assert_allclose(ours, exact, rtol=1e-9, atol=1e-9 * np.abs(exact).max())
        assert (model.predict(table) == classes(doubled(module, X), threshold)).all()
        assert (model.predict_original(table) == classes(single(module, X), threshold)).all()
    far = np.abs(exact).max(axis=1) > 1e-3 * np.abs(exact).max()
    assert (model.predict(X) == model.predict_original(X))[far].all()
    rounded = to_logits(single(module, X)).reshape(exact.shape)
    np.testing.assert_allclose(rounded, exact, rtol=1e-3, atol=1e-4 * np.abs(exact).max())
    if all(isinstance(feature, Continuous) for feature in model.schema.features):
        network = NetworkOf(module)
        assert network.inputs == X.shape[1]
        np.testing.assert_allclose(
            network.logits(X), exact, rtol=1e-9, atol=1e-9 * np.abs(exact).max()
        )
    return model


def unchanged(network, module):
    """The trained weights are the module's own, bit for bit."""
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    assert len(linear) == len(network.layers)
    for layer, own in zip(network.layers, linear, strict=True):
        np.testing.assert_array_equal(layer.W, own.weight.detach().double().numpy())
        if own.bias is None:
            assert layer.b is None
        else:
            np.testing.assert_array_equal(layer.b, own.bias.detach().double().numpy())


# -- what stands in front ----------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("widths", [(), (6,), (6, 5), (4, 4, 4)], ids=len)
@pytest.mark.parametrize("kind", [*FRONTS, *CATEGORIES])
def test_every_logit_is_module_s_own(kind, widths, outputs):
    torch.manual_seed(len(widths))
    X = rows(labels=(3, 3) if kind is SharedEmbedding else LABELS)
    module = settled(kind(*widths, outputs=outputs), X)
    model = check(module, X)
    unchanged(model.network, module)
    assert model.classes == tuple(range(max(2, outputs)))
    assert model.has_preprocessing == (kind is not Plain)
    assert model.network.precision == "float32"


def test_numbers_take_their_scaling_into_schema():
    schema = Model.of(Numbers(4)).schema
    assert [(f.name, f.offset, f.scale) for f in schema.features] == [
        ("x1", 50_000.0, 12_000.0),
        ("x2", 40.0, 11.0),
        ("x4", 0.0, 2.0),
    ]
    assert not NetworkOf(Numbers(4)).input_transform


def test_embedding_makes_category():
    model = Model.of(TwoEmbeddings(4))
    assert model.schema.by_name["x0"] == Categorical("x0", list(range(4)))
    assert model.schema.by_name["x3"] == Categorical("x3", list(range(3)))
    table = pd.DataFrame(rows(20), columns=[f"x{i}" for i in range(5)])
    as_whole = table.astype({"x0": int, "x3": int})
    assert (model.predict(as_whole) == model.predict(table)).all()
    with pytest.raises(SchemaError, match="x3"):
        model.predict(table.replace({"x3": {1.0: 3.0}}))


def test_one_hot_needs_no_matrix():
    model = Model.of(OneHot(4))
    assert model.network.input_transform.matrix is None


def test_table_of_categories_alone():
    """Such modules often take whole numbers."""

    class Whole(nn.Module):
        def __init__(self, many=2):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(4, 2), nn.Embedding(3, 2)])
            self.out = nn.Linear(4 + (many - 2), 2)
            self.many = many

        def forward(self, x):
            found = [table(x[:, i]) for i, table in enumerate(self.tables)]
            numbers = [] if self.many == 2 else [x[:, 2:].float()]
            return self.out(torch.cat([*found, *numbers], dim=1))

    module = Whole().eval()
    X = rows()[:, [0, 3]]
    model = Model.of(module)
    with torch.no_grad():
        theirs = module(torch.as_tensor(X, dtype=torch.int64)).argmax(dim=1).numpy()
    assert (model.predict(X) == theirs).all()
    assert (model.predict_original(X) == theirs).all()
    with pytest.raises(ModelNotSupportedError, match=r"rows of whole numbers.*x\[:, 0\].long\(\)"):
        Model.of(Whole(3))


class Recording(OneEmbedding):
    """A module that records its rows. Each copy has its own record."""

    def prepare(self):
        super().prepare()
        self.record, self.scale = [], torch.ones(5)

    def front(self, x):
        if not torch.compiler.is_compiling():
            self.record.append((x.device.type, x.detach().cpu().numpy().copy()))
        return super().front(x) * self.scale


ACCELERATORS = ["cuda"] if torch.cuda.is_available() else ["pretended"]


@pytest.mark.parametrize("device", ACCELERATORS)
def test_module_on_gpu_runs_there_on_legal_rows_only(device, monkeypatch):
    """A category out of range on a GPU would end CUDA for the process."""
    module = Recording(4).eval()
    if device == "pretended":  # the copy that a module on a GPU would get
        monkeypatch.setattr("proplace.loaders.torch._devices", lambda module: {"cuda"})
        device = "cpu"
    module.to(device).scale = module.scale.to(device)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    X = rows()
    model = Model.of(module)
    assert (model.predict(X) == model.predict_original(X)).mean() > 0.99
    X[1, 0] = 9.0
    with pytest.raises(InputError, match=r"row 1, column 'x0': 9.0 is none of the 4 cat"):
        model.predict_original(X)
    assert module.record
    assert all(where == device for where, _ in module.record)
    assert all(np.isin(seen[:, 0], range(LABELS[0])).all() for _, seen in module.record)
    assert all((tensor == weights[name]).all() for name, tensor in module.state_dict().items())


def test_module_that_cannot_be_copied_is_read_on_cpu(monkeypatch):
    class Fixed(Plain):
        def __deepcopy__(self, memo):
            raise TypeError("not this one")

    module = Fixed(4)
    monkeypatch.setattr("proplace.loaders.torch._devices", lambda module: {"cuda"})
    with pytest.raises(ModelNotSupportedError, match=r"\(not this one\). Give module.cpu\(\)"):
        Model.of(module)
    monkeypatch.undo()
    model = Model.of(module.cpu())
    assert (model.predict(rows()) == model.predict_original(rows())).all()


def test_columns_that_are_never_looked_at_may_be_left_out():
    module = Numbers(4)
    model = Model.of(module)
    X = rows()
    frame = pd.DataFrame(X[:, [4, 1, 2]], columns=["x4", "x1", "x2"])
    np.testing.assert_array_equal(model.predict(frame), model.predict(X))
    np.testing.assert_array_equal(model.predict_original(frame), model.predict_original(X))
    frame.loc[3, "x4"] = np.nan
    with pytest.raises(InputError, match=r"row 3, column 'x4'.*missing"):
        model.predict_original(frame)


def test_names_come_from_user_s_schema():
    torch.manual_seed(0)
    X = rows()
    module = OneEmbedding(6).eval()
    names = ["job", "income", "age", "other", "years"]
    user = Schema(
        [
            Categorical("job", [0, 1, 2, 3]),
            Continuous("income", 0, 200_000),
            Continuous("age", -100, 200, direction="increasing"),
            Continuous("years", -10, 10),
        ]
    )
    frame = pd.DataFrame(X, columns=names)
    with pytest.raises(SchemaError, match="4 columns are named, the model takes 5"):
        Model.of(module).with_schema(user)
    binary = Schema([*user.features[:3], Binary("other", [0, 1]), user.features[3]])
    with pytest.raises(SchemaError, match="describes 'other', which the model does not take"):
        Model.of(module).with_schema(binary)
    smaller = OneEmbeddingOfFour(6).eval()
    model = Model.of(smaller).with_schema(user)
    theirs = classes(single(smaller, X[:, [0, 1, 2, 4]]))
    assert (model.predict(frame) == theirs).all()
    assert (model.predict_original(frame) == theirs).all()


class Columns(nn.Module):
    def __init__(self, places):
        super().__init__()
        self.register_buffer("places", torch.tensor(places))

    def forward(self, x):
        return x[:, self.places]


class OneEmbeddingOfFour(OneEmbedding):
    def scaled(self, x):
        return (x[:, 1:] - self.mean) / self.std


# -- layers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "last", "threshold", "to_logits"),
    [
        (1, lambda z: z, 0.0, lambda Y: Y),
        (1, lambda z: z.squeeze(-1), 0.0, lambda Y: Y),
        (1, lambda z: z.squeeze(), 0.0, lambda Y: Y),
        (1, lambda z: z.view(-1), 0.0, lambda Y: Y),
        (1, lambda z: z[:, 0], 0.0, lambda Y: Y),
        (1, torch.sigmoid, 0.5, lambda Y: np.log(Y / (1 - Y))),
        (1, lambda z: z.sigmoid().flatten(), 0.5, lambda Y: np.log(Y / (1 - Y))),
        (3, lambda z: z, 0.0, lambda Y: Y),
        (3, lambda z: F.log_softmax(z, dim=1), 0.0, None),
        (3, lambda z: z.softmax(-1), 0.0, None),
        (3, lambda z: torch.sigmoid(z)[:, 1:2], 0.5, lambda Y: np.log(Y / (1 - Y))),
        (3, lambda z: z[:, [2, 0]], 0.0, lambda Y: Y),
    ],
)
def test_functions_in_forward(outputs, last, threshold, to_logits):
    torch.manual_seed(3)
    module = Functional(outputs, last).train()
    X = rows()
    if to_logits is None:  # logits are known up to a number for each row
        model = Model.of(module)
        ours = model.network.predict_proba(model.encode(X))
        P = doubled(module, X)
        np.testing.assert_allclose(ours, np.exp(P) if P.max() <= 0.0 else P, atol=1e-9)
        assert (model.predict_original(X) == single(module, X).argmax(axis=1)).all()
    else:
        check(module, X, threshold=threshold, to_logits=to_logits)


def test_module_stays_as_it_is():
    module = Functional(1, lambda z: z).train()
    before = copy.deepcopy(module.state_dict())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model = Model.of(module)
    model.predict_original(rows())
    assert all(m.training for m in module.modules())
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any("proplace" in str(type(v)) for v in vars(module).values())


def test_layers_under_other_names():
    torch.manual_seed(0)
    X = rows()
    module = nn.Sequential(Columns([1, 2]), Subclass(2, 3), nn.ReLU(), Subclass(3, 1))
    unchanged(check(module, np.delete(X, [3, 4], axis=1)).network, module)
    by_hand = ByHand()
    network = check(by_hand, X).network
    np.testing.assert_array_equal(network.layers[0].W, by_hand.W1.detach().double().numpy())
    assert network.layers[1].b is None


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, torch.optim.swa_utils.AveragedModel, nn.Sequential],
    ids=["parallel", "averaged", "nested"],
)
def test_wrapped_modules(wrap):
    torch.manual_seed(0)
    module = OneEmbedding(4).eval()
    X = rows()
    assert (Model.of(wrap(module)).predict(X) == Model.of(module).predict(X)).all()


def test_layers_that_output_does_not_depend_on():
    class Two(Plain):
        def prepare(self):
            self.other = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1), nn.Tanh())

        def forward(self, x):
            self.kept = self.other(x)
            return super().forward(x)

    model = Model.of(Two(4).eval())
    assert model.network.widths == (4,)


def test_float64_modules():
    torch.manual_seed(0)
    module = OneEmbedding(4).double().eval()
    X = rows()
    model = Model.of(module)
    with torch.no_grad():
        theirs = module(torch.as_tensor(X)).numpy()
    np.testing.assert_allclose(model.network.logits(model.encode(X)), theirs, atol=1e-9)
    assert model.network.precision == "float64"
    assert (model.predict_original(X) == classes(theirs)).all()


def test_layers_that_are_left_out():
    """A last activation, and what does nothing in evaluation mode, in modules inside of modules."""
    X = rows() / [1.0, 12_000.0, 11.0, 1.0, 2.0]
    for last, outputs in ((nn.Sigmoid(), 1), (nn.Softmax(dim=1), 3), (nn.LogSoftmax(dim=-1), 3)):
        torch.manual_seed(0)
        inner = nn.Sequential(
            nn.Identity(), nn.ReLU(), nn.Sequential(nn.Dropout(), nn.Linear(6, 4))
        )
        module = nn.Sequential(
            *(nn.Flatten(), nn.Linear(WIDTH, 6), inner, nn.ReLU(), nn.AlphaDropout()),
            *(nn.Linear(4, outputs), last),
        ).train()
        P = np.exp(doubled(module, X)) if isinstance(last, nn.LogSoftmax) else doubled(module, X)
        P = P if outputs > 1 else np.hstack([1.0 - P, P])
        np.testing.assert_allclose(NetworkOf(module).predict_proba(X), P, atol=1e-9)
        assert module.training, "the training flag is kept"


class SharedReLU(nn.Module):
    """One ReLU module, registered last and used twice. The loss is registered, too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.drop, self.relu, self.sigmoid = nn.Dropout(), nn.ReLU(), nn.Sigmoid()
        self.criterion = nn.BCELoss()

    def forward(self, x):
        x = self.drop(self.relu(self.fc1(x)))
        return self.sigmoid(self.fc3(self.relu(self.fc2(x)))).squeeze(-1)


def test_one_relu_used_twice():
    module = SharedReLU()
    X = rows()
    np.testing.assert_allclose(
        NetworkOf(module).predict_proba(X)[:, 1], doubled(module, X), atol=1e-12
    )
    assert module.training


def test_precision_is_that_of_all_parameters():
    """One float32 layer is enough for the module to compute in float32."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 4).double(), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(self.first(x.double()).relu().to(self.last.weight.dtype))

    assert NetworkOf(Mixed().double()).precision == "float64"
    assert NetworkOf(Mixed()).precision == "float32"


class OnlyFloat32(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.factor = head(WIDTH, 4), 1.0

    def forward(self, x):
        assert x.dtype == torch.float32
        return self.net(x) * self.factor


def test_small_differences_show_in_float32():
    """A module that runs in float32 alone is compared to the rounding of float32, no wider."""
    module = OnlyFloat32().train()
    assert NetworkOf(module).outputs == 1
    assert all(m.training for m in module.modules())
    module.factor = 1.001
    read = NetworkOf(module).layers[-1].W
    np.testing.assert_array_equal(read, 1.001 * module.net[-1].weight.detach().double().numpy())


@pytest.mark.parametrize("kinds", [("half", "half"), ("bfloat16", "bfloat16"), ("half", "float")])
@pytest.mark.parametrize("normed", [False, True])
def test_half_precision_is_rejected_and_advice_works(kinds, normed):
    parts = [nn.Linear(3, 4), nn.BatchNorm1d(4) if normed else nn.Identity()]
    first, last = nn.Sequential(*parts), nn.Linear(4, 1)
    for part, kind in zip((first, last), kinds, strict=True):
        getattr(part, kind)()
    module = nn.Sequential(first, nn.ReLU(), last).eval()
    with pytest.raises(ModelNotSupportedError, match=r"float16.*module\.float\(\)"):
        Model.of(module)
    weights = [p.detach().double().numpy() for p in module.parameters()]
    X = np.random.default_rng(0).normal(size=(200, 3))
    net = NetworkOf(module.float())
    assert net.precision == "float32"
    np.testing.assert_array_equal(net.layers[-1].W, weights[-2])
    np.testing.assert_allclose(net.logits(X), doubled(module, X), atol=1e-5)


# -- batch norm --------------------------------------------------------------------------------------

PLACES = ["front", "behind", "between", "twice", "end"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("places", [[p] for p in PLACES] + [PLACES])
def test_batch_norm(places, outputs, bias):
    torch.manual_seed(1)
    X = rows() / [1.0, 12_000.0, 11.0, 1.0, 2.0]
    module = settled(normed(*places, outputs=outputs, bias=bias), X)
    model = check(module, X)
    folded = {"behind": 0, "between": 1, "twice": 2, "end": 2}
    touched = {folded[place] for place in places if place in folded}
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    for i, (layer, own) in enumerate(zip(model.network.layers, linear, strict=True)):
        same = np.array_equal(layer.W, own.weight.detach().double().numpy())
        assert same == (i not in touched)
        if i not in touched and own.bias is not None:
            np.testing.assert_array_equal(layer.b, own.bias.detach().double().numpy())
    assert model.has_preprocessing == ("front" in places)
    assert (model.network.layers[0].b is None) == (not bias and "behind" not in places)


def test_folding_in_torch_gives_same_network():
    torch.manual_seed(1)
    X = rows() / [1.0, 12_000.0, 11.0, 1.0, 2.0]
    module = settled(normed("behind"), X)
    fused = copy.deepcopy(module)
    fused[1] = nn.utils.fusion.fuse_linear_bn_eval(module[1], module[2])
    fused[2] = nn.Identity()
    ours, theirs = NetworkOf(module), NetworkOf(fused)
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        np.testing.assert_allclose(a.W, b.W, rtol=1e-5)
        np.testing.assert_allclose(a.b, b.b, rtol=1e-4, atol=1e-6)


def test_batch_norm_of_factor_zero():
    torch.manual_seed(1)
    X = rows() / [1.0, 12_000.0, 11.0, 1.0, 2.0]
    module = settled(normed("front", "behind", "between"), X)
    with torch.no_grad():
        module[0].weight[2] = 0.0
        module[2].weight[1] = 0.0
    check(module, X)
    assert "x2" not in Model.of(module).schema.by_name


def exact(values):
    return [[Fraction(float(v)) for v in row] for row in np.atleast_2d(values)]


@given(st.integers(0, 10_000), st.sampled_from(["behind", "between"]))
@examples(40)
def test_folding_is_exact_up_to_last_digits(seed, place):
    """The folded layer against the layer and the batch norm in rational numbers."""
    rng = np.random.default_rng(seed)
    W, b = rng.standard_normal((3, 4)) * 10.0 ** rng.uniform(-3, 3), rng.standard_normal(3)
    n = 3 if place == "behind" else 4
    g, t = rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3), rng.standard_normal(n)
    chain = Chain()
    if place == "behind":
        chain.linear("one", W, b)
        chain.batch_norm("norm", g, t)
        network = chain.network("float64")
    else:
        chain.linear("zero", np.eye(4), None)
        chain.relu("relu")
        chain.batch_norm("norm", g, t)
        chain.linear("one", W, b)
        network = chain.network("float64")
    folded = network.layers[-1]
    fW, (fb,), (fg,), (ft,) = exact(W), exact(b), exact(g), exact(t)
    for i in range(3):
        if place == "behind":
            weights = [fg[i] * w for w in fW[i]]
            terms = [fg[i] * fb[i], ft[i]]
        else:
            weights = [w * s for w, s in zip(fW[i], fg, strict=True)]
            terms = [fb[i], *(w * s for w, s in zip(fW[i], ft, strict=True))]
        for ours, theirs in zip(folded.W[i], weights, strict=True):
            assert abs(Fraction(float(ours)) - theirs) <= abs(theirs) * Fraction(2) ** -52
        error = abs(Fraction(float(folded.b[i])) - sum(terms))
        assert error <= sum(map(abs, terms)) * Fraction(2) ** -50


def test_numbers_that_change_nothing_change_no_bit():
    W, b = np.array([[0.1, -0.2]]), np.array([-0.0])
    chain = Chain()
    chain.linear("one", W, b)
    chain.batch_norm("norm", np.ones(1), np.zeros(1))
    layer = chain.network("float64").layers[0]
    assert layer.W.tobytes() == W.tobytes()
    assert layer.b.tobytes() == b.tobytes()


def test_chain_refuses_other_layers():
    chain = Chain()
    chain.linear("one", np.eye(3), None)
    with pytest.raises(ModelNotSupportedError, match="'norm' has 2 numbers for 3 outputs of one"):
        chain.batch_norm("'norm'", np.ones(2), np.zeros(2))


def test_relu_around_batch_norm():
    """relu(norm(relu(z))) is not a layer. Remove one ReLU."""
    norm = settled(nn.Sequential(nn.BatchNorm1d(4)), np.random.default_rng(0).random((9, 4)))
    first, last = nn.Linear(WIDTH, 4), nn.Linear(4, 1)
    with pytest.raises(
        ModelNotSupportedError, match=r"'3' \(ReLU\) acts on layer '2.0' .*leave one"
    ):
        Model.of(nn.Sequential(first, nn.ReLU(), norm, nn.ReLU(), last).eval())
    check(nn.Sequential(first, norm, nn.ReLU(), last).eval(), rows())
    check(nn.Sequential(first, nn.ReLU(), norm, last).eval(), rows())


def test_batch_norm_without_statistics():
    def build(tracked):
        norm = nn.BatchNorm1d(4, track_running_stats=tracked)
        return nn.Sequential(nn.Linear(3, 4), norm, nn.ReLU(), nn.Linear(4, 1)).eval()

    with pytest.raises(
        ModelNotSupportedError, match=r"no running statistics.*track_running_stats=True"
    ):
        Model.of(build(tracked=False))
    assert NetworkOf(build(tracked=True)).widths == (4,)


# -- what cannot be taken, and what to do then -------------------------------------------------------


class Custom(nn.Module):
    """A forward of the test's own over some layers."""

    def __init__(self, forward, inputs=WIDTH):
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b = nn.Linear(inputs, 4), nn.Linear(4, 4)
        self.c, self.d = nn.Linear(4, 1), nn.Linear(4 + WIDTH, 1)
        self.emb, self.wide = nn.Embedding(4, WIDTH), nn.Linear(inputs + WIDTH, 1)
        self.free = nn.Parameter(torch.ones(1))
        self.register_buffer("fixed", torch.full((1,), 0.5))
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


def straight(m, x):
    return m.c(F.relu(m.b(F.relu(m.a(x)))))


@pytest.mark.parametrize(
    ("wrong", "message", "right"),
    [
        (
            lambda m, x: m.c(m.b(h := F.relu(m.a(x))) + h),
            "does not equal the chain.*add in the forward.*skip connection.*Train the model without",
            straight,
        ),
        (
            lambda m, x: m.d(torch.cat([x, F.relu(m.a(x))], dim=1)),
            "cat in the forward.*joins two paths",
            lambda m, x: m.wide(torch.cat([x, m.emb(x[:, 0].long())], dim=1)),
        ),
        (lambda m, x: m.c(F.relu(m.a(x) + m.a(-x))), "joins two paths", straight),
        (
            lambda m, x: m.c(F.relu(m.b(h := F.relu(m.a(x))) + m.b(h))),
            r"layer 'b' \(Linear\) joins two paths",
            straight,
        ),
        (lambda m, x: (m.c(F.relu(m.a(x))), x)[1], "no Linear layer", straight),
        (
            lambda m, x: m.c(F.leaky_relu(m.a(x))),
            "leaky_relu in the forward of Custom is not part.*Train the model with those",
            straight,
        ),
        (lambda m, x: m.c(torch.tanh(m.a(x))), "tanh in the forward.*Train the model", straight),
        (
            lambda m, x: m.c(F.relu(m.a(x))).round(),
            "round in the forward.*Train the model",
            straight,
        ),
        (
            lambda m, x: m.c(torch.where((z := m.a(x)) > 0, z, 0.0)),
            "gt in the forward.*Train the model",
            straight,
        ),
        (
            lambda m, x: m.c(F.relu(x @ m.a.weight.T + m.a.bias)),
            "parameter 'a.weight' belongs to no Linear layer, or is used outside of it",
            straight,
        ),
        (lambda m, x: m.c(F.gelu(m.a(x))), "gelu in the forward.*Train the model", straight),
        (lambda m, x: m.c(m.a(x).clamp(0, 6)), "clamp in the forward.*Train the model", straight),
        (lambda m, x: m.c(m.a(x).clamp(min=-1)), "clamp in the forward.*Train the model", straight),
        (
            lambda m, x: m.c(F.layer_norm(m.a(x), (4,))),
            "layer_norm in the forward.*is not part of a ReLU network",
            straight,
        ),
        (
            lambda m, x: m.c(F.relu(m.a(torch.log1p(x.abs())))),
            "abs in the forward of Custom comes before.*to the table beforehand",
            straight,
        ),
        (
            lambda m, x: m.c(F.relu(m.a(x * x))),
            "mul in the forward.*multiplies or divides columns by columns.*in the table",
            straight,
        ),
        (
            lambda m, x: m.c(F.relu(m.a(1.0 / x))),
            "rdiv in .*to the table beforehand",
            straight,
        ),
        (
            lambda m, x: m.c(F.relu(m.a(x.long().float()))),
            "float in the forward.*cut to whole numbers.*Leave the cast out",
            straight,
        ),
        (
            lambda m, x: m.c(F.relu(m.a(x))) * m.free,
            r"parameter 'free' belongs to no Linear layer.*register_buffer",
            lambda m, x: straight(m, x) * m.fixed,
        ),
        (
            lambda m, x: m.c(F.relu(m.a(x - m.free))),
            r"parameter 'free' belongs to no Linear layer.*register_buffer",
            lambda m, x: straight(m, x - m.fixed),
        ),
        (
            lambda m, x: m.c(F.relu(m.a(x).half().float())),
            "half in the forward.*makes the numbers float16.*Leave the cast out",
            straight,
        ),
        (
            lambda m, x: m.c(F.dropout(F.relu(m.a(x)))),
            "drops neurons at random.*training=self.training",
            lambda m, x: m.c(F.dropout(F.relu(m.a(x)), training=m.training)),
        ),
        (
            lambda m, x: straight(m, x[:, [0, 1, 2, 3, -1]]),
            r"counts columns from the end.*count them from the front",
            lambda m, x: straight(m, x[:, [0, 1, 2, 3, 4]]),
        ),
        (
            lambda m, x: m.wide(torch.cat([x, m.emb(x[:, 0].long() + 1)], dim=1)),
            "add in the forward.*cut to whole numbers",
            lambda m, x: m.wide(torch.cat([x, m.emb(x[:, 0].long())], dim=1)),
        ),
        (
            lambda m, x: m.wide(torch.cat([x, m.emb((x[:, 0] + 1).long())], dim=1)),
            r"'emb' \(Embedding\) takes categories of a column that was changed before",
            lambda m, x: m.wide(torch.cat([x, m.emb(x[:, 0].long())], dim=1)),
        ),
        (
            lambda m, x: m.wide(torch.cat([x, F.one_hot(x[:, 0].long())[:, [0] * 5]], dim=1)),
            "torch.export cannot follow.*without an if or assert about their values",
            lambda m, x: m.wide(torch.cat([x, F.one_hot(x[:, 0].long(), 4)[:, [0] * 5]], dim=1)),
        ),
        (
            lambda m, x: m.wide(torch.cat([x, torch.ones_like(x)], dim=1)),
            "ones_like in the forward of Custom comes before",
            straight,
        ),
        (
            lambda m, x: straight(m, x[:, :1] * torch.arange(1.0, 6.0)),
            r"one column against several numbers.*Write the column.*x\[:, \[0, 0, 0\]\]",
            lambda m, x: straight(m, x[:, [0, 0, 0, 0, 0]] * torch.arange(1.0, 6.0)),
        ),
        (lambda m, x: straight(m, x - x[0]), "getitem in the forward.*mixes rows", straight),
        (lambda m, x: m.c(F.relu(m.a(x / torch.zeros(5)))), "divides by zero", straight),
        (
            lambda m, x: F.softmax(m.b(F.relu(m.a(x))), dim=0),
            "takes the softmax over dim=0.*Take it over dim=1",
            lambda m, x: F.softmax(m.b(F.relu(m.a(x))), dim=1),
        ),
        (
            lambda m, x: F.log_softmax(m.b(F.relu(m.a(x))), dim=0),
            "takes the softmax over dim=0.*Take it over dim=1",
            lambda m, x: F.log_softmax(m.b(F.relu(m.a(x))), dim=1),
        ),
        (
            lambda m, x: F.softmax(m.b(F.relu(m.a(x))), dim=1)[:, 1],
            "takes some of the probabilities after softmax.*Return all of them",
            lambda m, x: F.softmax(m.b(F.relu(m.a(x))), dim=1),
        ),
        (
            lambda m, x: torch.sigmoid(m.b(F.relu(m.a(x)))),
            "applies a sigmoid to 4 outputs.*one label's output alone",
            lambda m, x: torch.sigmoid(m.b(F.relu(m.a(x))))[:, :1],
        ),
        (lambda m, x: m.c(F.relu6(m.a(x))), "relu6 in the forward.*Train the model", straight),
        (lambda m, x: 1 - torch.sigmoid(straight(m, x)), "forward of Custom", straight),
        (lambda m, x: (straight(m, x), x), "cannot be run.*return one tensor", straight),
        (
            lambda m, x: m.c(m.b(m.a(x))),
            r"in the forward of Custom, layer 'a' \(Linear\) and layer 'b'.*put a ReLU between",
            straight,
        ),
    ],
)
def test_each_refusal_has_next_step_that_works(wrong, message, right):
    with pytest.raises(ModelNotSupportedError, match=message):
        Model.of(Custom(wrong).eval())
    model = Model.of(Custom(right).eval())
    X = rows()[:, : len(model._columns)]
    assert (model.predict(X) == model.predict_original(X)).mean() > 0.99


def test_autocast():
    def reduced(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return straight(m, x)

    with pytest.raises(
        ModelNotSupportedError, match=r"under autocast.*Leave autocast out of forward"
    ):
        Model.of(Custom(reduced))


def test_several_tensors():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = nn.Embedding(4, 2), nn.Linear(5, 1)

        def forward(self, numbers, codes):
            return self.out(torch.cat([numbers, self.emb(codes).squeeze(1)], dim=1))

    class Rows(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return self.module(x[:, :3], x[:, 3:].long())

    with pytest.raises(ModelNotSupportedError, match=r"takes numbers, codes. Wrap it.*x\[:, 3:\]"):
        Model.of(Two())
    X = rows()[:, [1, 2, 4, 0]]
    check(Rows(Two()), X)


def test_modules_that_test_their_rows_are_read():
    """Asserts about shapes are followed. Branches on values are rejected."""

    def asserting(m, x):
        assert x.shape[1] == WIDTH
        return straight(m, x)

    class Asking(nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(WIDTH, 4), nn.Linear(4, 4), nn.Linear(4, 1)
            self.run = forward

        def forward(self, x):
            return self.run(self, x)

    check(Asking(asserting), rows())
    module = Asking(lambda m, x: asserting(m, m.norm(x)))
    module.norm = nn.BatchNorm1d(WIDTH)
    check(module.eval(), rows())
    with pytest.raises(ModelNotSupportedError, match=r"torch.export cannot follow.*without an if"):
        Model.of(Asking(lambda m, x: straight(m, x) if x.sum() > 0 else -straight(m, x)))


def test_too_many_categories():
    module = nn.Sequential(Columns([0]), nn.Embedding(1001, 2), nn.Flatten(), nn.Linear(2, 1))
    module[0].forward = lambda x: x[:, :1].long()
    with pytest.raises(
        ModelNotSupportedError, match=r"has 1,001 categories of a column\. At most 1,000"
    ):
        Model.of(module)
    module[1] = nn.Embedding(1000, 2)
    check(module, np.arange(1000.0)[:, None])


def test_embedding_with_largest_norm():
    torch.manual_seed(0)
    module = OneEmbedding(4)
    module.job = nn.Embedding(4, 2, max_norm=0.5)
    with pytest.raises(ModelNotSupportedError, match=r"max_norm=0.5.*once on every category.*None"):
        Model.of(module)
    X = rows()
    before = single(module, X)
    module.job.max_norm = None
    check(module, X)
    np.testing.assert_array_equal(single(module, X), before)


@pytest.mark.parametrize(
    ("computed", "bake"),
    [
        (nn.utils.parametrizations.weight_norm, nn.utils.parametrize.remove_parametrizations),
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
        (
            lambda layer: prune.l1_unstructured(layer, "weight", 0.4),
            lambda layer, _: prune.remove(layer, "weight"),
        ),
    ],
    ids=["weight norm", "spectral norm", "pruning"],
)
def test_computed_weights(computed, bake):
    module = head(WIDTH, 4).eval()
    computed(module[0])
    with pytest.raises(
        ModelNotSupportedError, match=r"'0'.*bake them in first with torch.nn.utils"
    ) as e:
        Model.of(module)
    assert f"{bake.__name__}(" in str(e.value) or "prune.remove(" in str(e.value)
    bake(module[0], "weight")
    model = Model.of(module)
    unchanged(model.network, module)


def test_hooks_are_seen():
    module = OneEmbedding(4).eval()
    X = rows()
    before = NetworkOf(module).logits(X)
    module.head[0].register_forward_hook(lambda m, args, out: out * 2)
    model = check(module, X)
    assert not np.allclose(model.network.logits(model.encode(X)), before)


def test_complex_weights_are_refused():
    with pytest.raises(ModelNotSupportedError, match="Linear has complex weights; a ReLU"):
        Model.of(nn.Linear(3, 2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("layer", "hint"),
    [
        (nn.BatchNorm1d(8), r"training mode.*Call module.eval\(\)"),
        (nn.BatchNorm1d(8, track_running_stats=False), "no running statistics.*track_running"),
        (nn.LayerNorm(8), "with BatchNorm1d in its place"),
        (nn.GroupNorm(2, 8), "with BatchNorm1d in its place"),
        (nn.InstanceNorm1d(8), "with BatchNorm1d in its place"),
        (nn.LSTM(8, 8), "only Linear and ReLU.*Train the model with those"),
        (nn.MultiheadAttention(8, 2), "only Linear and ReLU.*Train the model with those"),
        (nn.Tanh(), "only Linear and ReLU.*Train the model with those"),
        (nn.GELU(), "only Linear and ReLU.*Train the model with those"),
        (nn.LeakyReLU(), "only Linear and ReLU.*Train the model with those"),
        (nn.ReLU6(), "only Linear and ReLU"),
        (nn.PReLU(), "only Linear and ReLU"),
        (nn.Conv1d(1, 1, 1), "only Linear and ReLU"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_layers_are_refused_by_name(layer, hint):
    first, *rest = head(5, 8)
    module = nn.Sequential(first, nn.Sequential(layer), *rest)
    name = rf"layer '1\.0' \({type(layer).__name__}\).*{hint}"
    with pytest.raises(ModelNotSupportedError, match=name):
        Model.of(module)


class Boxed(nn.Sequential):
    def forward(self, x):
        return {"logits": super().forward(x)}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(3, 2), nn.Dropout(), nn.Linear(2, 2)),
            "'0'.*and layer '2'.*Merge",
        ),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "ends in a ReLU after layer '0'"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "layer '0'.*before the first"),
        (nn.Sequential(nn.Linear(3, 2), nn.Sigmoid(), nn.Linear(2, 1)), "'1' .Sigmoid. is foll"),
        (nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()), "'1' .Sigmoid.*2 outputs"),
        (nn.Sequential(nn.Linear(3, 1), nn.Softmax(1)), "'1' .Softmax.*always 1"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Softmax(1)), "'2' .Softmax. does not follow"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(4, 1)),
            "cannot be run.*cannot be multiplied",
        ),
        (nn.Sequential(nn.Linear(3, 2), nn.Softmax(0)), "forward of Sequential"),
        (nn.Sequential(nn.Flatten()), "no Linear layer"),
        (nn.Sequential(nn.LazyLinear(2)), "'0' .LazyLinear. has no weights"),
        (nn.Linear(3, 2, device="meta"), "has no weights"),
        ({"weight": 1}, "a dict is not a model that is read.*load_state_dict"),
        (Boxed(nn.Linear(3, 1)), "must return one tensor"),
    ],
)
def test_other_chains_are_refused(module, message):
    with pytest.raises(ModelNotSupportedError, match=message):
        Model.of(module)


def test_missing_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"proplace\[torch\]"):
        from_torch(object())


# -- any module --------------------------------------------------------------------------------------


@st.composite
def modules(draw):
    torch.manual_seed(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from([*FRONTS, *CATEGORIES]))
    widths = draw(st.lists(st.integers(1, 5), max_size=3))
    outputs = draw(st.sampled_from([1, 2, 4]))
    module = kind(*widths, outputs=outputs)
    layers, width = [], kind.width
    for layer in module.head:
        width = layer.out_features if isinstance(layer, nn.Linear) else width
        layers.append(layer)
        if draw(st.booleans()):
            layers.append(
                draw(st.sampled_from([nn.Dropout(), nn.Identity(), nn.BatchNorm1d(width)]))
            )
    module.head = nn.Sequential(*layers)
    return module


@given(modules(), st.integers(0, 20))
@examples(60)
def test_random_modules(module, seed):
    X = rows(80, seed, labels=(3, 3))
    check(settled(module, X), X)


def test_table_of_names_is_sent_to_names_of_model():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    table = pd.DataFrame([[1.0, 2.0], [0.5, -1.0]], columns=["age", "income"])
    with pytest.raises(InputError, match=r"table\.to_numpy\(\).*with_column_names"):
        Model.of(module).predict(table)
    expected = Model.of(module).predict(table.to_numpy())
    named = Model.of(module).with_column_names(list(table))
    assert (named.predict(table) == expected).all()
