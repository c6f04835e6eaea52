"""The site of these pages: ``make docs`` renders it into ``build/docs``."""

from __future__ import annotations

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

# The pages are written for readers of the repository, too: headings are linked to as there.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

autodoc_typehints = "none"  # the docstrings say what the parameters are
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False


def setup(app: Sphinx) -> None:
    """Let formulas be MathML, which browsers draw themselves: the site needs no network."""

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
