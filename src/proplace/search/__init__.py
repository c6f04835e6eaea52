"""The nearest robust point of the plausible region: a tree search, and Algorithm 1 beside it.

From the bottom: ``problem`` (what is asked) and ``scenario`` (one shifted network); ``polytope``,
``program``, ``ranges``, ``relaxation`` and ``tightening`` (the linear programs);
``oracle`` (the robustness test); ``state`` (the only owner of what changes); ``local``, ``branching``,
``subproblem`` and ``tree`` (what is done when); ``pieces`` (all pieces of a region). ``bilevel`` shares
``problem`` with these and nothing else.

The constants of the tree stand in the module that uses them. Whatever they are, a point that is
returned has passed the exact test, a bound is proved, and ``optimal`` means the gap of ``state``: the
constants decide how long that takes. They were measured on networks of 2x10 to 2x200 neurons; values
near by do as well.
"""
