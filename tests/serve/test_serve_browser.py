# SPDX-License-Identifier: MIT
"""The page of `detops serve`, operated in a headless browser."""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

for module in ("playwright", "skimage", "starlette", "uvicorn"):
    pytest.importorskip(module)

from page_browser import browsing, find_browser  # noqa: E402
from page_server import make_detector, serving  # noqa: E402

import detops  # noqa: E402
from detops.cli.options import SHAPES_WEIGHTS  # noqa: E402
from detops.data import CocoDetection  # noqa: E402
from detops.engine import Detector  # noqa: E402
from detops.serve import Limits  # noqa: E402
from detops.serve.command import shapes_sample  # noqa: E402
from detops.serve.ops import nms_scene  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="needs Chromium"),
    pytest.mark.skipif(not SHAPES_WEIGHTS.exists(), reason="needs the demonstration's files"),
]
DROP_SCRIPT = """([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name));
  document.getElementById("drop").dispatchEvent(
    new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def detector():
    return Detector.from_checkpoint(SHAPES_WEIGHTS, "cpu")


@pytest.fixture(scope="module")
def address(detector):
    samples = {"shapes": shapes_sample()}
    limits = Limits(bytes=1_000_000)
    with serving(
        {"shapes": detector, "b": make_detector()}, limits=limits, samples=samples
    ) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def page(browser, address):
    """Opens the page; browser errors and requests to other servers fail the test."""
    page = browser.new_page(color_scheme="light", accept_downloads=True)
    page.set_default_timeout(20_000)
    page.request_urls, page.browser_errors = [], []
    page.on("request", lambda request: page.request_urls.append(request.url))
    page.on("pageerror", lambda error: page.browser_errors.append(str(error)))
    page.on("console", lambda message: page.browser_errors.append(message.text))
    page.goto(address)
    page.get_by_role("button", name="Try: shapes").wait_for()
    yield page
    external = [url for url in page.request_urls if not url.startswith((address, "data:", "blob:"))]
    page.close()
    assert not external
    assert not [text for text in page.browser_errors if "status of 4" not in text]


def drop(page, name, content):
    page.evaluate(DROP_SCRIPT, [name, base64.b64encode(content).decode()])


def detection_counts(page, figure=0):
    """Returns how many detections a figure shows, and how many there are."""
    caption = page.locator("figcaption:has-text('detections')").nth(figure)
    return tuple(map(int, re.search(r"(\d+) of (\d+)", caption.inner_text()).groups()))


def drop_sample(page):
    drop(page, "shapes.png", shapes_sample())
    page.get_by_text("shapes.png: 600 x 400 pixels").wait_for()


def pixels(page, selector):
    return page.eval_on_selector(selector, "canvas => canvas.toDataURL()")


def test_threshold_filters_detections_without_a_request(page, detector):
    drop_sample(page)
    scores = detector.detect(Image.open(io.BytesIO(shapes_sample())), 0.05)["scores"]
    assert detection_counts(page) == (int((scores >= 0.5).sum()), len(scores))
    before, request_count = pixels(page, "#figures canvas"), len(page.request_urls)
    threshold = page.locator("#threshold")
    for _ in range(42):
        threshold.press("ArrowRight")
    assert page.locator("#threshold-shown").inner_text() == "0.92"
    assert detection_counts(page) == (int((scores >= 0.92).sum()), len(scores))
    assert detection_counts(page)[0] < int((scores >= 0.5).sum())
    assert pixels(page, "#figures canvas") != before
    threshold.press("Home")
    assert detection_counts(page) == (len(scores), len(scores))
    assert page.locator("#figures tbody tr").count() == len(scores)
    assert len(page.request_urls) == request_count  # The page sent no further request.


def test_tags_masks_and_boxes_can_be_hidden(page):
    drop_sample(page)
    complete = pixels(page, "#figures canvas")
    distinct = {complete}
    for name in ("tags", "masks", "boxes"):
        page.get_by_label(name, exact=True).uncheck()
        distinct.add(pixels(page, "#figures canvas"))
    assert len(distinct) == 4


def test_classes_beyond_the_palette_use_the_colour_of_the_server(page):
    (colour,) = page.evaluate(
        """async () => {
          const { drawDetections } = await import("/draw.js");
          const [canvas, picture] = [new OffscreenCanvas(1, 1), new OffscreenCanvas(1200, 600)];
          const colours = Array.from({ length: 9 }, (_, k) => [10 * k, 20 * k, 30 * k]);
          const found = [{ label: 9, score: 1, box: [100, 100, 300, 300] }];
          drawDetections(canvas, picture, found, { boxes: true }, colours, []);
          return [[...canvas.getContext("2d").getImageData(100, 200, 1, 1).data]];
        }"""
    )
    assert colour == [80, 160, 240, 255]


def test_two_models_are_shown_side_by_side(page):
    drop_sample(page)
    page.get_by_label("Compare with").select_option("b")
    page.locator("#figures canvas").nth(1).wait_for()
    assert page.locator("#figures figure").count() == 2
    assert detection_counts(page, 1) == (1, 2)
    page.get_by_label("Compare with").select_option("")
    page.locator("#figures canvas").nth(1).wait_for(state="detached")
    assert detection_counts(page)[1] > 2


def download_file(page, button):
    with page.expect_download() as download:
        page.get_by_role("button", name=button, exact=True).click()
    return download.value


def test_results_are_saved_as_json_coco_and_image(page, detector, tmp_path):
    drop_sample(page)
    shown, _ = detection_counts(page)
    found = detector.detect(Image.open(io.BytesIO(shapes_sample())), 0.5)
    download = download_file(page, "JSON")
    assert download.suggested_filename == "shapes.json"
    (entry,) = json.loads(download.path().read_text())
    assert (entry["image"], entry["model"]) == ("shapes.png", "shapes")
    assert [d["name"] for d in entry["detections"]] == found["names"]
    assert list(entry["detections"][0]) == ["box", "name", "score", "mask"]
    boxes = torch.tensor([d["box"] for d in entry["detections"]])
    torch.testing.assert_close(boxes, found["boxes"])

    download = download_file(page, "COCO")
    assert download.suggested_filename == "shapes.shapes.coco.json"
    download.save_as(tmp_path / "coco.json")
    (tmp_path / "shapes.png").write_bytes(shapes_sample())
    data = CocoDetection(tmp_path / "coco.json", masks=True)
    target = data.target(0)
    assert len(target["boxes"]) == shown and data.names == detector.names
    assert torch.equal(target["labels"], found["labels"])
    assert torch.equal(target["masks"].bool(), found["masks"][:, 0])

    download = download_file(page, "Image")
    image = Image.open(download.path())
    assert image.format == "PNG" and image.size == (1200, 800)


def test_rejected_files_are_reported_on_the_page(page):
    drop(page, "a.txt", b"no picture")
    page.locator("#status.error").wait_for()
    assert "a.txt: image: not a readable image" in page.locator("#status").inner_text()
    request_count = len(page.request_urls)
    drop(page, "large.png", b"x" * 1_000_001)
    page.get_by_text("the limit is 1.0 MB").wait_for()
    assert len(page.request_urls) == request_count
    assert page.get_by_role("button", name="JSON").is_disabled()
    drop_sample(page)
    assert page.locator("#status.error").count() == 0


def test_page_decodes_rle_masks_exactly(page):
    generator = np.random.default_rng(0)
    masks = torch.from_numpy(generator.random((12, 23, 31)) < np.linspace(0, 1, 12)[:, None, None])
    rles = detops.masks_to_rle(masks)
    decoded = page.evaluate(
        """async (rles) => {
          const { maskCanvas } = await import("/rle.js");
          return rles.map((rle) => {
            const shape = maskCanvas(rle, [1, 2, 3], 255);
            if (shape === null) return null;
            const { canvas, left, top } = shape;
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            return [left, top, width, [...data].filter((_, i) => i % 4 === 3)];
          });
        }""",
        rles,
    )
    for mask, shape in zip(masks, decoded, strict=True):
        full = torch.zeros_like(mask)
        if shape is not None:
            left, top, width, alphas = shape
            crop = torch.tensor(alphas).view(-1, width) > 0
            full[top : top + len(crop), left : left + width] = crop
        assert torch.equal(full, mask)


def test_nms_threshold_is_moved_by_keyboard(page):
    page.get_by_role("tab", name="Detect").press("ArrowRight")
    assert page.get_by_role("tab", name="Ops").get_attribute("aria-selected") == "true"
    assert page.locator("#detect").is_hidden()
    status = page.locator("#nms-status")
    page.get_by_text("of 45 boxes are kept").wait_for()
    scene = nms_scene(0, 5)

    def kept_text(threshold):
        match = scene["matches"][scene["thresholds"].index(threshold)]
        return f"{len(set(match))} of 45 boxes are kept"

    assert status.inner_text() == kept_text(0.5)
    before, request_count = pixels(page, "#nms-after"), len(page.request_urls)
    unsuppressed = pixels(page, "#nms-before")
    threshold = page.locator("#nms-threshold")
    for _ in range(10):
        threshold.press("ArrowRight")
    assert status.inner_text() == kept_text(0.7) != kept_text(0.5)
    assert pixels(page, "#nms-after") != before
    assert pixels(page, "#nms-before") == unsuppressed
    threshold.press("End")
    assert status.inner_text() == "45 of 45 boxes are kept"
    assert pixels(page, "#nms-after") == unsuppressed
    assert len(page.request_urls) == request_count
    page.get_by_role("button", name="Other boxes").click()
    page.wait_for_function(
        "before => document.getElementById('nms-before').toDataURL() !== before", arg=unsuppressed
    )


def test_ops_tab_updates_roi_align_and_deform_conv2d(page):
    page.get_by_role("tab", name="Ops").click()
    status = page.locator("#roi-status")
    page.get_by_text("9 bins of 4 samples; 36 of 36 inside the map").wait_for()
    before = pixels(page, "#roi-map")
    page.locator("#roi-map").press("ArrowRight")
    page.wait_for_function(
        "before => document.getElementById('roi-map').toDataURL() !== before", arg=before
    )
    page.locator("#roi-bins-map").hover()
    highlighted = pixels(page, "#roi-map")
    page.mouse.move(0, 0)
    assert pixels(page, "#roi-map") != highlighted
    page.locator("#roi-bins").press("Home")
    page.get_by_text("1 bins of 4 samples").wait_for()
    assert not status.evaluate("element => element.classList.contains('error')")

    page.get_by_label("Offsets").select_option("none")
    page.wait_for_function(
        """() => {
          const numbers = document.getElementById("deform-status").textContent.match(/[\\d.]+/g);
          return numbers[0] === numbers[1];
        }"""
    )


def test_hovering_bins_before_the_response_is_harmless(page):
    pending = []
    page.route("**/api/ops/roi_align*", lambda route: pending.append(route))
    page.get_by_role("tab", name="Ops").click()
    page.locator("#roi-bins-map").hover()
    assert page.locator("#roi-status").inner_text() == ""
    pending[0].continue_()
    page.get_by_text("9 bins of 4 samples").wait_for()


def test_theme_is_remembered_and_follows_the_system(page, browser, address):
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "light"
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(theme) == "dark"
    page.reload()
    assert page.evaluate(theme) == "dark"
    other = browser.new_page(color_scheme="dark")
    other.goto(address)
    assert other.evaluate(theme) == "dark"
    other.close()


def test_narrow_window_scrolls_only_vertically(page):
    page.set_viewport_size({"width": 390, "height": 800})
    for tab in ("Detect", "Ops"):
        page.get_by_role("tab", name=tab).click()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390
