"""`proplace explain --letters`: one page for each person; wrong options are rejected before any work."""

from __future__ import annotations

import re

import pytest

import proplace as pp
from commands import good, run
from proplace.core.errors import OptionError, OutputError
from support.errors import failed

pytest.importorskip("jinja2")

DAY = "--valid-until"
WORDS = ["--subject", "the loan", "--outcome", "approved", DAY, "2999-12-31"]


@pytest.fixture(scope="module")
def folder(loans, tmp_path_factory):
    """Results and letters of a few people, one of whom has a missing cell."""
    folder = tmp_path_factory.mktemp("letters")
    people = loans.people.head(4).assign(name=["<b>Ann", "Bob", "Cy", "../Dee"])
    people["income"] = people["income"].astype(object)
    people.loc[2, "income"] = None
    people.to_csv(folder / "people.csv", index=False)
    done = good(
        "explain",
        *loans.options(input=folder / "people.csv", out=folder / "out", letters=folder / "letters"),
        *WORDS,
        "--certificates",
        "--id",
        "name",
        "--count",
        "2",
    )
    assert "row 2" in done.stderr
    return folder


def test_each_person_gets_a_letter(folder):
    names = sorted(path.name for path in (folder / "letters").iterdir())
    assert names == [f"row-{n:012d}.html" for n in (0, 1, 3)]
    assert not (folder / "letters.part").exists()
    result = pp.read_results(folder / "out")
    for n, name in zip((0, 1, 3), ("&lt;b&gt;Ann", "Bob", "../Dee"), strict=True):
        text = (folder / "letters" / f"row-{n:012d}.html").read_text(encoding="utf-8")
        assert f"Person {n} (name {name})" in text
        assert "Valid until</dt><dd>31 December 2999" in text
        found = [e for e in result if e.index == n and e.found]
        assert found
        assert "approved" in text
        for e in found:  # the letter names the certificates that lie in the folder
            assert e.certificate.digest in text
            assert re.search(
                rf"<td class=\"to(?: long)?\">{re.escape(e.claims[0].goal)}</td>", text
            )


def test_letters_of_one_person(loans, tmp_path):
    options = loans.options(row=1, out=tmp_path / "out", letters=tmp_path / "to" / "one")
    good("explain", *options, "--certificates")
    (path,) = (tmp_path / "to" / "one").iterdir()
    (proof,) = (tmp_path / "out" / "certificates").iterdir()
    assert path.stem == proof.stem.rpartition("-")[0]
    text = path.read_text(encoding="utf-8")
    assert pp.Certificate.load(proof).digest in text


@pytest.mark.parametrize(
    ("words", "error", "name"),
    [
        (["--letters", "{new}"], OptionError, "--certificates"),
        (["--letters", "{there}", "--certificates"], OutputError, "there"),
        (["--letters", "{new}", "--certificates", "--valid-until", "soon"], OptionError, DAY),
        (["--letters", "{new}", "--certificates", "--valid-until", "1999-01-01"], OptionError, DAY),
        (["--subject", "it"], OptionError, "--subject"),
        (["--outcome", "it"], OptionError, "--outcome"),
        (["--valid-until", "2999-12-31"], OptionError, "--valid-until"),
    ],
)
def test_wrong_options_are_rejected_before_any_work(loans, tmp_path, words, error, name):
    (tmp_path / "there").mkdir()
    places = {"new": tmp_path / "new", "there": tmp_path / "there"}
    done = run(
        "explain", *loans.options(out=tmp_path / "out"), *(w.format(**places) for w in words)
    )
    failed(done, error, name=name)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "new").exists()


def test_a_run_that_was_killed_leaves_no_old_letter(folder, tmp_path):
    from proplace.cli.letters import of_folder, write

    part = tmp_path / "letters.part"
    part.mkdir()
    (part / "row-000000000099.html").write_text("of another run", encoding="utf-8")
    wording = pp.Wording("the loan", {1: "approved"})
    write(of_folder(folder / "out"), tmp_path / "letters", wording, "2999-12-31")
    names = [path.name for path in (tmp_path / "letters").iterdir()]
    assert "row-000000000099.html" not in names
    for path in (tmp_path / "letters").iterdir():
        assert path.read_text(encoding="utf-8") == (folder / "letters" / path.name).read_text(
            encoding="utf-8"
        )
    assert len(names) == 3
