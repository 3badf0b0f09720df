"""Fonts for names in any script."""

import shutil

import numpy as np
import pytest
import torch

from detops import fonts
from detops.visualize import draw_detections

NO_CHARACTER = "\U0010ffff"


@pytest.fixture(autouse=True)
def reset_reported_characters(monkeypatch):
    monkeypatch.setattr(fonts, "_reported", set())
    fonts.font_file.cache_clear()
    yield
    fonts.font_file.cache_clear()


def has_glyphs(file, text):
    """Returns whether each character has a glyph other than the one for missing characters."""
    font = fonts.ImageFont.truetype(file, 20)
    return all(bytes(font.getmask(c)) != bytes(font.getmask(NO_CHARACTER)) for c in text)


@pytest.mark.parametrize("text", ["Bäume", "дерево", "δέντρο"])
def test_system_font_covers_the_characters(text, capsys):
    if shutil.which("fc-list") is None:
        pytest.skip("needs fontconfig")
    characters = "".join(c for c in text if not c.isascii())
    file = fonts.font_file(characters)
    if file is None:
        assert "no font on this system has them" in capsys.readouterr().err
        pytest.skip(f"no font on this system has {characters}")
    assert has_glyphs(file, text + "0123456789.")
    boxes = torch.tensor([[5.0, 40, 90, 90]])
    image = torch.zeros(3, 100, 100, dtype=torch.uint8)
    missing = "".join(c if c.isascii() else NO_CHARACTER for c in text)
    drawn, boxed = (
        np.array(draw_detections(image, boxes, names=[name])) for name in (text, missing)
    )
    assert (drawn != boxed).any()


def test_ascii_text_uses_the_default_font(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert fonts.font_for("tree 0.75", 12).getname() == fonts.ImageFont.load_default(12).getname()
    assert capsys.readouterr().err == ""


def test_font_is_loaded_once():
    assert fonts.font_for("oak", 12) is fonts.font_for("elm", 12)
    assert fonts.font_for("oak", 13) is not fonts.font_for("oak", 12)


def test_undrawable_characters_are_reported_once(monkeypatch, capsys):
    first, second = "\U0001b170", "\U0001b171"  # from a rarely printed script
    if fonts.font_file(first) is not None:
        pytest.skip("a font on this system has every script")
    for text in (f"{first} 0.5", f"{second} 0.25", f"{first} 0.75"):
        fonts.font_for(text, 12)
    reports = capsys.readouterr().err.splitlines()
    assert len(reports) == 1 and reports[0].startswith(f"detops: cannot draw {first}: ")
    monkeypatch.setenv("PATH", "/nowhere")
    fonts.font_for("\U0001b172", 12)
    assert "fontconfig is needed" in capsys.readouterr().err
