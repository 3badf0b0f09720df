"""Writes the screenshots of docs/serve.md: `python tests/support/serve_screenshots.py`."""

from page_browser import browsing
from page_server import serving
from paths import ROOT

from detops.cli.options import DEFAULT_WEIGHTS, SHAPES_WEIGHTS
from detops.engine import Detector
from detops.serve.command import demo_samples

DOCS = ROOT / "docs"
VIEWPORT = {"width": 1280, "height": 830}
MODELS = {"shapes": SHAPES_WEIGHTS, "tree_crowns": DEFAULT_WEIGHTS}


def save(page, name):
    page.screenshot(path=DOCS / name, type="jpeg", quality=80)


def main():
    detectors = {name: Detector.from_checkpoint(path) for name, path in MODELS.items()}
    with serving(detectors, samples=demo_samples()) as port, browsing() as browser:
        page = browser.new_page(viewport=VIEWPORT, color_scheme="light")
        page.goto(f"http://localhost:{port}/")
        page.get_by_role("button", name="Try: shapes").click()
        page.get_by_text("detections,").wait_for()
        save(page, "serve-detect.jpg")
        page.get_by_role("button", name="Dark").click()
        page.get_by_role("tab", name="Ops").click()
        page.get_by_text("boxes are kept").wait_for()
        page.get_by_text("mean read").wait_for()
        save(page, "serve-ops.jpg")


if __name__ == "__main__":
    main()
