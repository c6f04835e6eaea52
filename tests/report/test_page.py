"""The report: complete, self-contained, escaped, and whole without its optional parts."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import proplace as pp
from proplace.certification import CertificateBundle
from proplace.core.errors import OptionError
from proplace.core.text import UNSEEN, visible
from proplace.explain.statement import stated
from proplace.report.geometry import no_region, plain_nearest
from proplace.report.page import MOST
from proplace.report.plots import held, percent
from proplace.report.style import DARK, LIGHT
from support.errors import raises
from support.lenders import LOAN, SCHEMA
from support.pages import Page

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def page(folder):
    return Page(folder / "report.html")


def test_page_shows_all_answers(page, lender):
    for e in lender.result:
        words = e.describe(LOAN)
        assert words.sentence in page.text
        for change in words.claims:
            assert change.change in page.text
            assert change.was in page.text
            assert change.goal in page.text
        for title, value in words.person:
            assert title in page.text
            assert value in page.text
    assert "Loans <b>& more</b>" in page.text


def test_page_calls_only_first_alternative_nearest(page, lender):
    first = [e for e in lender.result if not e.rank]
    assert len(first) < len(lender.result)
    assert all(e.found for e in lender.result)
    tags = re.findall(r'<span class="tag">(.*?)</span>', page.source)
    said = {"optimal": ("nearest answer, proved", "proved")}
    open_ = ("proved robust, perhaps not nearest",) * 2  # written in steps, or typical
    assert tags == [said.get(e.status, open_)[e.rank > 0] for e in lender.result]
    assert page.text.count(", another way") == len(lender.result) - len(first)


def test_page_counts_retrained_networks_that_accept(page, lender):
    found = [e for e in lender.result if e.found]
    shares = held(np.array([e.encoded_counterfactual for e in found]), lender.retrained, 1)
    for share in shares:
        assert f"This answer is approved by {round(share * 2)} of 2 retrained" in page.text
    kept = round(shares.sum() * 2)
    said = f"approved in {kept} of {2 * len(found)} cases ({percent(shares.mean())})"
    assert f"The {len(found)} robust answers on this page are {said}" in page.text
    plain = held(np.array([plain_nearest(e) for e in found]), lender.retrained, 1)
    kept = f"{round(plain.sum() * 2)} of {2 * len(found)} cases ({percent(plain.mean())})"
    assert f"plain nearest answers in {kept}" in page.text


def test_proofs_lie_beside_page_and_are_accepted(folder, page, lender):
    net = pp.Network.load(folder / "the proofs" / "model.npz")
    assert net == lender.net
    for n, e in enumerate(lender.result):
        proof = CertificateBundle.load(folder / "the proofs" / f"answer-{n + 1}.json")
        verdict = proof.check([(net, e.setting.current.shifts)])
        assert verdict.accepted
        assert verdict.sentence.startswith("The loan: approved with ")
        assert proof.certificates == (e.certificate,)
        assert proof.digest in page.text
        command = f"proplace check 'the proofs/answer-{n + 1}.json' --model 'the proofs/model.npz'"
        assert command in page.text


def test_names_of_table_never_become_markup(page):
    assert "<script" not in page.source
    assert "&lt;script&gt;" in page.source  # the category is there, as text
    assert not page.all("script")
    assert not page.all("b")
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_everything_on_page_is_visible(tmp_path):
    nasty = "[/b]\x1b[31m\u202e:smile:<i>&amp;"
    schema = pp.Schema(
        [
            pp.Continuous("a", 0, 1, label=f"a{nasty}", unit=f"u{nasty}"),
            pp.Binary(f"b{nasty}", [f"n{nasty}", f"y{nasty}"]),
        ]
    )
    net = pp.Network([([[1.0, 1.0]], [-1.3])])
    people = pd.DataFrame(
        {"a": [0.1, 0.9], f"b{nasty}": [f"n{nasty}", f"y{nasty}"]}, index=[f"i{nasty}", "j"]
    )
    result = pp.Proplace(net, 0.01, schema=schema).fit(people).explain(people)
    path = tmp_path / "r.html"
    wording = pp.Wording(f"s{nasty}", ["no", f"o{nasty}"], f"p{nasty}")
    result.report(path, wording, title=f"t{nasty}", retrained=[net])
    page = Page(path)
    assert not UNSEEN.search(page.source.replace("\n", ""))
    for place in "abnyisopt":
        assert place + visible(nasty) in page.text.replace("P[/b]", "p[/b]"), place
    words = result[0].describe(wording)
    said = f"{words}{words.table().to_csv()}{words.person}{result[0]!r}"
    assert not UNSEEN.search(said.replace("\n", ""))
    for image in page.all("img"):  # the pictures are pages of their own
        assert not UNSEEN.search(svg_of(image["src"]).replace("\n", ""))
        assert "<i>" not in svg_of(image["src"])


def svg_of(address):
    return base64.b64decode(address.partition(",")[2]).decode()


def test_category_named_like_colour_keeps_its_name_in_dark(tmp_path):
    colour = LIGHT.ink
    schema = pp.Schema([pp.Continuous(c, 0, 1, label=f"{c} {colour}") for c in "ab"])
    net = pp.Network([([[1.0, 1.0]], [-0.5])])
    rows = np.random.default_rng(0).random((30, 2))
    result = pp.Proplace(net, 0.01, schema=schema).fit(rows).explain([[0.1, 0.1]])
    result.report(tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    light, dark = svg_of(page.all("img")[0]["src"]), svg_of(page.all("source")[0]["srcset"])
    assert f">a {colour}<" in light
    assert f">a {colour}<" in dark
    assert f"fill: {colour}" in light
    assert f"fill: {colour}" not in dark


def test_page_needs_no_other_file(page):
    for tag, attrs in page.elements:
        for name in ("src", "srcset", "href"):
            if name in attrs:
                inside = attrs[name].startswith(("data:", "#"))
                assert inside, (tag, attrs[name][:60])
    assert "url(" not in page.source
    assert "@import" not in page.source


def test_readers_of_all_kinds(page):
    assert page.all("html")[0]["lang"] == "en"
    assert any(m.get("name") == "viewport" for m in page.all("meta"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    for image in page.all("img"):
        assert len(image["alt"]) > 40
        assert int(image["width"]) > 0
        assert int(image["height"]) > 0
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    names = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(names) == len(set(names))
    for link in page.all("a"):
        assert link["href"][1:] in names


def luminance(colour):
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_has_enough_contrast(page):
    """WCAG AA: 4.5 to 1 for text on each of its grounds, 3 to 1 for lines of pictures."""
    rules = re.findall(r":root \{(.*?)\}", page.source, re.S)
    assert len(rules) == 2  # light and dark
    for rule in rules:
        colour = dict(re.findall(r"--(\w+): (#\w{6})", rule))
        for text in ("ink", "soft", "ours"):
            for ground in ("page", "card", "tint"):
                assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
        assert contrast(colour["ink"], colour["warn"]) >= 4.5
    for palette in (LIGHT, DARK):
        for text in (palette.ink, palette.soft):
            assert contrast(text, palette.page) >= 4.5
        for line in (palette.ours, palette.plain):
            for ground in (palette.page, palette.refused, palette.fragile, palette.robust):
                assert contrast(line, ground) >= 3.0, (line, ground)


@pytest.mark.slow
def test_same_answers_give_same_page(folder, lender, tmp_path):
    again = lender.result.report(
        tmp_path / "report.html",
        LOAN,
        title="Loans <b>& more</b>",
        retrained=lender.retrained,
        proofs=tmp_path / "the proofs",
    )
    assert again == tmp_path / "report.html"
    assert again.read_bytes() == (folder / "report.html").read_bytes()


def test_page_without_optional_parts_is_whole(lender, tmp_path):
    alone = next(e for e in lender.result if e.found)
    path = pp.Explanations([replace(alone, certificate=None)]).report(tmp_path / "new" / "a.html")
    page = Page(path)
    assert "On retrained models" not in page.text
    assert "digest" not in page.text
    assert "certificate" not in page.text.replace("Words such as delta, margin and certificate", "")
    assert "All answers" not in page.text
    assert len(page.all("img")) == 2 - bool(no_region(alone))
    assert "would have been class 1 with" in page.text
    assert list(path.parent.iterdir()) == [path]


def test_certificate_that_is_not_saved_is_named_by_its_digest(lender, tmp_path):
    page = Page(lender.result[:1].report(tmp_path / "a.html", LOAN))
    assert stated(lender.result[0], LOAN).digest in page.text
    assert "proplace check" not in page.text


def test_every_status_has_its_place(lender, tmp_path):
    people = lender.frame.iloc[:2].copy()
    people["debt"] = people["debt"].astype(float)
    people.iloc[0, 0] = np.nan
    strict = pp.Proplace(lender.net, 3.0, schema=SCHEMA).fit(lender.frame)
    approved = lender.frame[lender.net.predict(lender.X) == 1].iloc[:1]
    items = [
        *lender.explainer.explain(people[:1]),
        *lender.explainer.explain(approved),
        *strict.explain(lender.frame[lender.net.predict(lender.X) == 0].iloc[:1]),
        replace(lender.result[0], status="feasible", bound=lender.result[0].distance / 2),
        replace(lender.result[0], status="infeasible_rules", reason="of 3 rows none fits"),
        pp.Explanation(
            "solver_error", "no luck", index=7, target=1, setting=lender.result[0].setting
        ),
    ]
    statuses = [e.status for e in items]
    assert statuses[:3] == ["bad_input", "already_valid", "no_robust_neighbour"]
    page = Page(pp.Explanations(items).report(tmp_path / "a.html", LOAN))
    for e in items:
        assert e.describe(LOAN).sentence in page.text
    for tag in (
        "not readable",
        "no change needed",
        "no answer",
        "perhaps not nearest",
        "the solver failed",
    ):
        assert tag in page.text


def test_people_without_answer_get_page(lender, tmp_path):
    result = lender.explainer.explain(lender.frame.iloc[:2].assign(debt=np.nan))
    page = Page(result.report(tmp_path / "a.html", LOAN, retrained=lender.retrained))
    assert "0 of 2" in page.text
    assert not page.all("img")


def test_reports_of_none_or_too_many_are_rejected(lender, tmp_path):
    with raises(OptionError, name="result", match="There is nothing"):
        pp.Explanations([]).report(tmp_path / "a.html")
    many = pp.Explanations([lender.result[0]] * (MOST + 1))
    with raises(OptionError, name="result", match=rf"result\[:{MOST}\]"):
        many.report(tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_plain_arrays_have_report(tmp_path):
    X = np.random.default_rng(0).random((200, 3))
    # Three classes: the largest input wins.
    net = pp.Network(
        [(np.vstack([np.eye(3), -np.eye(3)]), None), (np.eye(3, 6) - np.eye(3, 6, 3), None)]
    )
    result = pp.Proplace(net, 0.005).fit(X).explain(X[net.predict(X) == 0][:2], target=2)
    assert all(e.found for e in result)
    page = Page(result.report(tmp_path / "a.html"))
    assert "would have been class 2 with" in page.text
    assert "Person 0" in page.text


def test_answers_of_another_method_have_report(lender, tmp_path):
    people = lender.frame.loc[[lender.result[0].index]]
    plain = pp.baselines.Wachter(lender.net, schema=SCHEMA).fit(lender.frame).explain(people)
    page = Page(plain.report(tmp_path / "a.html", LOAN, retrained=lender.retrained))
    assert "not proved that this lasts" in page.text
    assert "proved for every model whose" not in page.text
    assert "robust answer" not in page.text
    with raises(OptionError, name="result", match="delta"):
        plain.plot()
    plain[0].plot()


def test_retrained_pipelines_read_counterfactuals_in_original_units(tmp_path):
    rng = np.random.default_rng(3)
    table = pd.DataFrame(
        {
            "income": rng.normal(40_000, 9_000, 300).round(-2),
            "job": rng.choice(["cook", "clerk"], 300),
        }
    )
    y = np.where(table.income + 5_000 * (table.job == "clerk") > 42_000, "yes", "no")

    def pipeline(rows):
        steps = make_column_transformer((StandardScaler(), ["income"]), (OneHotEncoder(), ["job"]))
        return make_pipeline(steps, LogisticRegression()).fit(table.iloc[rows], y[rows])

    current = pipeline(np.arange(300))
    later = [pipeline(rng.choice(300, 40)) for _ in range(9)]
    result = pp.Proplace(current, 0.001).fit(table).explain(table[y == "no"][:6], "yes")
    frame = pd.DataFrame([e.counterfactual for e in result])
    accepted = sum((other.predict(frame) == "yes").astype(int) for other in later)
    assert 0 < accepted.min() < 9
    page = Page(result.report(tmp_path / "report.html", retrained=later))
    for count in accepted:
        assert f"by {count} of 9 retrained models" in page.text
