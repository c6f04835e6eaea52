"""A change of category as a picture: margins against a forward pass and a mixed-integer program."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from oracles import forward, margin_of, milp_margin
from proplace.explain.categories import MOST, category_picture
from proplace.schema import Is

DELTA = 0.02


def answer(features, net, person, goal, **more):
    """The answer to a person where the goal is the only row that is known."""
    schema = pp.Schema(features)
    goal, person = (pd.DataFrame([row], columns=list(schema.by_name)) for row in (goal, person))
    explainer = pp.Proplace(net, DELTA, schema=schema, k=1, **more).fit(goal)
    e = explainer.explain(person)[0]
    assert e.found
    return e


def check(picture, e):
    """Every number against an independent one, and the ends of the picture."""
    np.testing.assert_array_equal(picture.rows[0], e.x)
    np.testing.assert_array_equal(picture.rows[-1], e.point)
    assert len(picture.names) == len(picture.rows) == len(picture.margin) == len(picture.worst)
    for row, margin, worst in zip(picture.rows, picture.margin, picture.worst, strict=True):
        assert e.setting.schema.legal(row)[0]
        assert margin == pytest.approx(margin_of(forward(e.setting.net, row), e.target), abs=1e-9)
        assert worst == pytest.approx(milp_margin(e.setting.net, row, DELTA, e.target), abs=1e-6)
        assert worst <= margin


@pytest.mark.parametrize("encoding", ["onehot", "dropfirst"])
def test_every_other_category_that_the_person_may_take(encoding):
    jobs = ["cook", "clerk", "smith", "judge"]
    gains = np.array([0.0, 1.0, 0.3, 2.0])[1 if encoding == "dropfirst" else 0 :]
    net = pp.Network([(np.vstack([[0.1, *gains], [0.2, *-gains]]), None), ([[1.0, 0.0]], [-0.6])])
    features = [
        pp.Continuous("a", 0, 1),
        pp.Categorical("job", jobs, encoding=encoding, label="the job"),
    ]
    e = answer(features, net, [0.3, "cook"], [0.3, "clerk"])
    picture = category_picture(e)
    assert picture.names == ("now: “cook”", "“smith”", "“judge”", "the answer: “clerk”")
    assert picture.titles == ("the job",)
    assert picture.more == 0
    check(picture, e)
    decoded = e.setting.schema.decode(picture.rows)["job"].tolist()
    assert decoded == ["cook", "smith", "judge", "clerk"]
    assert (picture.worst >= 0).tolist() == [False, False, True, True]


def test_categories_that_rules_forbid_are_not_shown():
    net = pp.Network([([[0.0, 1.0, 0.3, 2.0]], [-0.6])])
    never = pp.IfThen({"job": "judge"}, [Is("job", ["cook", "clerk", "smith"])], name="no judges")
    jobs = pp.Categorical("job", ["cook", "clerk", "smith", "judge"])
    schema = pp.Schema([jobs], rules=[never])
    goal, person = pd.DataFrame({"job": ["clerk"]}), pd.DataFrame({"job": ["cook"]})
    e = pp.Proplace(net, DELTA, schema=schema, k=1).fit(goal).explain(person)[0]
    assert category_picture(e).names == ("now: “cook”", "“smith”", "the answer: “clerk”")


def test_several_categories_each_left_as_it_is():
    net = pp.Network([([[0.5, 0.6, 0.7]], [-1.0])])
    features = [pp.Continuous("a", 0, 1), pp.Binary("home"), pp.Binary("car", label="has a car")]
    e = answer(features, net, [0.2, 0, 0], [0.9, 1, 1])
    assert {"home", "car"} <= set(e.changed)
    picture = category_picture(e)
    assert picture.names == (
        "now",
        "the answer, but home no",
        "the answer, but has a car no",
        "the answer",
    )
    check(picture, e)
    assert picture.titles == ("home", "has a car")
    for name, row in zip(("home", "car"), picture.rows[1:3], strict=True):
        differs = np.flatnonzero(row != e.point)
        assert differs.tolist() == [e.setting.schema.span(name).start]


def test_the_worst_of_many_categories_are_left_out_and_counted():
    labels = [f"c{n}" for n in range(30)]
    gains = np.linspace(-1.0, 1.0, 30)
    net = pp.Network([(gains[None], [-0.1])])
    e = answer([pp.Categorical("job", labels)], net, ["c0"], ["c20"])
    picture = category_picture(e)
    assert len(picture.names) == MOST + 2
    assert picture.more == 30 - MOST - 2
    shown = {int(name.strip("“”c")) for name in picture.names[1:-1]}
    assert shown == {29, 28, 27, 26, 25, 24, 23, 22}
    check(picture, e)


def test_numbers_alone_have_no_such_picture():
    net = pp.Network([([[1.0, 0.1]], [-0.5])])
    e = answer([pp.Continuous("a", 0, 1), pp.Binary("home")], net, [0.2, 1], [0.9, 1])
    assert category_picture(e) is None
