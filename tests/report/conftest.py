"""The small lender and its report, made once."""

import pytest

from support.lenders import LOAN, Lender

TITLE = "Loans <b>& more</b>"


@pytest.fixture(scope="package")
def lender():
    return Lender()


@pytest.fixture(scope="package")
def folder(lender, tmp_path_factory):
    """A folder with a report that has every part, and its proofs."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp("report")
    lender.result.report(
        folder / "report.html",
        LOAN,
        title=TITLE,
        retrained=lender.retrained,
        proofs=folder / "the proofs",
    )
    return folder
