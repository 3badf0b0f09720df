"""Sphinx configuration: ``make docs``."""

import sys
from pathlib import Path

import detops

sys.path.insert(0, str(Path(__file__).parent))  # mathml

project = "detops"
copyright = "the detops authors"
release = version = detops.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "mathml",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links to headings are checked
html_theme = "furo"
html_math_renderer = "mathml"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "download_all_examples": False,
    "write_computation_times": False,
    "show_memory": False,
    "abort_on_example_error": True,
}
