"""The site: links, pictures, formulas, and what it asks of a network."""

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
FORMS = sorted((ROOT / ".github").rglob("*.yml"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
pytestmark = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="needs the source tree")


def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page):
    """Those that code hosts and the build give to headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {path}"
        if anchor:
            assert anchor in anchors(target), f"{page}: {path}#{anchor}"


@pytest.mark.parametrize("file", FORMS, ids=lambda file: str(file.relative_to(ROOT)))
def test_forms_and_workflows_can_be_read(file):
    assert "name" in yaml.safe_load(file.read_text()) or file.stem == "config"


def test_a_table_is_put_between_its_marks():
    begin, end = marks("ops")
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert fill(page, "ops", "new\n") == page.replace("old", "new")


@pytest.mark.parametrize("order", [[], [0], [1], [1, 0]])
def test_a_page_without_both_marks_is_not_filled(order):
    page = "\n".join(["before", *(marks("ops")[i] for i in order), "after"])
    with pytest.raises(ValueError, match="expected <!-- ops: begin --> and .* <!-- ops: end -->"):
        fill(page, "ops", "new\n")


def test_every_public_name_is_on_an_api_page():
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    listed = re.findall(r"^\.\. auto(?:function|class):: (?:detops\.)?(\w+)$", text, re.M)
    wanted = set(detops.__all__) - {"__version__", "cmake_prefix_path"}
    assert wanted <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.slow
def test_the_figures_are_those_of_the_pages(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = {path.name for path in module_of(DOCS / "figures.py").draw(tmp_path)}
    pages = {page: page.read_text() for page in (DOCS / "api").glob("*.md")}
    shown = re.findall(r"figure\} figures/(\S+)", "\n".join(pages.values()))
    assert sorted(shown) == sorted(drawn)
    assert all((DOCS / "api" / "figures" / name).stat().st_size > 1000 for name in drawn)
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn)
    families = ("nms", "roi", "deform", "boxes", "losses", "masks", "maps", "polygons")
    assert all("figures/" in pages[DOCS / "api" / f"{family}.md"] for family in families)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples" / "gallery").glob("plot_*.py")), ids=lambda path: path.stem
)
def test_the_gallery_runs(example, tmp_path):
    pytest.importorskip("matplotlib")
    # A call of show() ends a picture; without a screen it writes one.
    program = (
        "import matplotlib; matplotlib.use('agg'); import runpy, matplotlib.pyplot as plt;"
        "plt.show = lambda: plt.savefig('picture.png'); "
        f"runpy.run_path({str(example)!r})"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_formulas_need_no_script():
    pytest.importorskip("latex2mathml")
    pytest.importorskip("sphinx")
    mathml = module_of(DOCS / "mathml.py")
    from docutils import nodes

    class Translator:
        def __init__(self):
            self.body = []

    for render, shown in ((mathml.inline, 'display="inline"'), (mathml.block, 'display="block"')):
        translator = Translator()
        with pytest.raises(nodes.SkipNode):
            render(translator, nodes.math("", r"z = \alpha x + y"))
        (text,) = translator.body
        assert text.startswith("<math") and shown in text and "<mi>" in text
