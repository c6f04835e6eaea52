"""``Proplace(search="bilevel", solver=...)``: the same optimum by any solver, and words if not."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.core.errors import MissingExtra, OptionError
from proplace.schema import Change, Value
from proplace.solvers import mixed_integer

PACKAGES = {"highs": "highspy", "gurobi": "gurobipy"}


@pytest.fixture(params=PACKAGES)
def solver(request):
    pytest.importorskip(PACKAGES[request.param])
    return request.param


def network(rng, widths, X):
    """A random network whose classes are about balanced on the rows ``X``."""
    layers = [
        (rng.normal(size=(m, n)) * 1.5 / np.sqrt(n), rng.normal(size=m) * 0.3)
        for n, m in zip([X.shape[1], *widths], widths, strict=False)
    ]
    W, b = layers[-1]
    centre = np.median(pp.Network(layers).logits(X), axis=0)
    return pp.Network([*layers[:-1], (W, b - centre)])


def with_categories(rng):
    schema = pp.Schema(
        [
            pp.Continuous("age", 20, 70, step=1),
            pp.Continuous("income", 0.0, 9.5),
            pp.Ordinal("grade", ["D", "C", "B"], values=[0, 1, 2.5]),
            pp.Categorical("job", ["clerk", "cook", "smith"]),
            pp.Binary("member", ["no", "yes"]),
        ]
    )
    return schema, people(rng), {"widths": (6, 1), "target": 1}


def with_rules(rng):
    schema = pp.Schema(
        [
            pp.Continuous("age", 20, 70, step=1, direction="increasing"),
            pp.Continuous("income", 0.0, 9.5, max_increase=4.0),
            pp.Ordinal("grade", ["D", "C", "B"]),
            pp.Categorical("job", ["clerk", "cook", "smith"]),
            pp.Binary("member", ["no", "yes"], immutable=True),
        ],
        rules=[
            pp.Linear({"age": 1.0, "income": -10.0}, lower=-40.0),
            pp.IfThen({"job": "smith"}, [Change("age", at_least=2)]),
            pp.IfThen({"member": "yes"}, [Value("income", at_most=8.0)], becomes=False),
        ],
    )
    return schema, people(rng), {"widths": (5, 4, 1), "target": 1}


def with_classes(rng):
    frame = pd.DataFrame(rng.random((150, 3)), columns=list("abc"))
    schema = pp.Schema([pp.Continuous(name, 0.0, 1.0) for name in "abc"])
    return schema, frame, {"widths": (5, 4, 3), "target": 2}


def with_a_box(rng):
    schema, frame, options = with_categories(rng)
    return schema, frame, {**options, "region": "box", "target": 0}


def people(rng, n=200):
    return pd.DataFrame(
        {
            "age": rng.integers(20, 71, n),
            "income": rng.uniform(0.0, 9.5, n),
            "grade": rng.choice(["D", "C", "B"], n),
            "job": rng.choice(["clerk", "cook", "smith"], n),
            "member": rng.choice(["no", "yes"], n),
        }
    )


KINDS = {f.__name__: f for f in (with_categories, with_rules, with_classes, with_a_box)}


class World:
    """A problem of one kind: how to explain it, and a few people without the target class."""

    def __init__(self, kind):
        rng = np.random.default_rng(3)
        schema, self.frame, options = KINDS[kind](rng)
        X = schema.encode(self.frame)
        self.net, self.target = network(rng, options.pop("widths"), X), options.pop("target")
        self.options = {"k": 8, "schema": schema, **options}
        self.refused = self.frame[self.net.predict(X) != self.target].head(4)

    def explainer(self, **options):
        return pp.Proplace(self.net, 0.02, **self.options, **options).fit(self.frame)

    def explain(self, **options):
        return self.explainer(**options).explain(self.refused, target=self.target)


@pytest.fixture(params=KINDS)
def world(request, small_slack):
    return World(request.param)


# -- answers ---------------------------------------------------------------------------------------


def test_same_optimum(world, solver, monkeypatch):
    """Of the tree and of Algorithm 1 on each solver; only the one asked for is called."""
    used = []
    for name, backend in list(mixed_integer._BACKENDS.items()):

        def counted(arrays, limit, name=name, backend=backend):
            used.append(name)
            return backend(arrays, limit)

        monkeypatch.setitem(mixed_integer._BACKENDS, name, counted)
    truth, found = world.explain(), world.explain(search="bilevel", solver=solver)
    assert set(used) == {solver}
    assert sum(e.status == "optimal" for e in truth) >= 3
    assert sum(e.rounds for e in found) >= 1  # some shift was needed
    for a, b in zip(truth, found, strict=True):
        assert a.status == b.status
        if a.found:
            assert b.distance == pytest.approx(a.distance, abs=1e-6)
            assert b.bound == pytest.approx(a.distance, abs=1e-6)
            assert pp.certify(world.net, b.point, 0.02, world.target, margin=1e-6).robust[0]


def test_the_same_in_other_processes():
    pytest.importorskip("gurobipy")
    world = World("with_categories")
    one, two = (world.explain(search="bilevel", solver="gurobi", n_jobs=n) for n in (1, 2))
    assert all(e.found for e in one)
    assert one.to_frame().equals(two.to_frame())


@pytest.mark.usefixtures("small_slack")
def test_several_answers(solver):
    world = World("with_categories")
    found = (
        world.explainer(**options).explain(world.refused.head(1), count=2, target=world.target)
        for options in ({}, {"search": "bilevel", "solver": solver})
    )
    ours, theirs = ([e.distance for e in result] for result in found)
    assert len(ours) == 2
    assert ours == pytest.approx(theirs, abs=1e-6)


# -- when there is none ----------------------------------------------------------------------------


def limited_licence():
    gp = pytest.importorskip("gurobipy")
    with gp.Env(params={"OutputFlag": 0}) as env, gp.Model(env=env) as probe:
        probe.addMVar(2500)
        try:
            probe.optimize()
        except gp.GurobiError:
            return
    pytest.skip("this machine has a full licence")


@pytest.mark.parametrize("region", ["hull", "box"])
def test_a_network_too_large_for_the_licence(region):
    """Each person is told what to change; where neighbours exist, the nearest one is the answer."""
    limited_licence()
    rng = np.random.default_rng(3)
    X = rng.random((60, 3))
    net = network(rng, (700, 1), X)
    options = {"k": 4, "region": region, "search": "bilevel", "solver": "gurobi"}
    explainer = pp.Proplace(net, 1e-4, **options).fit(X)
    result = explainer.explain(X[net.predict(X) == 0][:3])
    assert len(result) == 3
    for e in result:
        assert "size-limited Gurobi licence" in e.reason
        assert "2000 of each" in e.reason
        assert "solver='highs' or search='tree'" in e.reason
        if region == "hull":
            assert (e.status, e.bound) == ("feasible", 0.0)
            assert pp.certify(net, e.point, 1e-4, margin=1e-6).robust[0]
        else:
            assert not e.found


# -- errors ----------------------------------------------------------------------------------------

NET = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])


@pytest.mark.parametrize("search", ["tree", "bilevel"])
@pytest.mark.parametrize("name", ["cplex", "Gurobi", "HIGHS", "", None, ["highs"]])
def test_unknown_solvers(search, name):
    with pytest.raises(OptionError, match="one of 'highs', 'gurobi', not") as caught:
        pp.Proplace(NET, 0.05, search=search, solver=name).fit(np.eye(2))
    assert repr(name) in str(caught.value)


def test_the_tree_has_its_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)  # no reason to install it then
    with pytest.raises(OptionError, match=r"'tree' runs on HiGHS.*belongs to search='bilevel'"):
        pp.Proplace(NET, 0.05, solver="gurobi").fit(np.eye(2))


def test_a_missing_package_is_told_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(MissingExtra, match=r"solver='gurobi'.*proplace\[gurobi\]"):
        pp.Proplace(NET, 0.05, search="bilevel", solver="gurobi").fit(np.eye(2))
    assert pp.Proplace(NET, 0.05, search="bilevel").solver == "highs"


def test_a_package_that_is_missing_where_the_work_is_done(monkeypatch):
    """On another machine, say: the call fails, not each row on its own."""
    pytest.importorskip("gurobipy")
    train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    explainer = pp.Proplace(NET, 0.05, k=3, search="bilevel", solver="gurobi").fit(train)
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(MissingExtra, match=r"proplace\[gurobi\]"):
        explainer.explain([[0.2, 0.3]])
