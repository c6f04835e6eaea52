"""The site of these pages: ``make docs`` renders it into ``build/docs``."""

from __future__ import annotations

import proplace

project = "proplace"
author = "the proplace contributors"
version = release = proplace.__version__
html_title = f"proplace {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["results"]
html_theme = "furo"
html_copy_source = False

# The pages are written for readers of the repository, too: headings are linked to as there.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]

autodoc_typehints = "none"  # the docstrings say what the parameters are
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
