"""The site of these pages: ``make docs`` renders it into ``build/docs``."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from latex2mathml.converter import convert

import proplace

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "proplace"
author = "the proplace contributors"
version = release = proplace.__version__
html_title = f"proplace {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["results"]
html_theme = "furo"
html_math_renderer = "mathml"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
smartquotes_action = "qe"  # "--out" is an option, not a dash

# The pages are written for readers of the repository, too: headings are linked to as there.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

autodoc_typehints = "none"  # the docstrings say what the parameters are
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False


HERE = Path(__file__).parent


def write_notebooks(app: Sphinx) -> None:
    """Write each notebook of ``examples/`` with its saved outputs as a page in ``docs/examples``."""
    pages = HERE / "examples"
    pages.mkdir(exist_ok=True)
    for path in (HERE.parent / "examples").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        parts = [part for n, cell in enumerate(cells) for part in cell_parts(cell, pages, path, n)]
        (pages / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def cell_parts(cell: Any, pages: Path, path: Path, number: int) -> list[str]:
    """Return a cell as Markdown: its source, and the richest form of each output."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", [])})
        if "image/png" in data:
            picture = pages / f"{path.stem}-{number}.png"
            picture.write_bytes(base64.b64decode(data["image/png"]))
            parts.append(f"![Output]({picture.name})")
        elif "text/html" in data:
            table = "".join(line for line in data["text/html"] if line.strip())
            table = table.replace('border="1" class="dataframe"', 'class="docutils"')
            parts.append(
                f'```{{raw}} html\n<div class="table-wrapper docutils container">{table}</div>\n```'
            )
        else:
            parts.append("```text\n" + "".join(data["text/plain"]).rstrip() + "\n```")
    return parts


def setup(app: Sphinx) -> None:
    """Draw formulas as MathML, so that the site needs no network, and add the notebooks."""
    app.connect("builder-inited", write_notebooks)

    def formula(display: str) -> Any:
        def visit(translator: Any, node: Any) -> None:
            source = node.astext().replace(r"\operatorname", r"\mathrm")
            translator.body.append(convert(source, display=display))

        return visit

    def nothing(translator: Any, node: Any) -> None:
        pass

    def block(translator: Any, node: Any) -> None:
        translator.body.append('<div class="formula">')
        formula("block")(translator, node)
        translator.body.append("</div>")
        raise nodes.SkipNode

    def inline(translator: Any, node: Any) -> None:
        formula("inline")(translator, node)
        raise nodes.SkipNode

    app.add_html_math_renderer("mathml", (inline, nothing), (block, nothing))
