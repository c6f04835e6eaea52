"""One workbench of a small lender for each file of tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    from served import Served

    found = Served(tmp_path_factory.mktemp("serve"))
    found.bench.start()
    yield found
    found.bench.close()


@pytest.fixture
def api(served):
    return served.program()


@pytest.fixture
def page(served):
    return served.browser()


@pytest.fixture
def book(served):
    return served.bench.book
