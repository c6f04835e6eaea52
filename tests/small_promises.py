"""A lender of two features whose answers are found in an instant, and ledgers of its promises."""

from __future__ import annotations

import dataclasses

import pandas as pd

import proplace as pp

SCHEMA = pp.Schema([pp.Continuous("income", 0, 100, step=1), pp.Continuous("debt", 0, 50, step=1)])
TRAINING = pd.DataFrame({"income": [20, 60, 80, 90, 95], "debt": [30, 10, 5, 20, 8]})
NET = pp.Network(
    [([[2.0, -1.0], [-1.0, 1.5]], [-0.1, 0.2]), ([[1.5, -0.7]], [-0.45])],
)
LATER = pp.Network(
    [([[2.01, -1.0], [-1.0, 1.49]], [-0.1, 0.21]), ([[1.5, -0.71]], [-0.45])],
)


def refused(count, start=0):
    """People who are refused; no two of them are alike in the first 900."""
    numbers = range(start, start + count)
    return pd.DataFrame(
        {"income": [n % 30 for n in numbers], "debt": [20 + n // 30 % 30 for n in numbers]}
    )


def answers(count=1, start=0, *, net=NET, delta=0.01, **options):
    """Certified answers of some people."""
    how = {name: options.pop(name) for name in ("target", "count") if name in options}
    explainer = pp.Proplace(net, delta, schema=SCHEMA, k=3, **options).fit(TRAINING)
    return explainer.explain(refused(count, start), **how)


def changed(result, n=0, **fields):
    """The result with some fields of one answer changed by hand."""
    own = list(result)
    own[n] = dataclasses.replace(own[n], **fields)
    return type(result)(own, provenance=result.provenance)
