"""No sentence claims more than was proved: each is read back by its words, and compared exactly.

``PYTHONPATH=tests:src python -m sentences 100000`` reads more of them.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import proplace as pp
from oracles import joint_attack
from sentences import Oracle, World, read, run
from support.tiers import seeds, thorough

KINDS = ("at least", "at most", "between", "give or take", "value", "cut value", "name", "yes/no")


@pytest.mark.parametrize(("number", "people", "least"), thorough((300, 8, 3), (1500, 30, 15)))
def test_no_sentence_claims_more_than_was_proved(number, people, least):
    total, counts, wrong = run(number, variants=2 if people < 30 else 4, people=people)
    assert wrong == []
    assert total == number
    for kind in (
        *KINDS,
        "alternative",
        "missing cell",
        "outside of a range",
        "tolerance",
        "drafted",
        "unchanged with tolerance",
        "plausibility",
    ):
        assert counts[kind] >= least, kind


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_oracle_is_below_every_attack_and_reaches_it_nearly(seed):
    rng = np.random.default_rng(seed)
    hidden = [(rng.normal(size=(2, 3)), rng.normal(size=2))] if seed % 2 else []
    net = pp.Network([*hidden, (rng.normal(size=(1, 2 if hidden else 3)), rng.normal(size=1))])
    low = rng.normal(size=3)
    high = low + np.array([0.8, 0.0, 0.5])
    least = Oracle(net).least(
        *([Fraction(v) for v in end] for end in (low, high)), Fraction("0.01")
    )
    found = joint_attack(net, low, high, pp.Shifts.of(net, 0.01), 1, rng, 200)
    assert least <= found + 1e-12
    assert found - float(least) < 0.2


@functools.cache
def told(seed):
    """A world, and for each explanation the sentences of its variants."""
    world = World(seed)
    variants = (world.variants(e, 2) for e, _ in world.explained(12))
    return world, [[(e.describe(world.wording).sentence, e) for e in few] for few in variants]


def found_sentences(wanted, count=3):
    """Sentences of a kind, each with its explanation and its oracle."""
    found = []
    for seed in range(1, 200):
        world, groups = told(seed)
        for group in groups:
            for sentence, one in group:
                reading = read(sentence, world.schema.features)
                words = {c.words for c in reading.changes.values()} if reading else set()
                words |= {"unchanged"} if reading and reading.unchanged else set()
                words |= (
                    {"measured"} if reading and reading.usual and reading.usual["values"] else set()
                )
                if wanted in words and reading.whole and reading.radius:
                    found.append((sentence, one, world))
                    break
        if len(found) >= count:
            return found
    raise AssertionError(wanted)


PLANTED = {
    "a larger delta": ("value", lambda s: s.replace("by at most 0.0", "by at most 0.1")),
    "a range without its end": ("between", lambda s: s.replace("between ", "at least ", 1)),
    "an end that is not named": (
        "at least",
        lambda s: re.sub(r" within the declared ranges? \(.+?\) and", " and", s),
    ),
    "the wrong direction": ("at least", lambda s: s.replace("at least", "at most", 1)),
    "the other direction": ("at most", lambda s: s.replace("at most", "at least", 1)),
    "another name": ("name", lambda s: s.replace("“cook”", "“x”").replace("“clerk”", "“cook”")),
    "another flag": (
        "yes/no",
        lambda s: s.replace("answer yes", "answer NO").replace("answer no", "answer yes"),
    ),
    "more room": ("give or take", lambda s: s.replace("give or take ", "give or take 9")),
    "more of an unchanged number": (
        "unchanged",
        lambda s: re.sub(r"(The same is proved with .+? to )", r"\g<1>9", s),
    ),
    "a wider declared range": (
        "at least",
        lambda s: re.sub(r"(within the declared ranges? \(.+?) to (\S)", r"\1 to 9\2", s),
    ),
    "plausibility at another value": (
        "measured",
        lambda s: re.sub(r"(With .+? )(-?\$?)(\d[^:]*, the person would)", r"\g<1>\g<2>9\3", s),
    ),
    "more plausibility": ("measured", lambda s: re.sub(r"plausibility \d+", "plausibility 100", s)),
    "another outcome": ("value", lambda s: s.replace("been granted", "been turned down")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_false_sentence_is_caught(name):
    kind, change = PLANTED[name]
    for sentence, e, world in found_sentences(kind):
        assert world.judge.faults(sentence, e) == []
        false = change(sentence).replace("NO for", "no for")
        assert false != sentence
        assert world.judge.faults(false, e), false


def test_false_proof_is_caught():
    """The exact oracle refutes a range that was never proved, even if the explanation has it."""
    caught = 0
    for sentence, e, world in found_sentences("value", 8):
        wide = {}
        for name in e.changes_by_feature:
            f = world.schema.by_name[name]
            if isinstance(f, pp.Continuous):
                wide[name] = f.lower, f.upper
        false = replace(e, guaranteed_ranges=wide).describe(world.wording).sentence
        if false == sentence or "all" not in false:
            continue
        caught += "inputs or networks that refuse" in world.judge.faults(
            false, replace(e, guaranteed_ranges=wide)
        )
    assert caught >= 1
