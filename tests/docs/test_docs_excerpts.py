"""The code that the pages show is the code that runs.

A page names the source of an excerpt in a comment in front of it; a line of three dots stands for
what is left out.
"""

import re
import textwrap

import pytest
from paths import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
EXCERPT = re.compile(r"<!-- from (\S+) -->\n```\S+\n(.*?)\n```", re.S)
CODE = re.compile(r"^```(?:c\+\+|python)\n", re.M)
# What stands in no source is a file that test_docs_first_extension.py builds from the page.
NAMED = re.compile(r"^<!-- (?:from|file) \S+ -->\n```(?:c\+\+|python)\n", re.M)
EXCERPTS = [
    pytest.param(source, code, id=f"{page.stem}-{k}-{source}")
    for page in PAGES
    for k, (source, code) in enumerate(EXCERPT.findall(page.read_text()))
]

pytestmark = pytest.mark.skipif(not PAGES, reason="needs the source tree")


def place_of(part, lines, begin):
    """The line of a source at which it goes on as `part` does, whatever the indentation."""
    wanted = textwrap.dedent(part)
    length = len(part.split("\n"))
    for line in range(begin, len(lines) - length + 1):
        if textwrap.dedent("\n".join(lines[line : line + length])) == wanted:
            return line
    return None


@pytest.mark.parametrize(("source", "code"), EXCERPTS)
def test_an_excerpt_is_what_its_source_says(source, code):
    lines = (ROOT / source).read_text().split("\n")
    line = 0
    for part in re.split(r"\n\s*\.\.\.\n", code):
        line = place_of(part, lines, line)
        assert line is not None, f"{source} does not go on with\n{part}"
        line += len(part.split("\n"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_directive_shows_code(page):
    """Code hosts render the pages, too, and know no directives."""
    assert "{literalinclude}" not in page.read_text()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorial").glob("*.md")), ids=str)
def test_all_code_of_the_tutorial_names_its_source(page):
    text = page.read_text()
    assert len(CODE.findall(text)) == len(NAMED.findall(text))
