"""Formulas as MathML, which browsers show without a script or a network."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(translator: Any, node: nodes.Element) -> None:
    """Renders an inline formula."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.Element) -> None:
    """Renders a displayed formula, which scrolls on narrow screens."""
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div style="overflow-x: auto">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Makes ``mathml`` a renderer that ``html_math_renderer`` can name."""
    renderers = {"inline_renderers": (inline, None), "block_renderers": (block, None)}
    app.add_html_math_renderer("mathml", **renderers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
