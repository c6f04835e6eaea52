"""Run notebooks without Jupyter and save their outputs: ``python tests/notebooks.py FILE ...``."""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path


def run(notebook):
    """Run the code cells in order, in one namespace and in the current folder.

    Return the outputs of each code cell as Jupyter stores them. An error of a cell is raised.
    """
    names = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_outputs("".join(cell["source"]), names, n) for n, cell in enumerate(cells, start=1)]


def _outputs(source, names, number):
    """Run one cell. Its printed text and the value of a last expression are its outputs."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    text, outputs = printed.getvalue(), []
    if text:
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(text)})
    if value is not None:
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "data": _shown(value),
                "metadata": {},
            }
        )
    return outputs


def _shown(value):
    """Return a value as text, and as a picture or HTML if it has one."""
    data = {"text/plain": _lines(repr(value))}
    if hasattr(value, "savefig"):
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=90, metadata={"Software": None})
        data["image/png"] = base64.b64encode(picture.getvalue()).decode()
    elif hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    return data


def _lines(text):
    return text.splitlines(keepends=True)


def save(path):
    """Run a notebook in an empty folder and store its outputs in its file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            found = run(notebook)
        finally:
            os.chdir(here)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, found, strict=True), start=1):
        cell |= {"execution_count": number, "outputs": outputs}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        save(Path(name).resolve())
