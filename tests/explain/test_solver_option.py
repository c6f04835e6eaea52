"""``Proplace(search="bilevel", solver=...)``: the same optimum by any solver, and words if not."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import proplace as pp
from proplace.core.errors import MissingExtraError, OptionError
from proplace.solvers import mixed_integer
from support.errors import raises
from support.people import LIMITS, WITHOUT_STEPS, World, check_promise, net_for, rules

PACKAGES = {"highs": "highspy", "gurobi": "gurobipy"}


@pytest.fixture(params=PACKAGES)
def solver(request):
    pytest.importorskip(PACKAGES[request.param])
    return request.param


RULED = {"rules": rules(), "hidden": (5, 4), "rows": 400}
FREE = LIMITS | {"age": LIMITS["age"] | {"step": None}, "grade": {"immutable": True}}
KINDS = {
    "categories": (WITHOUT_STEPS, {}, 1),
    "rules": (RULED | FREE, {"delta": 0.004}, 1),
    "classes": ({"outputs": 3, "hidden": (5, 4), **WITHOUT_STEPS}, {"delta": 0.005}, 2),
    "box": (WITHOUT_STEPS, {"region": "box"}, 0),
    "steps": ({}, {}, 1),
    "steps and rules": (RULED | LIMITS, {"delta": 0.004}, 1),
}


class Case:
    """A world of one kind: how to explain a few people who lack the target class."""

    def __init__(self, kind):
        shape, self.options, self.target = KINDS[kind]
        self.steps = kind.startswith("steps")
        self.world = World(11 if kind == "rules" else 3, **shape)
        self.refused = self.world.refused(4, self.target)

    def explainer(self, **options):
        return self.world.explainer(k=8, **self.options, **options)

    def explain(self, **options):
        explainer = self.explainer(**options)
        return explainer.explain(self.refused, target=self.target, typical=False, gap=0)


@pytest.fixture(params=KINDS)
def case(request, small_slack):
    return Case(request.param)


# -- answers ---------------------------------------------------------------------------------------


def test_same_optimum(case, solver, monkeypatch):
    """The tree, and Algorithm 1 on each solver. Only the requested solver is called."""
    used = []
    for name, backend in list(mixed_integer._BACKENDS.items()):

        def counted(arrays, limit, name=name, backend=backend):
            used.append(name)
            return backend(arrays, limit)

        monkeypatch.setitem(mixed_integer._BACKENDS, name, counted)
    truth, found = case.explain(), case.explain(search="bilevel", solver=solver)
    assert set(used) == {solver}
    assert sum(e.found for e in truth) >= 3
    assert sum(e.scenarios for e in found) >= 1  # some shift was needed
    for a, b in zip(truth, found, strict=True):
        assert a.found == b.found
        if not a.found or not case.steps:
            assert a.status == b.status
        if a.found:
            assert b.bound == pytest.approx(a.bound, abs=1e-6)
            check_promise(case.explainer(), case.world.schema, b)
        if a.found and not case.steps:
            assert a.status == "optimal"
            assert b.distance == pytest.approx(a.distance, abs=1e-6)
            assert b.bound == pytest.approx(a.distance, abs=1e-6)


@pytest.mark.slow
def test_same_in_other_processes():
    pytest.importorskip("gurobipy")
    case = Case("categories")
    one, two = (case.explain(search="bilevel", solver="gurobi", n_jobs=n) for n in (1, 2))
    assert all(e.found for e in one)
    assert one.to_frame().equals(two.to_frame())


@pytest.mark.usefixtures("small_slack")
def test_several_answers(solver):
    case = Case("categories")
    found = (
        case.explainer(**options).explain(case.refused.head(1), count=2, typical=False, gap=0)
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
def test_network_too_large_for_licence(region):
    """Each person gets a counterfactual. If neighbours exist, it is the nearest one."""
    limited_licence()
    rng = np.random.default_rng(3)
    X = rng.random((60, 3))
    net = net_for(rng, 3, (700,), 1, X)
    options = {"k": 4, "region": region, "search": "bilevel", "solver": "gurobi"}
    explainer = pp.Proplace(net, 1e-4, **options).fit(X)
    result = explainer.explain(X[net.predict(X) == 0][:3], gap=0)
    assert len(result) == 3
    for e in result:
        assert "size-limited Gurobi licence" in e.reason
        assert "2000 of each" in e.reason
        assert "solver='highs' or search='tree'" in e.reason
        if region == "hull":
            assert (e.status, e.bound) == ("feasible", 0.0)
            assert pp.certify(net, e.encoded_counterfactual, 1e-4, margin=1e-6).robust[0]
        else:
            assert not e.found


# -- errors ----------------------------------------------------------------------------------------

NET = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])


@pytest.mark.parametrize("search", ["tree", "bilevel"])
@pytest.mark.parametrize("name", ["cplex", "Gurobi", "HIGHS", "", None, ["highs"]])
def test_unknown_solvers(search, name):
    with raises(OptionError, name="solver") as caught:
        pp.Proplace(NET, 0.05, search=search, solver=name).fit(np.eye(2))
    assert repr(name) in str(caught.value)


def test_tree_has_its_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)  # no reason to install it then
    with raises(OptionError, name="solver", value="gurobi"):
        pp.Proplace(NET, 0.05, solver="gurobi").fit(np.eye(2))


def test_missing_package_is_reported_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with raises(MissingExtraError, name="gurobipy"):
        pp.Proplace(NET, 0.05, search="bilevel", solver="gurobi").fit(np.eye(2))
    assert pp.Proplace(NET, 0.05, search="bilevel").solver == "highs"


def test_package_that_is_missing_where_work_is_done(monkeypatch):
    """For example on another machine: the call fails, not each row on its own."""
    pytest.importorskip("gurobipy")
    train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    explainer = pp.Proplace(NET, 0.05, k=3, search="bilevel", solver="gurobi").fit(train)
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with raises(MissingExtraError, name="gurobipy"):
        explainer.explain([[0.2, 0.3]], gap=0)
