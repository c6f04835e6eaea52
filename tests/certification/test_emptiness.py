"""No ray of the solver, whatever it holds, closes a branch in which there are shifts."""

from __future__ import annotations

import types

import numpy as np
import pytest

import proplace as pp
from oracles import random_case
from proplace.certification.bounds import Abstraction
from proplace.certification.exact import _Program


@pytest.mark.parametrize("hidden", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_ray_proves_that_a_node_with_shifts_is_empty(hidden, seed):
    rng = np.random.default_rng([56, hidden, seed])
    case = random_case(rng, hidden, width=5, rows=1)
    abstraction = Abstraction(case.net, pp.Shifts.of(case.net, case.delta))
    root = abstraction.root(case.net.transform(case.X))
    program = _Program(
        abstraction, root, *abstraction.objective(case.net.objectives(case.target)[0])
    )
    whole = tuple(np.zeros(level.L_min.shape[1], np.int8) for level in root.levels)
    rows = len(program.kept)
    for ray in (np.zeros(rows), *rng.normal(size=(50, rows)), *rng.exponential(size=(50, rows))):
        program.solver = types.SimpleNamespace(getDualRay=lambda ray=ray: (None, True, ray))
        assert not program._proves_empty(whole)
