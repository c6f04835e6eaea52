"""How much work the tree search puts where: all of its constants in one place.

None of them decides what is true: whatever they are, a point that is returned has passed the exact
test, a bound is proved, and ``optimal`` means the gap below. They decide how long that takes. They
were measured on networks of 2x10 to 2x200 neurons; values near by do as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The constants of the tree search.

    Attributes
    ----------
    gap
        Relative gap between the incumbent and the bound at which an answer counts as optimal; nodes
        whose bound is nearer to the incumbent than that are pruned.
    many_grids
        Number of columns with steps from which on a search first looks between the steps, and rounds
        what it finds; then the tree over their values ends after ``grid_nodes`` nodes, if need be
        without a proof that its answer is the nearest.
    rough_grids
        The same number where a rough answer is enough: there is no tree over the values then.
    most_grids
        With more columns than these such a proof is out of reach, and the tree ends after
        ``rough_nodes``.
    roundings
        Points that are rounded for a first incumbent, at most.
    few_open
        Number of open neurons (whose ReLU may be active or not) from which on work that shrinks the
        tree pays: tightening, a second local search, another cut. Below, the tree is quicker.
    tightening_rounds
        Rounds of tightening of one subproblem, at most.
    stalled_share
        A round of tightening that leaves more than this share of the gap and of the open neurons
        was the last.
    rebuild_share
        When a round leaves less than this share of the open neurons, the program is built anew
        without the others.
    range_reached
        Share of its range within which a solution must come to the end of a neuron's range for that
        end to be left as it is: little can be gained there.
    tightened_scenarios
        Number of scenarios up to which the neurons of a new one are tightened at once.
    least_iterations, iteration_share
        Simplex iterations that the tree of a subproblem may take before the subproblem is split in
        two: the share of those that its tightening took, and no fewer than ``least_iterations``.
    probes
        Neurons that are tried, both ways, to find the one at which a subproblem is split.
    inherited_scenarios
        Scenarios that the children of a subproblem start with, at most.
    most_splits_without_solution
        Nodes of a subproblem that are split although the solver gave no answer, at most.
    refuted_below
        How far below the margin a scenario met before must lie at a point to refute it without an
        exact test.
    worth_cutting
        Relative gain of the incumbent for which the polytope is cut anew.
    worth_improving
        Relative gap between a relaxation and the incumbent for which a local search is tried.
    lines
        Lines from the nearest point of the region to robust points that are compared for a first
        incumbent.
    line_points, line_refinements
        Points of a line that are looked at in one go, and how often the part between the last that
        fails and the first that looks robust is looked at again.
    starts
        Lines from whose first robust point the local search walks down, at most.
    walks, steps
        Walks from one start, and linearised steps of one walk, at most.
    cuts
        Linearised scenarios in force during a walk.
    tests
        Exact tests of the end of a walk, each of which may teach a scenario, at most.
    worth_a_step
        Relative gain of a step or a walk for which another one is tried.
    safety
        Share of what exact tests took off a margin that later points keep in reserve.
    minute_neuron
        Largest coefficient of a neuron below which it is counted in a smaller unit.
    least_unit
        The smallest such unit; what is smaller still is nothing.
    grid_tolerance
        Distance from a legal value, in steps, that is rounding.
    violation_tolerance
        Violation of a ReLU that is rounding.
    """

    gap: float = 1e-7
    many_grids: int = 8
    rough_grids: int = 5
    most_grids: int = 12
    grid_nodes: int = 10_000
    rough_nodes: int = 100
    roundings: int = 12
    few_open: int = 16
    tightening_rounds: int = 12
    stalled_share: float = 0.85
    rebuild_share: float = 0.8
    range_reached: float = 0.15
    tightened_scenarios: int = 3
    least_iterations: int = 300
    iteration_share: float = 0.1
    probes: int = 4
    inherited_scenarios: int = 6
    most_splits_without_solution: int = 64
    refuted_below: float = 1e-4
    worth_cutting: float = 1e-2
    worth_improving: float = 5e-3
    lines: int = 8
    line_points: int = 8
    line_refinements: int = 2
    starts: int = 4
    walks: int = 4
    steps: int = 12
    cuts: int = 6
    tests: int = 4
    worth_a_step: float = 1e-3
    safety: float = 0.05
    minute_neuron: float = 2.0**-10
    least_unit: float = 2.0**-60
    grid_tolerance: float = 1e-7
    violation_tolerance: float = 1e-10


DEFAULT = Tuning()
"""What every search uses unless it is told otherwise."""
