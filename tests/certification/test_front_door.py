"""Other packages use what certification exports, and nothing else of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import proplace
from proplace import certification

pytestmark = pytest.mark.source

PACKAGE = Path(proplace.__file__).parent
DOOR = "proplace.certification"


def imported(tree):
    """Modules and names that a file imports, lazy imports and those for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def past_the_door(source):
    """Imports from inside certification. The checker stands alone, and anyone may use it."""
    allowed = {*certification.__all__, "checker"}
    found = []
    for module, name in imported(ast.parse(source)):
        if module == DOOR and name is not None and name not in allowed:
            found.append(name)
        if (module or "").startswith(DOOR + ".") and module != DOOR + ".checker":
            found.append(module)
    return found


def test_other_packages_import_public_names_only():
    inside = PACKAGE / "certification"
    others = [path for path in PACKAGE.rglob("*.py") if inside not in path.parents]
    assert len(others) > 50
    for path in others:
        assert past_the_door(path.read_text(encoding="utf-8")) == [], path


def test_import_of_private_module_is_detected():
    for line in (
        "from proplace.certification.bounds import Abstraction",
        "import proplace.certification.engine",
        "from proplace.certification import engine",
        "def f():\n    from proplace.certification.lp_bnb import minimise",
    ):
        assert past_the_door(line)
    assert not past_the_door("from proplace.certification import CertificationResult, checker")


def test_exported_names_exist_with_docstring():
    for name in certification.__all__:
        thing = getattr(certification, name)
        assert thing.__doc__ or name == "Margin", name
