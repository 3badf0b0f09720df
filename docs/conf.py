"""Sphinx configuration: ``make docs``."""

import detops

project = "detops"
copyright = "the detops authors"
release = version = detops.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
