"""Every import goes down: from a room to rooms below it, and from a module to none that needs it."""

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
    "explain": [
        "core",
        "schema",
        "solvers",
        "certification",
        "loaders",
        "tables",
        "region",
        "search",
    ],
}
BELOW["promises"] = [*BELOW["explain"], "explain"]
BELOW["apps"] = [*BELOW["promises"], "promises"]
"""The rooms from the ground upwards, each with those that it may import."""
SOLVERS = {"highspy", "gurobipy"}
BY_NAME = ("import_module", "require")  # functions that import what their first argument names


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
def imports(module, *, types=True):
    """Every import of a module, lazy ones and calls by name too; without ``types``, at run time."""
    tree = modules()[module]
    hidden = set() if types else for_types_alone(tree)
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


def room(module):
    return module.split(".")[1] if "." in module else ""


def ours(names):
    return {name for name in names if name.split(".")[0] == "proplace" and name != "proplace"}


def test_every_module_is_in_a_room():
    assert {room(module) for module in modules()} - {"", "__main__"} == set(BELOW)


def test_no_room_imports_one_above_it():
    """Types count: what a signature names must be known on that floor."""
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        if room(module) in BELOW
        for name in sorted(ours(imports(module)))
        if room(name) not in (room(module), *BELOW[room(module)])
    ]
    assert not wrong, "\n".join(wrong)


def test_one_room_alone_imports_a_solver():
    users = {
        room(module)
        for module in modules()
        for name in imports(module)
        if name.split(".")[0] in SOLVERS
    }
    assert users == {"solvers"}


def test_no_module_needs_one_that_needs_it():
    """Cycles at run time, lazy imports and all."""
    graph = {name: ours(imports(name, types=False)) & modules().keys() for name in modules()}
    done = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, [*path, module])
            done.add(module)

    for module in graph:
        visit(module, [])


def test_private_names_stay_in_their_room():
    wrong = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and ours({node.module or ""}):
                parts = [*node.module.split("."), *(alias.name for alias in node.names)]
                private = [part for part in parts if part.startswith("_") and part[1] != "_"]
                if private and room(node.module) != room(module):
                    wrong.append(f"{module} imports {', '.join(private)} of {node.module}")
    assert not wrong, "\n".join(wrong)


def test_every_room_says_what_it_is_for_and_what_it_may_import():
    order = list(BELOW)
    for n, (name, below) in enumerate(BELOW.items()):
        assert all(order.index(other) < n for other in below), name
        text = ast.get_docstring(modules()[f"proplace.{name}"])
        assert len(text.splitlines()) > 1, name
        said = re.findall(r"``(\w+)``", text.splitlines()[-1])
        if "every room" in text.splitlines()[-1]:
            said = [other for other in BELOW if other not in (name, *said)]
        assert sorted(said) == sorted(below), name
