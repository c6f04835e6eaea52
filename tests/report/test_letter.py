"""Letters: every claim is proved, and lenders can use templates of their own."""

from __future__ import annotations

import dataclasses
import html
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import proplace as pp
import proplace.report.letter
from oracles import pairs_of
from proplace.certification import read_proof
from proplace.core.errors import LedgerError, OptionError
from proplace.report.letter import letter_fields, letter_of_promise
from proplace.report.proofs import save_proof
from sentences import World
from support.errors import raises
from support.lenders import LOAN, PipelineLender, with_current
from support.pages import Page
from support.tiers import thorough

pytest.importorskip("jinja2")

DOCS = Path(__file__).parents[2] / "docs"
TECHNICAL = ("network", "weight", "bias", "margin", "delta", "model", "certificate", "class ")
FIELDS = {"state": "open", "id": 7, "person": "ann", "issued": "2026-11-16T09:30:00Z"}


def promised(e, wording=LOAN, *, expires="2027-05-31", **changes):
    """A promise as a letter sees it."""
    return SimpleNamespace(
        **(FIELDS | {"explanation": e, "wording": wording, "expires": expires} | changes)
    )


def letter(promise, folder, **options):
    letter_of_promise(promise, folder / "letter.html", **options)
    return Page(folder / "letter.html")


@pytest.fixture(scope="module")
def one(lender):
    """An answer with one change or more."""
    return next(e for e in lender.result if e.found)


# -- content ---------------------------------------------------------------------------------------


def test_letter_states_outcome_changes_and_last_day_in_plain_words(lender, tmp_path):
    for e in (e for e in lender.result if e.found):
        page = letter(promised(e), tmp_path)
        cut = {c.title for c in e.claims if c.is_cut}  # with all digits, see below
        assert {row[0]: row[1:] for row in page.cells[1:] if row[0] not in cut} == {
            c.title: [c.was, c.goal] for c in e.claims if not c.is_cut
        }
        parts = (
            "Dear applicant,",
            "The loan was not approved.",
            "What you can do",
            "by 31 May 2027",
        )
        places = [page.text.index(part) for part in (*parts, "If you disagree", "For specialists")]
        assert places == sorted(places)
        assert "Date 16 November 2026 Our reference 7" in page.text
        assert "the loan will be approved." in page.text
        plain = page.text[: places[-1]].lower()
        assert not [word for word in TECHNICAL if word in plain]
        for title, value in e.describe(LOAN).person:
            assert title in {row[0] for row in page.cells} or f"{title}: {value}" in page.text


def test_largest_change_is_first_row(lender, tmp_path):
    e = max((e for e in lender.result if e.found), key=lambda e: len(e.claims))
    assert len(e.claims) > 1
    sizes = {c.title: c.size for c in e.claims}
    shown = [sizes[row[0]] for row in letter(promised(e), tmp_path).cells[1:]]
    assert shown == sorted(shown, reverse=True)


def test_letter_without_last_day_names_none(one, tmp_path):
    page = letter(promised(one, expires=None), tmp_path)
    assert "If you apply again with" in page.text
    assert "2027" not in page.text


def test_reasons_are_own_text_of_lender(one, tmp_path):
    assert "[The reasons of the decision" in letter(promised(one), tmp_path).text
    page = letter(promised(one), tmp_path, reasons="Too much debt.\n<b>Too</b> little income.")
    assert "Too much debt." in page.text
    assert "<b>Too</b> little income." in page.text
    assert "[The reasons" not in page.text


@pytest.mark.parametrize("state", ["expired", "redeemed", "renewed", "withdrawn", "erased"])
def test_promise_that_is_not_open_gets_no_letter(one, tmp_path, state):
    with raises(LedgerError, name="promise", value=7):
        letter(promised(one, state=state), tmp_path)
    assert not (tmp_path / "letter.html").exists()


def test_letter_of_ledger_names_file_that_checker_accepts(tmp_path):
    """Digest and sentence of the letter are those of the certificate that is handed out."""
    lender = PipelineLender()
    with pp.Ledger(tmp_path / "promises.db") as ledger:
        ids = {e.index: f"person {e.index}" for e in lender.result}
        issued = ledger.issue(lender.result, ids, expires="2999-12-31", wording=LOAN_OF_LENDER)
        promise = ledger.promise(issued.new[0])
    page = letter(promise, tmp_path)
    save_proof(promise, tmp_path / "proof")
    content = (tmp_path / "proof" / "certificate.json").read_bytes()
    assert read_proof(content).digest in page.text
    verdict = read_proof(content).check(promise.terms.guarantee)
    assert verdict.accepted
    assert f"It prints: “{verdict.sentence}”" in page.text
    assert all(f"{row[0]}: " in verdict.sentence for row in page.cells[1:])
    assert f"About applicant {promise.person}" in page.text
    assert "by 31 December 2999" in page.text


LOAN_OF_LENDER = pp.Wording("the loan", {"refused": "refused", "granted": "granted"}, "applicant")


# -- nothing that is not proved --------------------------------------------------------------------


def claimed(page, world):
    """Write what a letter claims as a sentence, for the reader of sentences."""
    changes = []
    for title, was, goal in page.cells[1:]:
        if goal in ("yes", "no"):
            phrase = f"the answer {goal} to “{title}”"
        elif goal in ("cook", "clerk"):
            phrase = f"{title} “{goal}”"
        else:
            phrase = f"{title} {goal}" if goal.startswith("between ") else f"{title} of {goal}"
        changes.append(f"{phrase} (today: {was.replace('(', '').replace(')', '')})")
    outcome = re.search(r"the loan will be (.+?)\.", page.text)[1]
    proof = re.search(r"[0-9a-f]{64} ?\. (.+?) To check it, open", page.text)[1]
    rest = re.sub(r" The same is proved with .*?\.(?= [A-Z]|$)", "", proof)
    titles = "|".join(re.escape(f.title) for f in world.schema.features)
    facts = html.unescape("".join(re.findall(r"<li>.*?</li>", page.source)))
    ranges = re.findall(rf"<li>({titles}): .*? \(([^)]*) is fine\)</li>", facts)
    if ranges:
        rest += f" The same is proved with {', '.join(f'{t} {r}' for t, r in ranges)}. End"
    count = "one change" if len(changes) == 1 else f"{len(changes)} changes"
    return f"The loan would have been {outcome} with {count}: {', '.join(changes)}. {rest}"


def letters_of(seeds, folder, variants=3):
    """Letters about people of small worlds, with what was proved."""
    for seed in seeds:
        world = World(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(world.explained(9))
        for e, _ in found:
            for one in world.variants(e, variants):
                if one.found and one.certificate is not None:
                    yield letter(promised(one, world.wording), folder), one, world


@pytest.mark.parametrize(("worlds", "least"), thorough(((4, 12, 33), 1), ((*range(1, 24), 33), 5)))
def test_no_letter_claims_more_than_was_proved(tmp_path, worlds, least):
    count = {"letters": 0, "better": 0, "ranges": 0, "today only": 0}
    for page, e, world in letters_of(worlds, tmp_path):
        sentence = claimed(page, world)
        assert world.judge.faults(sentence, e) == [], (world, sentence)
        count["letters"] += 1
        count["ranges"] += " is fine)" in page.text
        if "do better than the table" in page.text:
            count["better"] += 1
            numbers = [c for c in e.claims if isinstance(c.feature, pp.Continuous)]
            assert all(c.goal.startswith(("at least", "at most")) for c in numbers)
        if "update of the program" in page.text:
            assert world.delta > 0
        else:
            count["today only"] += 1
            assert "program of today only" in page.text
    assert min(count.values()) >= least, count


PLANTED = {
    r"by at most 0\.0": "by at most 0.1",
    r'(class="enough">)(at least |at most |from )?(-?\$?)(\d)': r"\1\2\g<3>9\4",
    "will be granted": "will be turned down",
    r"\(([^()]+?) to ([^()]* is fine\))": r"(\g<1> to 9\g<2>",
}


@pytest.mark.slow
def test_letter_that_claims_more_is_caught(tmp_path):
    caught = dict.fromkeys(PLANTED, 0)
    for page, e, world in letters_of(range(1, 40), tmp_path, variants=1):
        for old, new in PLANTED.items() if world.delta > 0 else ():
            false = re.sub(old, new, page.source)
            if false != page.source:
                caught[old] += bool(world.judge.faults(claimed(Page(false), world), e))
    assert min(caught.values()) > 5, caught


def test_model_that_decides_today_is_not_claimed_if_it_refuses(one, tmp_path):
    assert "that decides today gives you this result" in letter(promised(one), tmp_path).text
    current = one.setting.current
    moved = pp.Network(
        [(w, b - (n == 2) * 50.0) for n, (w, b) in enumerate(pairs_of(current.network))]
    )
    setting = with_current(one.setting, network=moved, shifts=current.shifts)
    page = letter(promised(dataclasses.replace(one, setting=setting)), tmp_path)
    assert "that decides today gives you" not in page.text
    assert "The program that decides today is outside these limits" in page.text


def test_other_required_models_are_named(lender, tmp_path):
    people = lender.frame[lender.net.predict(lender.X) == 0].iloc[:6]
    explainer = pp.Proplace(
        lender.net, 0.005, schema=lender.result[0].setting.schema,
        required_models=[lender.retrained[0]],
    ).fit(lender.frame)  # fmt: skip
    e = next(e for e in explainer.explain(people) if e.found)
    assert "proved for the other programs" in letter(promised(e), tmp_path).text


def test_statement_that_checkers_cannot_redo_is_named(one, tmp_path):
    page = letter(promised(dataclasses.replace(one, guaranteed_ranges={})), tmp_path)
    assert "It prints: “" in page.text
    changed = dataclasses.replace(one, counterfactual=one.original)
    assert (
        "It reports that only encoded numbers were checked"
        in letter(promised(changed), tmp_path).text
    )


# -- names that would act --------------------------------------------------------------------------

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}\u202e"


@pytest.mark.parametrize("own", [False, True])
def test_names_in_every_place_are_text(own, tmp_path):
    labels = [f"{EVIL}{n}" for n in range(3)]
    features = [
        pp.Continuous("a", 0, 1, step=0.25, unit=EVIL, label=f"a {EVIL}"),
        pp.Categorical("b", labels, label=f"b {EVIL}"),
        pp.Binary("c", [f"no {EVIL}", f"yes {EVIL}"], label=f"c {EVIL}", immutable=True),
    ]
    schema = pp.Schema(features)
    net = pp.Network([([[1.0, 0.0, 0.3, 1.0, 0.1]], [-1.2])])
    rows = pd.DataFrame({"a": [0.0, 1.0, 1.0], "b": labels, "c": [f"no {EVIL}"] * 3})
    wording = pp.Wording(f"subject {EVIL}", ["", f"outcome {EVIL}"], f"person {EVIL}")
    e = pp.Proplace(net, 0.01, schema=schema, k=3).fit(rows).explain(rows[:1])[0]
    assert e.found
    template = None
    if own:
        template = tmp_path / "own.j2"
        template.write_text(
            '{% extends "letter.html.j2" %}{% block greeting %}{{ person }}{{ changes }}{% endblock %}',
            encoding="utf-8",
        )
    promise = promised(e, wording, person=f"id {EVIL}")
    page = letter(promise, tmp_path, reasons=f"reason {EVIL}", template=template)
    assert {"script", "img", "iframe", "a", "form"}.isdisjoint(dict(page.elements))
    names = {name for _, attrs in page.elements for name in attrs}
    assert not any(name.startswith("on") or name == "src" for name in names)
    assert [attrs["href"] for _, attrs in page.elements if "href" in attrs] == ["data:,"]
    assert "\u202e" not in page.source
    assert "49" not in page.source.replace("{{ 7*7 }}", "")[:200]
    for part in ("person", "subject", "outcome", "id", "reason", "b"):
        assert f"{part} <script>alert('x')</script>".lower() in page.text.lower(), part


def test_texts_of_any_length_are_cut(one, tmp_path):
    long = "x" * 100_000
    promise = promised(one, pp.Wording(long, ["", long], long), person=long)
    assert len(letter(promise, tmp_path).source) < 20_000


# -- a template of one's own -----------------------------------------------------------------------

OWN = """{% extends "letter.html.j2" %}
{% block sender %}Bank of Example, 1 Main Street{% endblock %}
{% block objection %}<p>Call 555-0100.</p>{% endblock %}
"""


def own(folder, text):
    path = folder / "letter.html.j2"  # the name of the default template, too
    path.write_text(text, encoding="utf-8")
    return path


def test_template_fills_blocks_of_default(one, tmp_path):
    page = letter(promised(one), tmp_path, template=own(tmp_path, OWN), reasons="Debt.")
    assert page.text.strip().startswith("Letter to applicant ann, promise 7 Bank of Example")
    assert "Call 555-0100." in page.text
    assert "[" not in page.text.split("For specialists")[0]
    assert "The loan was not approved." in page.text


def test_template_may_replace_whole_letter(one, tmp_path):
    text = "<p>{{ person }}: {% for c in changes %}{{ c.title }} {{ c.enough }}, {% endfor %}</p>"
    page = letter(promised(one), tmp_path, template=own(tmp_path, text))
    assert page.text.strip() == "ann: " + ", ".join(
        f"{c.title} {c.goal}" for c in sorted(one.claims, key=lambda c: -c.size)
    ) + ","  # fmt: skip


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("{{ resons }}", "did you mean 'reasons'?"),
        ("{{ changes[0].titel }}", "changes: title, today, enough"),
        ("{% if changes %}", "Correct the tag"),
        ("{% nonsense %}", "Correct the tag"),
        ("{{ person.__class__.__mro__ }}", "may not reach inside"),
        ("{{ person.foo.bar }}", "foo"),
        ("{{ 1 / 0 }}", "Correct the expression"),
        ("{{ number + person }}", "Correct the expression"),
    ],
)
def test_template_error_names_file_line_and_change(one, tmp_path, line, advice):
    path = own(tmp_path, f"<p>first</p>\n<p>second</p>\n{line}\n")
    with raises(OptionError, name="template") as caught:
        letter(promised(one), tmp_path, template=path)
    text = str(caught.value)
    assert text.startswith(f"{path}, line ")
    assert re.search(r", line [34]: ", text), text
    assert advice in text
    assert not (tmp_path / "letter.html").exists()


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "{% block sendr %}Bank{% endblock %}",
            "line 2: .* no block 'sendr' .did you mean 'sender'",
        ),
        ("Yours, the bank", "line 2: text outside of the blocks"),
        ("{{ person }}", "line 2: text outside of the blocks"),
    ],
)
def test_template_part_that_letter_would_lack_is_rejected(one, tmp_path, text, advice):
    path = own(tmp_path, f'{{% extends "letter.html.j2" %}}\n{text}\n')
    with raises(OptionError, name="template", match=advice):
        letter(promised(one), tmp_path, template=path)
    inside = "{% block sender %}Bank{% block own %} of Example{% endblock %}{% endblock %}"
    path.write_text(f'{{% extends "letter.html.j2" %}}\n{{% set x = 1 %}}{{# {text} #}}\n{inside}')
    assert "Bank of Example" in letter(promised(one), tmp_path, template=path).text


def test_empty_template_is_rejected(one, tmp_path):
    with raises(OptionError, name="template", match="is empty"):
        letter(promised(one), tmp_path, template=own(tmp_path, " \n"))


@pytest.mark.parametrize("name", ["other.html", "/etc/passwd", "letter.html"])
def test_template_extends_default_alone(one, tmp_path, name):
    (tmp_path / "other.html").write_text("secret")
    path = own(tmp_path, f'{{% extends "{name}" %}}')
    with raises(OptionError, name="template", match="letter.html.j2"):
        letter(promised(one), tmp_path, template=path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b" " * 1_000_001])
def test_template_that_cannot_be_read_is_rejected(one, tmp_path, content):
    path = tmp_path / "own.j2"
    if content is not None:
        path.write_bytes(content)
    with raises(OptionError, name="template"):
        letter(promised(one), tmp_path, template=path)


def test_template_of_relative_path_extends_default(one, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = own(tmp_path, OWN).relative_to(tmp_path)
    assert "Call 555-0100." in letter(promised(one), tmp_path, template=path).text


def test_values_with_more_digits_than_are_written_stand_in_full(tmp_path):
    schema = pp.Schema([pp.Continuous("share", 0, 1), pp.Continuous("debt", 0, 1)])
    net = pp.Network([([[2.0, -0.3]], [-1.1])])
    rows = pd.DataFrame({"share": [0.1, 0.77123456789, 0.9], "debt": [0.2, 0.2, 0.1]})
    found = pp.Proplace(net, 0.001, schema=schema, k=1).fit(rows).explain(rows[:1])
    e = dataclasses.replace(found[0], guaranteed_ranges={})
    assert any(c.is_cut for c in e.claims)
    cells = {row[0]: row[2] for row in letter(promised(e), tmp_path).cells[1:]}
    for c in e.claims:
        assert cells[c.title] == repr(float(e.counterfactual[c.name]))


def test_template_of_docs_fills_its_blocks(one, tmp_path):
    text = (DOCS / "promises.md").read_text(encoding="utf-8")
    example = re.search(r"```jinja\n(.*?)```", text, re.S)[1]
    page = letter(promised(one), tmp_path, template=own(tmp_path, example))
    assert "Your application of 16 November 2026 for the loan was not approved." in page.text
    assert "Bank of Example" in page.text


def test_docs_list_all_blocks_and_fields(one):
    text = (
        (DOCS / "promises.md").read_text(encoding="utf-8").split("## Letters")[1].split("\n## ")[0]
    )
    template = Path(proplace.report.letter.__file__).parent / "templates" / "letter.html.j2"
    blocks = re.findall(r"block (\w+)", template.read_text(encoding="utf-8"))
    named = set(re.findall(r"`(\w+)`", text))
    assert {*blocks, *letter_fields(promised(one))} <= named
