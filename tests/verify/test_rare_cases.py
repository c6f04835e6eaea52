"""Cases that random certificates and changes hardly reach, each with its correct verdict."""

from __future__ import annotations

import copy
import itertools
import json

import numpy as np
import pytest

import proplace as pp
from proplace.certification import Choice, FixedPredictionSearch, Space, certify, digest
from two_checkers import NO_NODE, NODE, Case, javascript_verdicts, margins_around, python_verdict

pytestmark = pytest.mark.skipif(NODE is None, reason=NO_NODE)

SMALL = 2.0**-90
TINY = 2.0**-110  # beside 1 it is cut: what is left are some 2^-95


def linear(weights, target, margin, *, boxed=False):
    """A certificate about one layer, at the input 1, 1, ... and without any shift."""
    net = pp.Network([([weights], None)])
    facts = {"network": digest(net), "input": [1.0] * len(weights), "target": target}
    facts |= {"margin": margin, "verdict": "robust", "tighten": False}
    facts |= {"lower": [], "upper": [], "trees": [[{}]]}
    box = pp.Shifts(net, net)
    if boxed:
        facts |= {"format": "proplace-certificate-2", "shifts": box.digest}
    else:
        facts |= {"format": "proplace-certificate-1", "delta": [[0.0, 0.0]]}
    return Case("linear", json.dumps(facts).encode(), (net,), (box,) if boxed else ())


def cuts():
    """Weights are cut outwards: a true claim can be lost, but no false claim is proved."""
    for boxed in (False, True):
        yield False, linear([1.0, -1.0, -TINY], 1, 0.0, boxed=boxed)
        yield boxed, linear([1.0, -1.0, TINY], 1, 0.0, boxed=boxed)
        yield False, linear([1.0, -1.0, TINY], 0, 0.0, boxed=boxed)
        yield boxed, linear([1.0, -1.0, -TINY], 0, 0.0, boxed=boxed)
        yield True, linear([1.0, -1.0, -TINY, SMALL], 1, SMALL - 2.0**-92, boxed=boxed)
        yield True, linear([1.0, -1.0, TINY, -SMALL], 0, SMALL - 2.0**-92, boxed=boxed)
        yield True, linear([1.0, -1.0, TINY], 1, TINY, boxed=boxed)  # the margin has all places
        yield False, linear([1.0, -1.0, TINY], 1, 2.0 * TINY, boxed=boxed)


def short_numbers():
    for weights in ([0.5], [0.25, 0.5], [1.5, -0.5], [3.0, -2.0], [2.0**-40]):
        margin = sum(weights)
        yield True, linear(weights, 1, margin)
        yield False, linear(weights, 1, float(np.nextafter(margin, 9.0)))


def refutations():
    """A network with exactly the margin does not miss it, and intervals include their ends."""
    net = pp.Network([([[0.5]], [0.25])])
    facts = {
        "format": "proplace-certificate-1",
        "network": digest(net),
        "input": [1.0],
        "target": 1,
    }
    facts |= {"delta": [[0.5, 0.25]], "verdict": "not robust"}
    up = float(np.nextafter(0.75, 1.0))
    for good, weight, bias, margin in (
        (False, 0.5, 0.25, 0.75),
        (True, 0.5, 0.25, up),
        (True, 0.0, 0.0, 5e-324),
        (False, 0.0, 0.0, 0.0),
        (False, -5e-324, 0.0, 1.0),
        (True, 1.0, 0.5, 2.0),
        (False, 1.0000000000000002, 0.5, 2.0),
        (False, 1.0, 0.5000000000000001, 2.0),
    ):
        shifted = {"shifted": [{"W": [[weight]], "b": [bias]}], "margin": margin}
        yield good, Case(f"{shifted}", json.dumps(facts | shifted).encode(), (net,))


def trees():
    net = pp.Network([(np.eye(2), None), ([[1.0, -1.0], [0.5, 1.0]], None), ([[1.0, 1.0]], [9.0])])
    proof = pp.certify(net, [[1.0, 0.5]], 0.01, margin=0.0, certificates=True).certificates[0]
    for good, tree in (
        (True, [[1, 0], {}, {}]),
        (True, [[1, 0], [1, 1], {}, {}, {}]),
        (True, [[1, 0], {}, [1, 1], {}, {}]),
        (False, [[1, 0], [1, 0], {}, {}, {}]),
        (False, [[1, 0], {}, [1, 0], {}, {}]),
        (False, [{}, [1, 0], {}]),
        (False, [[0, 0], {}, {}]),
        (False, [[2, 0], {}, {}]),
        (True, [{"gamma": [[1, 0, 1e300], [1, 0, 0]]}]),  # the last one counts
        (False, [{"gamma": [[1, 0, 0], [1, 0, 1e300]]}]),
        (True, [{"lower": [[1, 0, -0.0]]}]),
        (False, [{"lower": [[1, 0, 1.0000000000000002]]}]),
    ):
        facts = proof.facts | {"trees": [tree]}
        yield good, Case(f"tree {tree}", json.dumps(facts).encode(), (net,))
    for one, other in itertools.product((-1.0, 0.25), repeat=2):
        sides = [{"gamma": [[1, 0, one]]}, {"gamma": [[1, 0, other]]}]
        facts = proof.facts | {"trees": [[[1, 0], *sides]]}
        case = Case(f"gamma {one} {other}", b"", (net,))
        for good, margin in zip((True, False), margins_around(case, facts), strict=True):
            yield good, case.changed("", json.dumps(facts | {"margin": margin}))


def bundles():
    nets = [pp.Network([([[1.0, weight]], None)]) for weight in (0.5, 0.25)]

    def parts(x):
        box = [[0.5, 0.5]], [[2.0, 2.0]]
        return [
            certify(net, [x], 0.01, box=box, certificates=True).certificates[0].facts
            for net in nets
        ]

    one, other = parts([1.0, 1.0]), parts([1.0, 1.5])
    given = {
        "both": (True, one),
        "one": (False, one[:1]),
        "different inputs": (False, [one[0], other[1]]),
        "a network of another name": (False, [*one, {**one[0], "network": "x"}]),
        "one again": (True, [*one, one[0]]),
        "another class": (False, [one[0], {**one[1], "target": 0, "margin": -99.0}]),
    }
    for name, (good, certificates) in given.items():
        facts = {"format": "proplace-bundle-1", "certificates": certificates}
        yield good, Case(name, json.dumps(facts).encode(), tuple(nets))


def changed(facts, change):
    facts = copy.deepcopy(facts)
    change(facts, facts["trees"][0], next(n for n in facts["trees"][0] if "other" in n))
    return facts


def cut(node):
    """Cut the space, and let the one leaf stand for both parts."""
    return lambda facts, tree, leaf: tree.extend([leaf]) or tree.insert(0, node)


def fixed():
    net = pp.Network([([[-1.0, -1.0]], [-1.0])])
    shifts = pp.Shifts.of(net, 0.01)
    space = Space.of(np.zeros(2), np.ones(2), [Choice(np.array([1]), np.array([[0.0], [1.0]]))])
    refusal = FixedPredictionSearch(net, shifts, 1)
    facts = refusal.certificate(refusal.prove([space])).facts
    (leaf,) = facts["trees"][0]  # one leaf covers all
    proof = leaf["certificate"]
    cases = {
        "as it is": (True, lambda f, tree, leaf: None),
        "cuts": (True, cut({"column": 0, "at": 0.5})),
        "cut values": (True, cut({"choice": 0, "at": 1})),
        "no values": (False, cut({"choice": 0, "at": 0})),
        "cut a choice": (False, cut({"column": 1, "at": 0.5})),
        "no margin": (False, lambda f, tree, leaf: leaf["certificate"].update(margin=0.0)),
        "below 0": (False, lambda f, tree, leaf: leaf["certificate"].update(margin=-1.0)),
        "another network": (False, lambda f, tree, leaf: leaf["certificate"].update(network="x")),
        "a smaller box": (
            False,
            lambda f, tree, leaf: leaf["certificate"].update(high=proof["low"], input=proof["low"]),
        ),
        "a part of it": (
            True,
            lambda f, tree, leaf: (
                f["spaces"][0]["high"].__setitem__(0, 0.5),
                leaf["certificate"]["high"].__setitem__(0, 0.5),
                leaf["certificate"].update(input=[0.25, 0.5]),
            ),
        ),
        "another delta": (False, lambda f, tree, leaf: f.update(delta=[[0.02, 0.01]])),
        "a space more": (False, lambda f, tree, leaf: f["spaces"].append(f["spaces"][0])),
        "two spaces": (
            True,
            lambda f, tree, leaf: f["spaces"].append(f["spaces"][0]) or f["trees"].append(tree),
        ),
    }  # fmt: skip
    for name, (good, change) in cases.items():
        yield good, Case(name, json.dumps(changed(facts, change)).encode(), (net,))


@pytest.mark.parametrize("kind", [cuts, short_numbers, refutations, trees, bundles, fixed])
def test_both_checkers_agree_with_truth(kind, tmp_path):
    wanted, cases = zip(*kind(), strict=True)
    mine, theirs = javascript_verdicts(cases, tmp_path), [*map(python_verdict, cases)]
    for good, case, one, other in itertools.zip_longest(wanted, cases, mine, theirs):
        assert other[0] == good, (case.kind, other)
        assert one[0] == good, (case.kind, one)
        assert not good or one == other
