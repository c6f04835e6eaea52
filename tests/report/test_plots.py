"""The pictures agree with the network and the robustness test."""

import warnings
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

import proplace as pp
from oracles import forward, margin_of, milp_margin
from proplace.certification import certify
from proplace.core.errors import OptionError
from proplace.core.text import visible
from proplace.report import geometry
from proplace.report.geometry import (
    no_region,
    outline,
    plain_nearest,
    region_picture,
    worst_margins,
)
from proplace.report.plots import FACTORS, held, margin_curves
from support.errors import raises
from support.lenders import DELTA, LOAN, SCHEMA, with_current

rc_context = pytest.importorskip("matplotlib").rc_context
backend = pytest.importorskip("matplotlib.backends.backend_agg")


def combination(vertices, point, room):
    """Test by a linear program if a point lies in the convex hull of rows, up to a box around it."""
    n, d = vertices.shape
    A = np.vstack([vertices.T, -vertices.T])
    b = np.concatenate([point + room, -point + room])
    found = linprog(
        np.zeros(n), A_ub=A, b_ub=b, A_eq=np.ones((1, n)), b_eq=[1.0], bounds=[(0, None)] * n
    )
    assert A.shape == (2 * d, n)
    return found.status == 0


def answers(lender):
    found = [e for e in lender.result if e.found]
    assert len(found) >= 4
    return found


def drawn_answers(lender):
    """Answers that have a map: they change one or two numbers."""
    found = [e for e in answers(lender) if not no_region(e)]
    assert len(found) >= 3
    return found


def test_plane_contains_answer(lender):
    for e in drawn_answers(lender):
        picture = region_picture(e, size=5)
        plane = picture.plane
        # The answer lies on the plane, and so does the person but for its categories.
        np.testing.assert_allclose(
            plane.rows(picture.answer)[0], e.encoded_counterfactual, atol=1e-12
        )
        numbers = np.setdiff1d(np.arange(len(e.encoded_original)), SCHEMA.profile_columns)
        assert set(np.flatnonzero(e.encoded_original != e.encoded_counterfactual)) & set(
            numbers
        ) <= set(plane.columns)
        np.testing.assert_allclose(
            plane.rows(picture.person)[0][numbers], e.encoded_original[numbers], atol=1e-12
        )
        assert (
            picture.moved
            == (
                e.encoded_original[SCHEMA.profile_columns]
                != e.encoded_counterfactual[SCHEMA.profile_columns]
            ).any()
        )


def test_borders_are_those_of_network(lender):
    """Signs on the grid against a forward pass and an exact mixed-integer program."""
    rng = np.random.default_rng(0)
    seen = set()
    for e in drawn_answers(lender)[:3]:
        picture = region_picture(e, size=31)
        assert picture.margin.shape == picture.worst.shape == (31, 31)
        for i, j in rng.integers(0, 31, (12, 2)):
            row = picture.plane.rows(np.array([picture.a[j], picture.b[i]]))[0]
            margin = margin_of(forward(lender.net, row), 1)
            assert picture.margin[i, j] == pytest.approx(margin, abs=1e-9)
            worst = milp_margin(lender.net, row, DELTA, 1)
            if abs(worst) > 1e-5:
                assert (picture.worst[i, j] >= 0.0) == (worst > 0.0)
                seen.add(worst > 0.0)
        assert ((picture.worst < 0.0) | (picture.margin >= 0.0)).all()
    assert seen == {True, False}


def test_everything_is_in_sight(lender):
    for e in drawn_answers(lender):
        plain = plain_nearest(e)
        picture = region_picture(e, also=plain, size=5)
        spots = np.vstack([picture.person, picture.answer, picture.neighbours])
        if picture.other is not None:
            spots = np.vstack([spots, picture.other])
            np.testing.assert_allclose(picture.plane.rows(picture.other)[0], plain, atol=1e-9)
        assert (spots[:, 0] >= picture.a[0]).all()
        assert (spots[:, 0] <= picture.a[-1]).all()
        assert (spots[:, 1] >= picture.b[0]).all()
        assert (spots[:, 1] <= picture.b[-1]).all()


def test_hull_contains_answer_and_neighbours(lender):
    for e in drawn_answers(lender):
        picture = region_picture(e, size=5)
        if e.in_region:
            assert combination(picture.hull, picture.answer, 1e-9)
        for spot in picture.neighbours:
            assert combination(picture.hull, spot, 1e-9)
        assert not combination(picture.hull, picture.hull.max(axis=0) + 0.1, 1e-9)
        profile = SCHEMA.profile_columns
        same = (e.neighbours[:, profile] == e.encoded_counterfactual[profile]).all(axis=1)
        np.testing.assert_allclose(
            picture.neighbours, picture.plane.coordinates(e.neighbours[same])
        )


def test_axes_are_in_original_units(lender):
    e = drawn_answers(lender)[0]
    columns = region_picture(e, size=3).plane.columns
    features = [SCHEMA.features[SCHEMA.columns[j].feature] for j in columns]
    axes = e.plot(LOAN).axes[0]
    titles = [axes.get_xlabel().replace("\\$", "$"), axes.get_ylabel().replace("\\$", "$")]
    for title, feature in zip(titles, features, strict=True):
        assert title.startswith(feature.title)
    diamond = [c for c in axes.collections if c.get_offsets().shape == (1, 2)][-1]
    for place, j, feature in zip(diamond.get_offsets()[0], columns, features, strict=True):
        value = e.counterfactual[feature.name]
        shown = feature.numbers[feature.levels.index(value)] if feature.kind == "ordinal" else value
        assert place == pytest.approx(float(shown)), (j, feature)


def test_curves_are_exact_worst_case_margins(lender):
    e = answers(lender)[0]
    plain = plain_nearest(e)
    ours, others = margin_curves([e], [plain, None])
    assert ours.shape == others.shape == (len(FACTORS), 1)
    for n in (0, 7, len(FACTORS) // 2, len(FACTORS) - 1):
        delta = float(FACTORS[n]) * DELTA
        assert ours[n, 0] == pytest.approx(
            milp_margin(lender.net, e.encoded_counterfactual, delta, 1), abs=1e-6
        )
        assert others[n, 0] == pytest.approx(milp_margin(lender.net, plain, delta, 1), abs=1e-6)
    assert (np.diff(ours[:, 0]) < 0.0).all()
    middle = int(np.flatnonzero(FACTORS == 1.0)[0])
    assert ours[middle, 0] >= 0.0 > others[middle, 0]


def test_plain_answer_is_accepted_today_and_not_farther(lender):
    for e in answers(lender):
        plain = plain_nearest(e)
        assert lender.net.predict(plain)[0] == 1
        # Of this answer and of every other: all lie in the region of which it is the nearest.
        assert np.abs(plain - e.encoded_original).mean() <= e.distance + 1e-9
    assert {e.rank for e in answers(lender)} == {0, 1}


def test_delta_is_scaled_layer_by_layer(lender):
    e = answers(lender)[0]
    shifts = pp.Shifts.of(e.setting.current.network, [(0.1, 0.1), (0.2, 0.0), (0.0, 0.3)])
    uneven = replace(e, setting=with_current(e.setting, shifts=shifts))
    worst = worst_margins(uneven, e.encoded_counterfactual[None], np.array([0.0, 0.1]))[:, 0]
    assert worst[0] == pytest.approx(float(lender.net.margin(e.encoded_counterfactual)[0]))
    assert worst[1] < worst[0]
    labels = [axes.get_xlabel() for axes in uneven.plot(LOAN).axes]
    assert "share of the allowed change" in labels


def test_shares_on_retrained_networks(lender):
    rows = lender.X[:7]
    share = held(rows, lender.retrained, 1)
    by_hand = [
        np.mean([margin_of(forward(net, row), 1) >= 0.0 for net in lender.retrained])
        for row in rows
    ]
    np.testing.assert_array_equal(share, by_hand)


def test_outline_of_flat_set_is_its_ends():
    points = np.array([[0.0, 0.0], [2.0, 4.0], [1.0, 2.0]])
    assert sorted(outline(points).tolist()) == [[0.0, 0.0], [2.0, 4.0]]
    assert outline(points[:1]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_figures_draw_into_files(lender, tmp_path):
    for n, e in enumerate(answers(lender)[:3]):
        e.plot(LOAN).savefig(tmp_path / f"{n}.png")
        assert (tmp_path / f"{n}.png").stat().st_size > 20_000
    alone = lender.result.plot(LOAN)
    both = lender.result.plot(LOAN, retrained=lender.retrained)
    assert len(alone.axes) == 1
    assert len(both.axes) == 2
    robust = [e for e in lender.result if e.found]
    share = held(np.array([e.encoded_counterfactual for e in robust]), lender.retrained, 1).mean()
    assert both.axes[1].patches[1].get_height() == pytest.approx(share)
    plain = held(np.array([plain_nearest(e) for e in robust]), lender.retrained, 1).mean()
    assert both.axes[1].patches[0].get_height() == pytest.approx(plain)
    # A person without an answer is left out.
    bad = lender.explainer.explain(lender.frame.iloc[:1].assign(debt=np.nan))
    more = pp.Explanations([*lender.result, bad[0]]).plot(LOAN, retrained=lender.retrained)
    assert more.axes[1].patches[1].get_height() == pytest.approx(share)


def test_answers_that_cannot_be_drawn_are_rejected(lender):
    bad = lender.explainer.explain(lender.frame.iloc[:1].assign(debt=np.nan))
    with raises(OptionError, match="for 0"):
        bad[0].plot()
    with raises(OptionError, name="result", match="explained"):
        bad.plot()
    with raises(OptionError, name="network"):
        replace(answers(lender)[0], setting=None).plot()


def test_networks_of_one_input_have_no_plane():
    net = pp.Network([([[1.0]], [-0.5])])
    result = pp.Proplace(net, 0.05, k=2).fit([[0.2], [0.8], [0.9]]).explain([[0.1]])
    assert no_region(result[0]) == "it would need two numbers, and there is only one"
    with raises(OptionError, match="only one"):
        region_picture(result[0])
    result[0].plot()  # the other panels


def test_answers_that_change_more_than_two_numbers_have_no_plane():
    e = many_features(3)
    assert no_region(e) == "the answer changes more than two numbers"
    with raises(OptionError, match="two numbers"):
        region_picture(e)
    e.plot()  # the other panels


def test_plane_crosses_no_category_if_nothing_varies():
    """Between two categories the network means nothing, so no border may be drawn there."""
    schema = pp.Schema(
        [
            pp.Categorical("job", ["x", "y", "z"]),
            *(pp.Continuous(c, 0, 1, immutable=c != "a") for c in "abc"),
        ]
    )
    net = pp.Network([([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]], [-0.3])])
    rows = [[1.0, 0.0, 0.0, 0.5, 0.5, 0.5]]
    e = pp.Proplace(net, 0.01, schema=schema, k=1).fit(rows).explain([[1, 0, 0, 0, 0.5, 0.5]])[0]
    assert region_picture(e, size=3).plane.columns == (3, 4)


def drawn_texts(figure, path):
    """The texts of a picture as a reader of the SVG file sees them."""
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(path)
    return ["".join(part.itertext()) for part in ElementTree.parse(path).iter() if _is_text(part)]


def _is_text(part):
    return part.tag.rpartition("}")[2] == "text"


NAMES = ["cost in $ or x_1^$", r"\frac{$", r"a\$b$", "$$", "\x1b[31m\u202e$x$"]


@pytest.mark.every(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("settings", [{}, {"text.usetex": True}, {"text.parse_math": False}])
def test_dollars_and_formulas_in_names_are_text(name, settings, tmp_path):
    shown = visible(name)
    schema = pp.Schema(
        [
            pp.Continuous("a", 0, 100, unit="$", label=name),
            pp.Ordinal("b", [f"{name} {n}" for n in range(3)], label="b"),
        ]
    )
    net = pp.Network([([[1.0, 1.0]], [-0.7])])
    rows = np.random.default_rng(0).random((30, 2)).round()
    rows[:, 0] = np.linspace(0.0, 1.0, 30)
    result = pp.Proplace(net, 0.01, schema=schema).fit(rows).explain([[0.1, 0.0]])
    wording = pp.Wording("$", ["$a", name])
    with rc_context(settings):
        figure = result[0].plot(wording)
    texts = drawn_texts(figure, tmp_path / "a.svg")
    for text in (shown, f"{shown}, $", f"{shown} 2", f"{shown} today", f"{shown} within delta"):
        assert text in texts, texts
    assert f"worst-case margin ({shown} above 0)" in texts
    with rc_context(settings):
        both = result.plot(wording, retrained=[net])
    assert f"{shown} by 1 retrained model" in drawn_texts(both, tmp_path / "b.svg")


def test_long_name_is_cut_but_no_picture(tmp_path):
    schema = pp.Schema([pp.Continuous(c, 0, 1, label=f"{c} " + "x" * 10_000) for c in "ab"])
    net = pp.Network([([[1.0, 1.0]], [-0.5])])
    rows = np.random.default_rng(0).random((30, 2))
    e = pp.Proplace(net, 0.01, schema=schema).fit(rows).explain([[0.1, 0.1]])[0]
    wording = pp.Wording("it", ["no", "y" * 10_000])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no space is left for the picture
        assert max(map(len, drawn_texts(e.plot(wording), tmp_path / "a.svg"))) <= 60


def test_undecided_points_are_shown_as_not_robust(lender, monkeypatch):
    e = drawn_answers(lender)[0]
    usual = region_picture(e, size=9)
    assert (usual.worst >= 0.0).any()
    monkeypatch.setattr(
        geometry,
        "certify",
        lambda *args, **options: replace(
            certify(*args, **options), undecided=np.ones(81, dtype=bool)
        ),
    )
    undecided = region_picture(e, size=9)
    assert (undecided.worst < 0.0).all()
    assert (undecided.margin == usual.margin).all()


def test_answer_in_another_category_is_drawn_in_its_own():
    schema = pp.Schema(
        [pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1), pp.Binary("home", label="owns a home")]
    )
    net = pp.Network([([[0.2, 0.2, 1.0]], [-0.8])])  # out of reach without a home
    rows = np.random.default_rng(0).random((40, 3)).round(2)
    rows[:, 2] = np.arange(40) % 2
    e = pp.Proplace(net, 0.01, schema=schema).fit(rows).explain([[0.3, 0.4, 0.0]])[0]
    assert e.encoded_counterfactual[2] == 1.0
    picture = region_picture(e, size=9)
    assert picture.moved
    assert set(picture.plane.columns) == {0, 1}
    corners = picture.plane.rows(
        np.array([[picture.a[0], picture.b[0]], [picture.a[-1], picture.b[-1]]])
    )
    assert (corners[:, 2] == 1.0).all()  # the borders are those of people who own a home
    assert picture.margin[0, 0] == pytest.approx(margin_of(forward(net, corners[0]), 1))
    assert combination(picture.hull, picture.answer, 1e-9)
    # The ring is the person as the owner of a home: on the plane, with true borders.
    ring = picture.plane.rows(picture.person)[0]
    np.testing.assert_allclose(ring, [0.3, 0.4, 1.0])
    assert len(picture.neighbours) == (e.neighbours[:, 2] == 1.0).sum()
    e.plot()


def test_answer_that_changes_one_category_has_no_map(tmp_path):
    schema = pp.Schema(
        [pp.Continuous("a", 0, 1), pp.Continuous("b", 0, 1), pp.Binary("home", label="owns a home")]
    )
    net = pp.Network([([[0.2, 0.2, 1.0]], [-0.5])])
    rows = np.random.default_rng(0).random((40, 3)).round(2)
    rows[:, 2] = np.arange(40) % 2
    rows[1] = [0.3, 0.4, 1.0]
    e = pp.Proplace(net, 0.01, schema=schema, k=40).fit(rows).explain([[0.3, 0.4, 0.0]])[0]
    assert list(e.changes.index) == ["home"]
    assert "changes categories alone" in no_region(e)
    with raises(OptionError, match="categories"):
        region_picture(e)
    texts = drawn_texts(e.plot(), tmp_path / "a.svg")
    assert "owns a home" in texts
    assert not any("today" in text for text in texts)
    alone = pp.Schema([pp.Binary("a"), pp.Binary("b")])
    e = pp.Proplace(pp.Network([([[1.0, 1.0]], [-0.5])]), 0.01, schema=alone)
    e = e.fit([[0, 1], [1, 1]]).explain([[0, 0]])[0]
    assert no_region(e) == "it would need two numbers, and all features are categories"


def test_point_off_plane_is_not_drawn(lender):
    e = drawn_answers(lender)[0]
    columns = list(region_picture(e, size=3).plane.columns)
    near = e.encoded_counterfactual.copy()
    near[columns] += 0.01
    assert region_picture(e, also=near, size=3).other is not None
    away = e.encoded_counterfactual.copy()
    away[next(j for j in range(4) if j not in columns)] += 0.01
    assert region_picture(e, also=away, size=3).other is None
    other = e.encoded_counterfactual.copy()
    other[-1] = 1.0 - other[-1]  # another category
    assert region_picture(e, also=other, size=3).other is None


def many_features(count):
    """An answer that changes each of some features, by less and less."""
    names = [f"a rather long name of feature number {n}" for n in range(count)]
    schema = pp.Schema([pp.Continuous(name, 0, 1, unit="thousand dollars") for name in names])
    net = pp.Network([(np.ones((1, count)), [-0.5 * count])])
    goal = np.linspace(0.95, 0.6, count)[np.random.default_rng(0).permutation(count)]
    row = pd.DataFrame([goal], columns=names)
    person = pd.DataFrame([goal - np.linspace(0.5, 0.3, count)[np.argsort(-goal)]], columns=names)
    result = pp.Proplace(net, 1e-4, schema=schema, k=1).fit(row).explain(person)
    assert result[0].found
    return result[0]


def texts_of(axes):
    """All texts that are drawn: ticks beyond the ends of an axis are not."""
    both = (axes.xaxis, axes.yaxis) if axes.axison else ()
    ticks = [
        tick.label1
        for axis in both
        for low, high in (sorted(axis.get_view_interval()),)
        for tick in axis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]
    titles = [axis.label for axis in both]
    legend = axes.get_legend()
    return [*ticks, *titles, *axes.texts, *(legend.get_texts() if legend else [])]


@pytest.mark.parametrize("count", [2, 7, 27, 64])
def test_texts_of_picture_never_overlap(count):
    e = many_features(count)
    assert len(e.changes) == count
    figure = e.plot(LOAN)
    canvas = backend.FigureCanvasAgg(figure)
    canvas.draw()
    page = figure.bbox
    shown = [text for axes in figure.axes for text in texts_of(axes) if text.get_text()]
    boxes = {id(text): text.get_window_extent(canvas.get_renderer()) for text in shown}
    texts = {id(text): text.get_text() for text in shown}
    for one, box in boxes.items():
        assert page.x0 <= box.x0, texts[one]
        assert box.x1 <= page.x1, texts[one]
        assert page.y0 <= box.y0, texts[one]
        assert box.y1 <= page.y1, texts[one]
        for other, beside in boxes.items():
            if one < other:
                assert not box.overlaps(beside), (texts[one], texts[other])
    titles = [text for text in texts.values() if text.startswith("a rather long name")]
    assert len(titles) == min(count, 10) + 2 * (count == 2)  # both axes have one, too
    rest = [text for text in texts.values() if "smaller change" in text]
    assert rest == ([f"and {count - 10} smaller changes"] if count > 10 else [])


def test_changes_are_drawn_largest_first():
    e = many_features(7)
    axes = e.plot(LOAN).axes[-1]
    values = [text.get_text() for text in axes.texts if "→" in text.get_text()]
    pairs = [v.replace("…", "").split(" → ") for v in values]
    moved = [float(new.split()[0]) - float(old) for old, new in pairs]
    assert len(moved) == 7
    assert moved == sorted(moved, reverse=True)
    steps = (e.counterfactual - e.original).astype(float).sort_values(ascending=False)
    np.testing.assert_allclose(moved, steps, atol=1e-5)
    assert list(steps.index) != list(e.changes.index)  # not the order of the table
