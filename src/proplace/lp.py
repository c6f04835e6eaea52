"""The seam to HiGHS."""

from __future__ import annotations

import highspy

LP_TOLERANCE = 1e-9


def quiet_highs() -> highspy.Highs:
    """Return a silent, single-threaded HiGHS set for many small, warm-started programs.

    Presolve would throw the warm basis away and costs more than it gives at these sizes.
    """
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("solver", "simplex")
    solver.setOptionValue("simplex_scale_strategy", 0)
    solver.setOptionValue("primal_feasibility_tolerance", LP_TOLERANCE)
    solver.setOptionValue("dual_feasibility_tolerance", LP_TOLERANCE)
    return solver
