"""A test that the deadline cuts short decides nothing about its point."""

from __future__ import annotations

import numpy as np
import pytest

from proplace.core.errors import SolverError
from proplace.search import bilevel, tree
from proplace.search.oracle import Oracle, Verdict
from support.problems import SAME, random_problem
from support.tiers import quick


class Tired(Oracle):
    """Gives some verdicts, then none, as behind a deadline."""

    def __init__(self, problem, verdicts):
        super().__init__(problem)
        self.verdicts = verdicts

    def test(self, point, deadline=np.inf, nodes=None):
        if self.verdicts == 0:
            return Verdict(False)
        self.verdicts -= 1
        return super().test(point, deadline, nodes)


@pytest.mark.parametrize("verdicts", [0, 1, 3])
@pytest.mark.parametrize("seed", quick(1, [1, 2, 5, 9]))
def test_point_without_verdict_closes_no_node(seed, verdicts):
    problem, piece = random_problem(seed)
    truth = bilevel.solve(problem, piece)
    assert truth.status == "optimal"
    try:
        found = tree.solve(problem, piece, oracle=Tired(problem, verdicts))
    except SolverError:  # claims nothing, either
        return
    assert found.lower <= truth.distance + SAME
    if found.status == "optimal":
        assert found.distance == pytest.approx(truth.distance, abs=SAME)
    else:
        assert found.status == ("unknown" if found.point is None else "feasible")
