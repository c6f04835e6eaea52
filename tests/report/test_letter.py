"""Letters: every status, nothing promised that is not proved, nothing in a name that acts."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from oracles import pairs_of
from proplace.core.errors import OptionError
from proplace.explain.results import STATUSES
from proplace.explain.words import largest_first
from proplace.report.letter import MOST_WAYS, UNSENT
from support.errors import raises
from support.lenders import LOAN, with_current
from support.pages import Page

pytest.importorskip("jinja2")

DAYS = {"date": "2026-03-31", "valid_until": "2026-12-31"}
PROVED = re.compile(r"[Tt]his is proved|mathematical proof|is proved for")


def letter(result, index, wording=LOAN, **more):
    return Page(result.letter(index, None, wording, **{**DAYS, **more}))


@pytest.fixture(scope="module")
def one(lender):
    """One answer for each of some people."""
    return pp.Explanations([e for e in lender.result if e.found and not e.rank])


def alone(e, **changes):
    return pp.Explanations([replace(e, **changes)])


# -- what it says ----------------------------------------------------------------------------------


def test_an_answer(one):
    for e in one:
        page = letter(one, e.index)
        words = e.describe(LOAN)
        rows = {row[0]: row[1:] for row in page.cells[1:]}
        assert rows == {c.title: [c.was, c.goal, c.change] for c in words.claims}
        count = len(words.claims)
        whole = "both" if count == 2 else "all of them"
        together = "this one change" if count == 1 else f"these {count} changes, {whole} together"
        assert f"The loan would have been approved with {together}." in page.text
        assert f"Applicant {e.index}" in page.text
        assert "Date 31 March 2026" in page.text
        assert "Valid until 31 December 2026" in page.text
        assert f"Reference {e.certificate.digest[:12]} " in page.text
        assert e.certificate.digest in page.text
        assert (
            "whose weights and biases each differ from the current model by at most 0.01"
            in page.text
        )
        assert "“approved”. This is proved for " in page.text
        assert "Nothing is promised" not in page.text
        assert "It is decided by 31 December 2026." in page.text
        assert "Not promised: that the applicant can make these changes" in page.text
        assert "proplace check certificate.json --model model.npz" in page.text
        for title, value in words.person:  # what stays is a part of the promise
            if title not in rows:
                assert f"{title} {value}" in page.text


def test_the_largest_change_stands_on_top(lender):
    found = [e for e in lender.result if e.found]
    e = replace(max(found, key=lambda e: len(e.changes)), rank=0)
    assert len(e.changes) > 1
    page = letter(alone(e), e.index)
    sizes = []
    for title, *_ in page.cells[1:]:
        name = next(f.name for f in e.setting.schema.features if f.title == title)
        span = e.setting.schema.span(name)
        sizes.append(np.abs(e.encoded_original[span] - e.encoded_counterfactual[span]).max())
    assert sizes == sorted(sizes, reverse=True)


def test_several_ways_beside_each_other(lender):
    index = next(e.index for e in lender.result if e.rank == 1 and e.found)
    first, second = (e for e in lender.result if e.index == index)
    page = letter(lender.result, index)
    head, *rows, foot = page.cells
    assert head == ["What", "Today", "First way", "Second way"]
    both = [{c.title: c for c in e.describe(LOAN).claims} for e in (first, second)]
    assert {row[0] for row in rows} == both[0].keys() | both[1].keys()
    top = [row[0] for row in rows[: len(both[0])]]
    assert top == [c.title for c in largest_first(first.claims)]  # the first way is on top
    for title, today, *goals in rows:
        for change, goal in zip((way.get(title) for way in both), goals, strict=True):
            assert goal == ("as today" if change is None else change.goal)
            assert change is None or change.was == today
    digests = [e.certificate.digest for e in (first, second)]
    assert foot == ["Reference", "", *(digest[:12] for digest in digests)]
    assert all(digest in page.text for digest in digests)
    assert "Two ways were found; each is complete by itself" in page.text
    assert "All changes of one way are made" in page.text
    claim = "the first is the nearest to how things are today"
    near = pp.Explanations([replace(first, distance=second.distance), second])
    assert claim in letter(near, index).text
    other = pp.Explanations([replace(first, distance=second.distance + 0.1), second])
    assert claim not in letter(other, index).text


def test_letter_counts_alternatives_beyond_the_fourth(one):
    e = one[0]
    many = pp.Explanations([replace(e, rank=n) for n in range(MOST_WAYS + 2)])
    page = letter(many, e.index)
    assert len(page.cells[0]) == 2 + MOST_WAYS
    assert "6 ways were found, and the first 4 are shown" in page.text


def test_a_way_that_is_not_proved_says_so_beside_one_that_is(one):
    e = one[0]
    both = pp.Explanations([e, replace(e, rank=1, status="valid", certificate=None)])
    page = letter(both, e.index)
    assert "First way: This is proved for " in page.text
    assert "Second way: It is not proved that this lasts when the model is retrained." in page.text
    assert page.cells[-1][-1] == "none: not proved"


def test_people_who_need_no_change(lender):
    accepted = lender.frame[lender.net.predict(lender.X) == 1].iloc[:3]
    result = lender.explainer.explain(accepted)
    sure = next(e for e in result if e.margin >= 0)
    page = letter(result, sure.index)
    assert "Nothing has to change" in page.text
    assert "The loan would be approved as things are." in page.text
    assert "The model’s answer as things are is “approved”. This is proved" in page.text
    assert "Everything stays as it is: obligations" in page.text
    assert page.cells == []
    page = letter(alone(sure, margin=-1.0, certificate=None), sure.index)
    assert not PROVED.search(page.text)
    assert "Nothing is promised by this letter. It is not proved that this lasts" in page.text
    assert "Reference" not in page.text


@pytest.mark.parametrize("status", ["no_robust_neighbour", "infeasible_rules", "not_found"])
def test_no_answer(one, status):
    none = dict.fromkeys(("counterfactual", "encoded_counterfactual", "certificate"))
    reason = "no row (of <b>any</b> kind; at all) will do; allow more time"
    result = alone(one[0], status=status, reason=reason, margin=np.nan, **none)
    page = letter(result, one[0].index)
    assert "No change can be promised after which the loan would be approved." in page.text
    assert "no row (of <b>any</b> kind; at all) will do." in page.text
    assert "allow more time" not in page.text  # advice to those who asked, not to the person
    assert "Nothing is promised by this letter." in page.text
    assert "This does not say that it can never be approved" in page.text
    assert "What this is based on: obligations" in page.text
    assert not PROVED.search(page.text)
    assert "Reference" not in page.text
    assert "How to check" not in page.text
    assert "would have been" not in page.text
    assert page.cells == []


@pytest.mark.parametrize("status", sorted(UNSENT))
def test_rows_that_could_not_be_explained_get_no_letter(one, status):
    result = alone(one[0], status=status, reason="cell 'x' is missing")
    with raises(OptionError, name="index", match="missing"):
        result.letter(one[0].index)


def test_every_status_has_a_letter_or_none(one):
    for status, meaning in STATUSES.items():
        result = alone(one[0], status=status, reason="so it is")
        if status in UNSENT:
            continue
        page = letter(result, one[0].index)
        assert bool(PROVED.search(page.text)) == (meaning.certified or status == "already_valid")


# -- nothing that is not proved --------------------------------------------------------------------


def against(e):
    """A certificate that says that a row is not robust."""
    net = pp.Network([([[1.0, 1.0]], [-1.0])])
    return pp.certify(net, [[0.5, 0.51]], 0.05, certificates=True).certificates[0]


@pytest.mark.parametrize(
    "change",
    [
        {"status": "valid"},
        {"margin": np.nan},
        {"margin": -0.1},
        {"certificate": against},
        {"setting": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_no_promise_without_a_proof(one, change):
    change = {k: v(one[0]) if callable(v) else v for k, v in change.items()}
    page = letter(alone(one[0], **change), one[0].index)
    assert not PROVED.search(page.text)
    assert "Nothing is promised by this letter. It is not proved that this lasts" in page.text
    assert "that a retrained model says the same" in page.text
    assert "It holds if all of this is so" not in page.text
    assert "How to check" not in page.text
    assert "Reference" not in page.text


def test_one_network_alone_is_no_promise_about_others(lender, one):
    people = lender.frame.loc[[one[0].index]]
    result = (
        pp.Proplace(lender.net, 0.0, schema=one[0].setting.schema).fit(lender.frame).explain(people)
    )
    page = letter(result, one[0].index)
    assert "Nothing is promised by this letter. This is shown for " in page.text
    assert "the current model only: a retrained model may decide otherwise" in page.text
    assert not PROVED.search(page.text)


def test_a_model_outside_of_its_set_that_says_no_is_named(one):
    e = one[0]
    shifts = e.setting.current.shifts
    moved = pp.Network(
        [(w, b - (n == 2) * 50.0) for n, (w, b) in enumerate(pairs_of(e.setting.current.network))]
    )
    page = letter(alone(e, setting=with_current(e.setting, network=moved, shifts=shifts)), e.index)
    assert "though not by the current model" in page.text
    assert "The current model lies outside this set and does not accept it" in page.text
    assert "though not by the current model" not in letter(one, e.index).text


def test_a_certificate_that_was_not_kept_is_missed(one):
    page = letter(alone(one[0], certificate=None), one[0].index)
    assert "A certificate was not kept with every answer" in page.text
    assert "Reference" not in page.text


def test_proved_intervals():
    names = {"income": 200_000, "debt": 100, "age": 90}
    schema = pp.Schema([pp.Continuous(n, 0, top, step=1, unit="units") for n, top in names.items()])
    net = pp.Network([([[2.0, -0.1, 0.0]], [-0.5])])
    rows = pd.DataFrame({"income": [20_000, 90_000], "debt": [50, 50], "age": [40, 40]})
    e = pp.Proplace(net, 0.01, schema=schema, k=1).fit(rows).explain(rows[:1])[0]
    assert list(e.changed) == ["income"]
    value = int(e.counterfactual["income"])
    holds = {"income": (value, 200_000.0), "debt": (48.5, 50.0), "age": (40.0, 40.0)}
    page = letter(alone(e, guaranteed_ranges=holds), 0)
    assert page.cells[1] == ["income", "20,000 units", f"at least {value:,} units", ""]
    assert f"to any within income {value:,} to 200,000 units." in page.text
    assert "debt 50 units (or anything from 49 to 50 units); age 40 units." in page.text
    assert "This is proved for all such values within the declared range (" in page.text
    unproved = letter(alone(e, guaranteed_ranges=holds, margin=np.nan), 0)
    assert "at least" not in unproved.text
    assert "any within" not in unproved.text
    assert "anything from" not in unproved.text
    two = pp.Explanations(
        [replace(e, guaranteed_ranges=holds), replace(e, rank=1, guaranteed_ranges={})]
    )
    page = letter(two, 0)
    assert page.cells[1][2:] == [f"at least {value:,} units", f"{value:,} units"]
    assert f"to any within first way: income {value:,} to 200,000 units." in page.text
    assert "anything from" not in page.text  # it is proved for one of the ways


# -- names that would act --------------------------------------------------------------------------

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&\u202e"


def test_names_in_every_place_are_text():
    labels = [f"{EVIL}{n}" for n in range(3)]
    features = [
        pp.Continuous("a", 0, 1, step=0.25, unit=EVIL, label=f"a {EVIL}"),
        pp.Categorical("b", labels, label=f"b {EVIL}"),
        pp.Binary("c", [f"no {EVIL}", f"yes {EVIL}"], label=f"c {EVIL}", immutable=True),
    ]
    schema = pp.Schema(features)
    net = pp.Network([([[1.0, 0.0, 0.3, 1.0, 0.1]], [-1.2])])
    rows = pd.DataFrame({"a": [0.0, 1.0, 1.0], "b": labels, "c": [f"no {EVIL}"] * 3})
    rows.index = [EVIL, "1", "2"]
    wording = pp.Wording(f"subject {EVIL}", ["", f"outcome {EVIL}"], f"person {EVIL}")
    result = pp.Proplace(net, 0.01, schema=schema, k=3).fit(rows).explain(rows[:1], count=2)
    assert result[0].found
    ids = {f"id {EVIL}": f"value {EVIL}"}
    pages = [
        pp.Explanations([replace(e, ids=ids) for e in result]).letter(
            EVIL, None, wording, reference=f"reference {EVIL}", **DAYS
        ),
        pp.Explanations(
            [replace(result[0], status="not_found", reason=f"reason {EVIL}", ids=ids)]
        ).letter(EVIL, None, wording, reference=f"reference {EVIL}", **DAYS),
    ]
    for text in pages:
        page = Page(text)
        assert {"script", "img", "iframe", "a", "form"}.isdisjoint(dict(page.elements))
        names = {name for _, attrs in page.elements for name in attrs}
        assert not any(name.startswith("on") or name == "src" for name in names)
        assert [attrs["href"] for _, attrs in page.elements if "href" in attrs] == ["data:,"]
        assert "\u202e" not in text
        assert "http:" not in text
        assert "https:" not in text
        for part in ("Person", "subject", "outcome", "reference", "id"):
            assert f"{part} <script>alert('x')</script>".lower() in page.text.lower(), part
    assert "reason <script>" in Page(pages[1]).text
    assert "b <script>" in Page(pages[0]).text


def test_texts_of_any_length_are_cut(one):
    long = "x" * 100_000
    wording = pp.Wording(long, ["", long], long)
    result = alone(one[0], ids={long: long})
    assert len(result.letter(one[0].index, None, wording, reference=long)) < 20_000
    none = alone(one[0], status="not_found", reason=long)
    assert len(none.letter(one[0].index, None, wording)) < 20_000


# -- dates, files, labels --------------------------------------------------------------------------


def test_the_same_answer_and_days_give_the_same_page(one, lender, tmp_path):
    index = one[0].index
    text = one.letter(index, None, LOAN, **DAYS)
    both = lender.explainer.explain(lender.frame.loc[[index]], count=2)
    again = pp.Explanations([both[0]])
    assert again.letter(index, None, LOAN, **DAYS) == text
    day = datetime.date(2026, 3, 31)
    last = datetime.datetime(2026, 12, 31, 23, 59)
    path = one.letter(index, tmp_path / "new" / "a.html", LOAN, date=day, valid_until=last)
    assert path == tmp_path / "new" / "a.html"
    assert path.read_text(encoding="utf-8") == text


def test_without_a_date_it_is_of_the_builds_day_where_that_is_set(one, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(86_400 * 365))
    assert "Date 1 January 1971" in Page(one.letter(one[0].index)).text


def test_without_a_date_it_is_of_today(one, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    days = [datetime.date.today()]
    page = Page(one.letter(one[0].index))
    days.append(datetime.date.today())
    assert any(f"Date {d.day} {d:%B} {d.year}" in page.text for d in days)
    assert "Valid until" not in page.text
    assert "It is decided by" not in page.text


@pytest.mark.parametrize(
    ("days", "name"),
    [
        ({"date": "31.3.2026"}, "date"),
        ({"valid_until": 7}, "valid_until"),
        (
            {"valid_until": "2026-03-30"},
            "valid_until",
        ),
    ],
)
def test_days_that_are_none(one, days, name):
    with raises(OptionError, name=name):
        one.letter(one[0].index, None, LOAN, **{"date": "2026-03-31", **days})


def test_a_reference_of_the_senders_own(one):
    page = letter(one, one[0].index, reference=" AZ 12/7 ")
    assert "Reference AZ 12/7 What" in page.text
    assert one[0].certificate.digest in page.text


def test_nobody_and_two_people_of_one_label(one):
    with raises(OptionError, name="index", value="x"):
        one.letter("x")
    with raises(OptionError, name="index", match="several"):
        pp.Explanations([one[0], one[0]]).letter(one[0].index)


def test_labels_of_several_levels(one):
    e = replace(one[0], index=("north", 7), ids={"name": "A. B."})
    assert "Applicant north, 7 (name A. B.)" in letter(pp.Explanations([e]), ("north", 7)).text
