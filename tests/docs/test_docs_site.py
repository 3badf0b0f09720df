"""The documentation site: links, API pages, figures and formulas without scripts."""

import importlib.util
import re
import subprocess
import sys

import pytest
import yaml
from paths import ROOT

import detops
from detops.marks import fill, marks

DOCS = ROOT / "docs"
YAML_FILES = sorted((ROOT / ".github").rglob("*.yml"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
pytestmark = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="needs the source tree")


def load_module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page):
    """Returns the anchors that code hosts and the build generate for headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_existing_targets(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {path}"
        if anchor:
            assert anchor in anchors(target), f"{page}: {path}#{anchor}"


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_forms_and_workflows_are_valid_yaml(file):
    assert "name" in yaml.safe_load(file.read_text()) or file.stem == "config"


def test_table_is_filled_in_between_its_marks():
    start, end = marks("ops")
    page = f"before\n{start}\nold\n{end}\nafter\n"
    assert fill(page, "ops", "new\n") == page.replace("old", "new")


@pytest.mark.parametrize("order", [[], [0], [1], [1, 0]])
def test_page_without_both_marks_raises(order):
    page = "\n".join(["before", *(marks("ops")[i] for i in order), "after"])
    with pytest.raises(ValueError, match="expected <!-- ops: begin --> and .* <!-- ops: end -->"):
        fill(page, "ops", "new\n")


def test_every_public_name_is_on_an_api_page():
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    listed = re.findall(r"^\.\. auto(?:function|class):: (?:detops\.)?(\w+)$", text, re.M)
    public = set(detops.__all__) - {"__version__", "cmake_prefix_path"}
    assert public <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.slow
def test_pages_show_exactly_the_drawn_figures(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = {path.name for path in load_module(DOCS / "figures.py").draw(tmp_path)}
    pages = {page: page.read_text() for page in (DOCS / "api").glob("*.md")}
    shown = re.findall(r"figure\} figures/(\S+)", "\n".join(pages.values()))
    assert sorted(shown) == sorted(drawn)
    assert all((DOCS / "api" / "figures" / name).stat().st_size > 1000 for name in drawn)
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn)
    families = ("nms", "roi", "deform", "boxes", "losses", "masks", "maps", "polygons")
    assert all("figures/" in pages[DOCS / "api" / f"{family}.md"] for family in families)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples" / "gallery").glob("plot_*.py")), ids=lambda path: path.stem
)
def test_gallery_example_runs_and_saves_a_figure(example, tmp_path):
    pytest.importorskip("matplotlib")
    # show() completes a figure; without a screen, saving replaces it.
    program = (
        "import matplotlib; matplotlib.use('agg'); import runpy, matplotlib.pyplot as plt;"
        "plt.show = lambda: plt.savefig('picture.png'); "
        f"runpy.run_path({str(example)!r})"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_formulas_are_rendered_as_mathml():
    pytest.importorskip("latex2mathml")
    pytest.importorskip("sphinx")
    mathml = load_module(DOCS / "mathml.py")
    from docutils import nodes

    class Translator:
        def __init__(self):
            self.body = []

    for render, start, shown in (
        (mathml.inline, "<math ", 'display="inline"'),
        (mathml.block, '<div style="overflow-x: auto"><math ', 'display="block"'),
    ):
        translator = Translator()
        with pytest.raises(nodes.SkipNode):
            render(translator, nodes.math("", r"z = \alpha x + y"))
        (text,) = translator.body
        assert text.startswith(start) and shown in text and "<mi>" in text
