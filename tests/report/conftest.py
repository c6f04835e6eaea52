"""The small lender, made once."""

import pytest

from small_lender import Lender


@pytest.fixture(scope="package")
def lender():
    return Lender()
