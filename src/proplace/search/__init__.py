"""The nearest robust point of the plausible region: a tree search, and Algorithm 1 beside it.

From the bottom: ``problem`` (what is asked) and ``scenario`` (one shifted network); ``polytope``,
``program``, ``ranges``, ``relaxation`` and ``tightening`` (the linear programs);
``oracle`` (the robustness test); ``state`` (the only owner of what changes) and ``tuning`` (every
constant); ``local``, ``branching``, ``subproblem`` and ``tree`` (what is done when); ``pieces`` (all
pieces of a region). ``bilevel`` shares ``problem`` with these and nothing else.

It may import ``core``, ``schema``, ``solvers``, ``certification`` and ``region``.
"""
