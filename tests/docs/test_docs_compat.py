"""Tables of the 'From ...' pages: every call in them names an existing function."""

import ast
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import ROOT

PAGES = sorted((ROOT / "docs").glob("from-*.md"))
CELL = re.compile(r"^\| `(?P<theirs>\w[\w.]*\(.*?\))` \| `(?P<ours>\w[\w.]*\(.*?\))` \|$", re.M)
ROWS = [
    pytest.param(page.stem, *match.groups(), id=f"{page.stem}: {match['theirs'].split('(')[0]}")
    for page in PAGES
    for match in CELL.finditer(page.read_text())
]
# The page explains it in its text; it is no argument of their call.
EXPLAINED_ARGUMENTS = {"level_start_index"}

pytestmark = pytest.mark.skipif(not PAGES, reason="needs the source tree")


def parse_call(text):
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    return node


def resolve(path):
    """Resolves a dotted name; an attribute takes precedence over a module of the same name."""
    first, *attributes = path.split(".")
    found = importlib.import_module(first)
    for k, attribute in enumerate(attributes, 1):
        if not hasattr(found, attribute):
            importlib.import_module(".".join([first, *attributes[:k]]))
        found = getattr(found, attribute)
    return found


def parameter_defaults(function):
    """Returns names and defaults; for an autograd Function, those of its forward."""
    owner = getattr(function, "__self__", None)
    if inspect.isclass(owner) and function.__name__ == "apply":
        found = list(inspect.signature(owner.forward).parameters.values())[1:]
    else:
        found = list(inspect.signature(function).parameters.values())
    return {p.name: p.default for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


def test_every_page_shows_how_to_switch_and_has_calls():
    names = ["detectron2", "maskrcnn-benchmark", "mmcv", "torchvision"]
    assert [p.stem for p in PAGES] == [
        f"from-{name}" for name in [*names, "ultralytics-and-transformers"]
    ]
    for page in PAGES:
        switch = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)[0].split("\n")
        switch = [line for line in switch if line]
        assert len(switch) == 2 and re.search(r"provide\(|patch_torchvision\(", switch[1])
        for line in switch:
            ast.parse(line)
    assert len(ROWS) > 40
    # A row that the pattern misses would stay untested.
    for page in PAGES:
        for line in page.read_text().splitlines():
            if "`detops." in line and line.startswith("| `") and "(" in line.split("|")[1]:
                assert CELL.match(line), line


@pytest.mark.parametrize(("page", "theirs", "ours"), ROWS)
def test_our_call_accepts_the_arguments_of_their_call(page, theirs, ours):
    their_call, our_call = parse_call(theirs), parse_call(ours)
    their_arguments = {a.id for a in their_call.args} | {k.arg for k in their_call.keywords}
    used = {
        n.id
        for a in [*our_call.args, *(k.value for k in our_call.keywords)]
        for n in ast.walk(a)
        if isinstance(n, ast.Name)
    }
    assert used <= their_arguments | EXPLAINED_ARGUMENTS
    function = resolve(ast.unparse(our_call.func))
    inspect.signature(function).bind(*our_call.args, **{k.arg: k.value for k in our_call.keywords})


def check_other_signature(theirs):
    call = parse_call(theirs)
    parameters = parameter_defaults(resolve(ast.unparse(call.func)))
    written_defaults = {a.id: inspect.Parameter.empty for a in call.args}
    written_defaults |= {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    assert list(written_defaults) == list(parameters)
    for name, default in written_defaults.items():
        found = parameters[name]
        if default is not inspect.Parameter.empty:
            assert found == default, name
        # An argument written without a default may have one.


@pytest.mark.parametrize(
    "theirs",
    [pytest.param(r.values[1], id=r.id) for r in ROWS if r.values[0] == "from-torchvision"],
)
def test_torchvision_calls_match_their_signatures(theirs):
    check_other_signature(theirs)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("package", ["mmcv", "transformers", "ultralytics"])
def test_calls_of_other_packages_match_their_signatures(package):
    """Runs in a separate process, because these packages stay imported."""
    from peers import python

    if find_spec(package) is None:
        pytest.skip(f"needs {package}: see tests/peers.txt")
    rows = [r.values[1] for r in ROWS if r.values[1].startswith(f"{package}.")]
    assert rows
    python(
        "-c",
        f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
        "import detops.compat, test_docs_compat as t\n"
        "detops.compat.provide('mmcv')\n"
        f"for row in {rows!r}: t.check_other_signature(row)",
    )


def test_maskrcnn_benchmark_calls_are_provided():
    from detops.compat.maskrcnn_benchmark import contents

    names = {r.values[1].split("(")[0] for r in ROWS if r.values[0] == "from-maskrcnn-benchmark"}
    functions = {"deform_conv", "modulated_deform_conv"}  # Python that calls several of _C
    assert names - functions <= contents().keys()
