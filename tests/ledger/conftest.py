"""Places for ledgers: a SQLite file, and a database of a PostgreSQL server that is started once."""

import pytest

import postgresql
import proplace as pp
from support.lenders import Lender, PipelineLender, answers


def pytest_collection_modifyitems(items):
    """Leave the PostgreSQL cases of these files to the slow tests."""
    for item in items:
        if item.path.name in ("test_tampering.py", "test_erasure.py"):
            database = getattr(item, "callspec", None) and item.callspec.params.get("place")
            if database == "postgresql":
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def server():
    with postgresql.running() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Locations for a new ledger, in each of the databases."""
    if request.param == "sqlite":
        return str(tmp_path / "promises.db")
    return request.getfixturevalue("server").new()


@pytest.fixture
def ledger(tmp_path):
    """A new ledger in a file: for rules that are none of the database's."""
    with pp.Ledger(tmp_path / "promises.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def every_kind():
    """A network behind features of every kind, and answers of a few people."""
    return Lender()


@pytest.fixture(scope="session")
def lender():
    """A pipeline, and counterfactuals with tolerances."""
    return PipelineLender()


@pytest.fixture(scope="session")
def result():
    """Certified answers of three people."""
    return answers(3)


@pytest.fixture(scope="session")
def boxed():
    """Answers of two people that may be missed a little."""
    return answers(2, 5, tolerance={"income": 2, "debt": 1})
