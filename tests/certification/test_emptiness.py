"""No ray of the solver, whatever it holds, closes a branch in which there are shifts."""

from __future__ import annotations

import numpy as np

import proplace as pp
from oracles import accepted_rows
from proplace.certification.node_program import NodeProgram
from proplace.solvers import LinearProgram


def test_no_ray_proves_that_node_with_shifts_is_empty(monkeypatch):
    net, X = accepted_rows(12, (6, 16, 16, 1), 6)
    rng = np.random.default_rng(0)
    honest, proved = NodeProgram.bound, []

    def bound(program, splits):
        if not any(split.any() for split in splits):  # all shifts lie in the first node
            rows = len(program.formulation.used)
            for ray in (np.zeros(rows), *rng.normal(size=(50, rows)), *rng.random((50, rows))):
                with monkeypatch.context() as patch:
                    patch.setattr(LinearProgram, "dual_ray", lambda _, ray=ray: ray)
                    proved.append(program._proof_of_emptiness(splits) is not None)
        return honest(program, splits)

    monkeypatch.setattr(NodeProgram, "bound", bound)
    pp.certify(net, X, 0.04, exact_margin=True)
    assert len(proved) >= 101
    assert not any(proved)
