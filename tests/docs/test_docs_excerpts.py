"""Code excerpts on the pages, compared with their sources.

A comment in front of an excerpt names its source. A line of three dots stands for omitted lines.
"""

import re
import textwrap

import pytest
from paths import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
EXCERPT = re.compile(r"<!-- from (\S+) -->\n```\S+\n(.*?)\n```", re.S)
CODE = re.compile(r"^```(?:c\+\+|python)\n", re.M)
# Code without a source is a file that test_docs_first_extension.py builds from the page.
CODE_WITH_SOURCE = re.compile(r"^<!-- (?:from|file) \S+ -->\n```(?:c\+\+|python)\n", re.M)
EXCERPTS = [
    pytest.param(source, code, id=f"{page.stem}-{k}-{source}")
    for page in PAGES
    for k, (source, code) in enumerate(EXCERPT.findall(page.read_text()))
]

pytestmark = pytest.mark.skipif(not PAGES, reason="needs the source tree")


def find_excerpt(part, lines, start):
    """Returns the line at which the source continues with `part`, ignoring indentation."""
    expected = textwrap.dedent(part)
    length = len(part.split("\n"))
    for line in range(start, len(lines) - length + 1):
        if textwrap.dedent("\n".join(lines[line : line + length])) == expected:
            return line
    return None


@pytest.mark.parametrize(("source", "code"), EXCERPTS)
def test_excerpt_equals_its_source(source, code):
    lines = (ROOT / source).read_text().split("\n")
    line = 0
    for part in re.split(r"\n\s*\.\.\.\n", code):
        line = find_excerpt(part, lines, line)
        assert line is not None, f"{source} does not go on with\n{part}"
        line += len(part.split("\n"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_code_without_directives(page):
    """Code hosts also render the pages, and they do not support directives."""
    assert "{literalinclude}" not in page.read_text()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorial").glob("*.md")), ids=str)
def test_all_tutorial_code_names_its_source(page):
    text = page.read_text()
    assert len(CODE.findall(text)) == len(CODE_WITH_SOURCE.findall(text))
