"""Lower packages never import higher ones, and no module needs one that needs it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import proplace

ROOT = Path(proplace.__file__).parent
BELOW = {
    "core": [],
    "schema": ["core"],
    "solvers": ["core"],
    "certification": ["core", "solvers"],
    "loaders": ["core", "schema", "certification"],
    "tables": ["core", "schema", "loaders"],
    "region": ["core", "schema", "certification"],
    "search": ["core", "schema", "solvers", "certification", "region"],
}
"""The packages from the lowest upwards, each with those that it may import."""
for name in (
    *("explain", "baselines", "calibrate", "retrain", "ledger", "project"),
    *("verify", "batch", "report", "experiment", "demo", "serve", "cli"),
):
    BELOW[name] = list(BELOW)
UPWARDS = {
    ("core.network", "loaders"),  # Network.load
    ("core.shifts", "loaders"),  # Shifts.load, and models in place of networks
    ("core.shifts", "calibrate"),  # Shifts.learn
    ("explain.results", "report"),  # plot, report
    ("explain.summary", "report"),  # plot
    ("ledger.audit", "report"),  # Audit.report
    ("ledger.issue", "batch"),  # Ledger.issue of a results folder
}
"""Methods that import a higher package when they are called."""
SOLVERS = {"highspy", "gurobipy"}


@cache
def modules():
    """Every module of the package with its syntax tree."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def for_types_alone(tree):
    """Nodes of a tree that only a type checker looks at."""
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return {id(inner) for block in blocks for part in block.body for inner in ast.walk(part)}


@cache
def imports(module, *, types=True, lazy=True):
    """Every import of a module; without ``types`` at run time, without ``lazy`` on import."""
    tree = modules()[module]
    hidden = set() if types else for_types_alone(tree)
    if not lazy:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            if isinstance(node, functions):
                hidden |= {id(inner) for part in node.body for inner in ast.walk(part)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "require")
        ):
            found |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
        elif isinstance(node, ast.Constant) and node.value in modules():
            found.add(node.value)
    return found


def package(module):
    return module.split(".")[1] if "." in module else ""


def ours(names):
    return {name for name in names if name.split(".")[0] == "proplace" and name != "proplace"}


def upwards(module):
    """Packages above a module that it imports, at any time."""
    allowed = (package(module), *BELOW[package(module)])
    return {package(name) for name in ours(imports(module, types=False))} - {*allowed}


def test_every_package_is_in_order():
    names = {package(module) for module in modules()} - {"", "__main__"}
    assert names == set(BELOW)


def test_lower_package_imports_higher_one_in_listed_methods_only():
    members = [module for module in modules() if package(module) in BELOW]
    found = {
        (module.removeprefix("proplace."), name) for module in members for name in upwards(module)
    }
    assert found == UPWARDS
    on_import = [
        f"{module} imports {name}"
        for module in members
        for name in ours(imports(module, types=False, lazy=False))
        if package(name) not in (package(module), *BELOW[package(module)])
    ]
    assert not on_import, "\n".join(on_import)


def test_types_of_signatures_come_from_lower_packages():
    wrong = [
        f"{module} names {name}"
        for module in modules()
        if package(module) in BELOW
        for name in sorted(ours(imports(module)) - ours(imports(module, types=False)))
        if package(name) not in (package(module), *BELOW[package(module)])
    ]
    assert not wrong, "\n".join(wrong)


def test_only_solvers_imports_solver():
    users = {
        package(module)
        for module in modules()
        for name in imports(module)
        if name.split(".")[0] in SOLVERS
    }
    assert users == {"solvers"}


def test_modules_have_no_import_cycle():
    """Cycles at import time."""
    graph = {
        name: ours(imports(name, types=False, lazy=False)) & modules().keys() for name in modules()
    }
    done = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, [*path, module])
            done.add(module)

    for module in graph:
        visit(module, [])


def test_private_names_stay_in_their_package():
    wrong = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and ours({node.module or ""}):
                parts = [*node.module.split("."), *(alias.name for alias in node.names)]
                private = [part for part in parts if part.startswith("_") and part[1] != "_"]
                if private and package(node.module) != package(module):
                    wrong.append(f"{module} imports {', '.join(private)} of {node.module}")
    assert not wrong, "\n".join(wrong)


def test_picture_shows_each_package_above_those_it_imports():
    picture = Path(__file__).parents[1] / "docs/img/architecture.svg"
    heights = {
        name: float(y)
        for y, line in re.findall(r'<text x="[\d.]+" y="([\d.]+)"(.*?)</text>', picture.read_text())
        for name in re.findall(r'<tspan font-weight="600">(\w+)</tspan>', line)
    }
    assert set(heights) == set(BELOW)
    assert not [
        (name, lower) for name in BELOW for lower in BELOW[name] if heights[lower] < heights[name]
    ]
