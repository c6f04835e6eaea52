"""Summaries of many people, against a recount of the table of explanations."""

import math
from collections import Counter
from dataclasses import replace
from statistics import median

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from proplace.batch import explain_file
from proplace.core.errors import OptionError
from support.errors import raises
from support.lenders import SCHEMA, Lender

FOUND = ("optimal", "feasible", "valid")
UNASKED = ("already_valid", "bad_input", "worker_died")


@pytest.fixture(scope="module")
def result():
    """Two counterfactuals for each of some people, approved people, and some failures."""
    lender = Lender()
    explainer = pp.Proplace(lender.net, 0.01, schema=SCHEMA).fit(lender.frame)
    label = lender.net.predict(lender.X)
    people = pd.concat([lender.frame[label == 0][:14], lender.frame[label == 1][:3]])
    table = explainer.explain(people, 1, count=2)
    items, row = [], -1
    for e in table:
        row += e.rank == 0
        failure = {2: "not_found", 5: "bad_input", 9: "worker_died"}.get(row)
        if failure and e.rank:
            continue  # a person without a counterfactual has one line
        kept = replace(e, ids={"branch": "north" if row % 3 else "south"})
        items.append(without_point(kept, failure) if failure else kept)
    return pp.Explanations(items)


def without_point(e, status):
    nothing = {"encoded_counterfactual": None, "counterfactual": None, "distance": math.nan}
    return replace(e, status=status, plausibility=math.nan, certificate=None, **nothing)


def first_rows(result):
    frame = result.to_frame()
    return frame[frame["rank"] == 0]


def wilson(k, n, z=1.959963984540054):
    """The interval by its formula."""
    p, q = k / n, z * z / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (p + q / 2 - half) / (1 + q), (p + q / 2 + half) / (1 + q)


def compare(line, rows):
    """Compare one line of a summary with the rows of its people."""
    statuses = Counter(rows["status"])
    refused = len(rows) - sum(statuses[s] for s in UNASKED)
    found = rows[rows["status"].isin(FOUND)]
    assert (line["people"], line["refused"], line["answered"]) == (len(rows), refused, len(found))
    if refused:
        assert line["share"] == pytest.approx(len(found) / refused)
        assert (line["low"], line["high"]) == pytest.approx(wilson(len(found), refused))
    if len(found):
        assert line["distance"] == pytest.approx(median(found["distance"]))
        usual = found["plausibility"].dropna()
        assert line["plausibility"] == pytest.approx(median(usual), nan_ok=True)
        assert line["typical"] == pytest.approx(np.mean(usual >= 0.1 - 1e-12))
    for status in line.index[10:]:
        assert line[status] == statuses[status]


def test_summary_counts_every_person_once(result):
    rows = first_rows(result)
    assert len(rows) < len(result)  # some people have two counterfactuals
    summary = result.summary().to_frame()
    assert list(summary.index) == ["all"]
    line = summary.loc["all"]
    compare(line, rows)
    assert 0 < line["answered"] < line["refused"] < line["people"]
    assert set(rows["status"]) == set(summary.columns[10:])


def test_summary_by_column_divides_same_people(result):
    frame = result.summary(by="branch").to_frame()
    rows = first_rows(result)
    assert list(frame.index) == ["north", "south"]
    assert frame.index.name == "branch"
    for branch in frame.index:
        compare(frame.loc[branch], rows[rows["branch"] == branch])
    total = result.summary().to_frame().loc["all"]
    for column in ("people", "refused", "answered"):
        assert frame[column].sum() == total[column]


def test_features_count_changes_of_first_counterfactual(result):
    rows = first_rows(result)
    found = rows[rows["status"].isin(FOUND)]
    features = result.summary().features
    names = list(SCHEMA.by_name)
    assert list(features.index) == names
    assert features["changed"].sum() > 0
    for name in names:
        changed = found[found[name] != found[f"original_{name}"]]
        line = features.loc[name]
        assert line["changed"] == len(changed)
        assert line["share"] == pytest.approx(len(changed) / len(found))
        if not len(changed):
            assert math.isnan(line["median_change"])
        elif isinstance(SCHEMA.by_name[name], pp.Continuous):
            moves = changed[name].astype(float) - changed[f"original_{name}"].astype(float)
            assert line["median_change"] == pytest.approx(median(moves))


def test_changes_is_median_number_of_changed_features(result):
    rows = first_rows(result)
    found = rows[rows["status"].isin(FOUND)]
    names = list(SCHEMA.by_name)
    counts = [sum(row[n] != row[f"original_{n}"] for n in names) for _, row in found.iterrows()]
    assert result.summary().to_frame()["changes"]["all"] == median(counts)


def test_features_by_group_add_up_to_all_features(result):
    grouped = result.summary(by="branch").features
    assert grouped.index.names == ["branch", "feature"]
    total = result.summary().features["changed"]
    assert (grouped["changed"].groupby(level="feature").sum()[total.index] == total).all()


def test_most_often_is_most_frequent_new_category(result):
    rows = first_rows(result)
    found = rows[rows["status"].isin(FOUND)]
    jobs = found["job"][found["job"] != found["original_job"]]
    most = result.summary().features["most_often"]["job"]
    assert jobs.empty or Counter(jobs)[most] == max(Counter(jobs).values())
    assert pd.isna(result.summary().features["most_often"]["income"])


def test_many_numbers_are_cut_into_quarters(result):
    frame = result.summary(by="income").to_frame()
    people = first_rows(result)["original_income"].astype(float)
    assert len(frame) == 4
    ends = [[float(end.replace(",", "")) for end in name.split(" to ")] for name in frame.index]
    for low, high in ends:
        assert frame["people"].iloc[ends.index([low, high])] == people.between(low, high).sum()
    assert frame["people"].sum() == len(people)
    assert [low for low, _ in ends] == sorted(low for low, _ in ends)


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series])
def test_by_accepts_one_value_for_each_person(result, kind):
    rows = first_rows(result)
    values = ["b" if n % 2 else "a" for n in range(len(rows))]
    by = pd.Series(values, index=rows.index, name="g")[::-1] if kind is pd.Series else kind(values)
    frame = result.summary(by=by).to_frame()
    for group in "ab":
        compare(frame.loc[group], rows[np.array(values) == group])


def test_series_aligns_by_index_of_table(result):
    rows = first_rows(result)
    more = pd.Series("x", index=[*rows.index, "nobody"])
    assert result.summary(by=more).to_frame()["people"]["x"] == len(rows)
    with raises(OptionError, name="by", value=rows.index[0]):
        result.summary(by=more.drop(rows.index[0]))
    with raises(OptionError, name="by"):
        result.summary(by=pd.concat([more, more]))


def test_missing_values_form_group_of_their_own(result):
    rows = first_rows(result)
    values = [math.nan, None, *["a"] * (len(rows) - 2)]
    frame = result.summary(by=values).to_frame()
    assert list(frame.index) == ["a", "unknown"]
    compare(frame.loc["unknown"], rows[:2])


def test_ordered_groups_keep_their_order(result):
    rows = first_rows(result)
    numbers = pd.Series(np.arange(len(rows)), index=rows.index)
    parts = pd.cut(numbers, [-1, 1, 9, 99])
    assert list(result.summary(by=parts).to_frame().index) == list(parts.cat.categories)


@pytest.mark.parametrize(
    ("by", "value"),
    [("brunch", "brunch"), (["a"], ["a"]), (3, 3)],
    ids=["name", "length", "number"],
)
def test_by_rejects_column_that_does_not_fit(result, by, value):
    with raises(OptionError, name="by", value=value):
        result.summary(by=by)


def test_by_rejects_values_that_cannot_be_compared(result):
    values = [[n] for n in range(len(first_rows(result)))]
    for by in (values, np.array(values)):
        with raises(OptionError, name="by"):
            result.summary(by=by)


def test_by_rejects_too_many_groups(result):
    people = pp.Explanations(list(first(result)) * 3)
    with raises(OptionError, name="by"):
        people.summary(by=[f"person {n}" for n in range(len(people))])


def first(result):
    return [e for e in result if e.rank == 0]


def test_summary_without_people_has_no_share():
    nobody = pp.Explanations([])
    line = nobody.summary().to_frame().loc["all"]
    assert line["people"] == 0
    assert math.isnan(line["share"])
    assert math.isnan(line["low"])
    assert nobody.summary(by="age").to_frame().empty


def test_summary_of_approved_people_has_no_share(result):
    approved = pp.Explanations([e for e in result if e.status == "already_valid"])
    line = approved.summary().to_frame().loc["all"]
    assert (line["people"], line["refused"], line["answered"]) == (3, 0, 0)
    assert math.isnan(line["share"])
    pytest.importorskip("matplotlib")
    with raises(OptionError, name="result"):
        approved.summary().plot()


def test_saved_results_have_same_summary(tmp_path):
    lender = Lender()
    people = lender.frame[lender.net.predict(lender.X) == 0][:4]
    people.to_csv(tmp_path / "people.csv", index=False)
    request = lender.explainer.request(count=2)
    explain_file(lender.explainer, tmp_path / "people.csv", tmp_path / "out", request)
    saved = pp.read_results(tmp_path / "out").summary(by="job")
    direct = lender.explainer.explain(people.reset_index(drop=True), count=2).summary(by="job")
    pd.testing.assert_frame_equal(saved.to_frame(), direct.to_frame())
    pd.testing.assert_frame_equal(saved.features, direct.features)


# -- the picture -----------------------------------------------------------------------------------


def drawn_texts(axes):
    return [text.get_text() for text in axes.texts]


def test_plot_draws_shares_and_intervals(result):
    pytest.importorskip("matplotlib")
    rows = first_rows(result)
    upper, lower = result.summary(by="branch").plot().axes
    for n, branch in enumerate(("north", "south")):
        line = result.summary(by="branch").to_frame().loc[branch]
        low, high = upper.lines[n].get_xdata()
        assert (low, high) == pytest.approx(wilson(int(line["answered"]), int(line["refused"])))
        assert upper.collections[n].get_offsets()[0][0] == pytest.approx(line["share"])
        assert f"{line['answered']:g} of {line['refused']:g} " in drawn_texts(upper)[n]
    assert [t.get_text() for t in upper.get_yticklabels()] == ["north", "south"]
    found = rows[rows["status"].isin(FOUND)]
    titles = [t.get_text() for t in lower.get_yticklabels()]
    for mark, branch in zip(lower.collections, ("north", "south"), strict=True):
        members = found[found["branch"] == branch]
        for name, feature in SCHEMA.by_name.items():
            if feature.title in titles:
                share = (members[name] != members[f"original_{name}"]).mean()
                assert mark.get_offsets()[titles.index(feature.title)][0] == pytest.approx(share)


def test_plot_names_median_change_in_its_unit(result):
    pytest.importorskip("matplotlib")
    lower = result.summary().plot().axes[1]
    titles = [t.get_text() for t in lower.get_yticklabels()]
    median_change = result.summary().features["median_change"]["debt"]
    text = drawn_texts(lower)[titles.index("obligations")]
    assert f"{abs(median_change):g} percentage point" in text
    assert ("lower" in text) == (median_change < 0)


def test_plot_counts_features_beyond_fifteen():
    pytest.importorskip("matplotlib")
    names = [f"feature {n} with $a name$ that is much too long for a picture" for n in range(25)]
    schema = pp.Schema([pp.Continuous(name, 0, 1) for name in names])
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.random((80, 25)), columns=names)
    net = pp.Network([(np.ones((1, 25)), [-12.5])])
    result = pp.Proplace(net, 0.001, schema=schema).fit(table).explain(table)
    figure = result.summary(by=[f"group {n % 7}" for n in range(80)]).plot()
    titles = [t.get_text() for t in figure.axes[1].get_yticklabels()]
    assert len(titles) == 16
    assert titles[-1] == f"and {(result.summary().features['changed'] > 0).sum() - 15} more"
    assert len(figure.axes[1].collections) == 1  # seven groups are drawn together
    figure.canvas.draw()
