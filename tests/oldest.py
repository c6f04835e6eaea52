"""The oldest allowed version of every dependency: install them, and run tests/smoke.py with them.

Usage: python tests/oldest.py [FOLDER]. Without FOLDER the environment is removed at the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("docs", "test", "lint")  # extras that no user of the package installs
_BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?>=(?P<version>[0-9][0-9.]*)")


def constraints(project):
    """Pin every dependency, of the package and of its extras, to its lower bound."""
    extras = project["optional-dependencies"]
    users = [name for name in extras if name not in TOOLS]
    found = {}
    for requirement in [*project["dependencies"], *(r for name in users for r in extras[name])]:
        if requirement.startswith(f"{project['name']}["):
            continue
        bound = _BOUND.fullmatch(requirement)
        if bound is None:
            sys.exit(f"pyproject.toml: {requirement!r} has no lower bound of the form name>=1.2")
        found[bound["name"]] = bound["version"]
    return users, "".join(f"{name}=={version}\n" for name, version in found.items())


def main(folder):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    users, pins = constraints(project)
    (folder / "constraints.txt").write_text(pins)
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    target = f"{ROOT}[{','.join(users)}]"
    pip = [python, "-m", "pip", "--quiet", "install", "--constraint", folder / "constraints.txt"]
    subprocess.run([*pip, target], check=True)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, ROOT / "tests" / "smoke.py"], cwd=work, env=clean, check=False)
    print(f"oldest versions:\n{pins}")
    sys.exit("the oldest versions fail: raise their bounds" if done.returncode else 0)


if __name__ == "__main__":
    if sys.argv[1:]:
        given = Path(sys.argv[1]).resolve()
        given.mkdir(parents=True, exist_ok=True)
        main(given)
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
