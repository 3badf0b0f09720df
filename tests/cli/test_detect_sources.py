"""Inputs of `detops detect`: folders, patterns, lists, standard input."""

import io
import json
import os
import sys

import detect_command
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detops.data import ImageError
from detops.data.image import FORMATS, IMAGE_SUFFIXES
from detops.engine.sources import Source, list_sources

detect, picture = detect_command.detect, detect_command.image_file  # fixtures


def names(*inputs, stdin=b""):
    sources, problems = list_sources([str(each) for each in inputs], io.BytesIO(stdin))
    return [source.name for source in sources], [str(problem) for problem in problems]


@pytest.fixture
def folder(picture, tmp_path):
    """Writes two folders with images, a video and other files."""
    for name in ("b.png", "a.JPG", "deep/c.png", "deep/.hidden.png"):
        picture(f"photos/{name}")
    for name in ("notes.md", "clip.mp4", "empty/x.md"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"nothing")
    return tmp_path / "photos"


def test_folder_yields_its_files_sorted_by_name(folder):
    expected = ["a.JPG", "b.png", "clip.mp4", "deep/c.png"]
    assert names(folder) == ([str(folder / name) for name in expected], [])
    kinds = {source.kind for source in list_sources([str(folder)], io.BytesIO())[0]}
    assert kinds == {"image", "video"}
    assert names(folder / "empty") == (
        [],
        [f"{folder}/empty: no images or videos in this folder"],
    )


def test_folder_yields_images_of_every_format(tmp_path):
    for suffix in IMAGE_SUFFIXES:
        (tmp_path / f"a{suffix}").touch()
    (tmp_path / "a.txt").touch()
    sources = list_sources([str(tmp_path)], io.BytesIO())[0]
    assert {source.name for source in sources} == {f"{tmp_path}/a{s}" for s in IMAGE_SUFFIXES}
    assert {source.kind for source in sources} == {"image"}


def test_image_suffixes_cover_every_format():
    Image.init()
    known = {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}
    assert known - set(IMAGE_SUFFIXES) <= {".avifs", ".icb", ".vda", ".vst"}
    # A build of Pillow may lack these two.
    assert set(IMAGE_SUFFIXES) - known <= {".avif", ".webp"}


def test_patterns_yield_the_matching_files(folder):
    assert names(folder / "*.png")[0] == [str(folder / "b.png")]
    assert names(folder / "**" / "*.png")[0] == [str(folder / "b.png"), str(folder / "deep/c.png")]
    assert names(folder / "de*")[0] == [str(folder / "deep/c.png")]
    assert names(folder / "*.bmp") == ([], [f"{folder}/*.bmp: no matching file"])


def test_empty_folder_is_reported_next_to_good_inputs(folder, tmp_path):
    empty, good = folder / "empty", [str(folder / "b.png"), str(folder / "deep/c.png")]
    problem = f"{empty}: no images or videos in this folder"
    assert names(folder / "[bde]*") == (good, [problem])
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join([good[0], str(empty), str(folder / "none*"), good[1]]))
    assert names(listed) == ([good[0], str(folder / "none*"), good[1]], [problem])
    assert names("-", empty, stdin=listed.read_bytes())[1] == [problem, problem]


def test_unreadable_list_is_reported(folder, tmp_path):
    listed = tmp_path / "list.txt"
    listed.symlink_to("/proc/self/mem")
    problem = f"{listed}: cannot be read: Input/output error"
    assert names(listed, folder / "b.png") == ([str(folder / "b.png")], [problem])


def test_file_name_that_looks_like_a_pattern_is_found(picture):
    path = picture("photo[1].png")
    assert names(path) == ([str(path)], [])


def test_list_of_paths_is_read_from_file_or_stdin(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = tmp_path / "list.txt"
    listed.write_text("photos/b.png\r\n\n photos/deep \nmissing.png\nphotos/b.png\n")
    expected = ["photos/b.png", "photos/deep/c.png", "missing.png"]
    assert names(listed) == (expected, [])
    assert names("-", stdin=listed.read_bytes()) == (expected, [])
    listed.write_text("\n")
    assert names(listed) == ([], [f"{listed}: neither an image nor a list of paths"])
    assert names("-") == ([], ["standard input: neither an image nor a list of paths"])
    assert names("-", stdin=b"a\0b")[1]


def test_non_unicode_file_names_are_read(picture, tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.png"
    os.rename(picture("x.png"), name)
    assert names("-", stdin=name) == ([os.fsdecode(name)], [])
    assert Source(os.fsdecode(name)).read().shape == (3, 30, 40)


def test_non_unicode_file_names_are_printed(detect, picture, tmp_path, monkeypatch):
    name, table = os.fsencode(tmp_path) + b"/caf\xe9.png", tmp_path / "o.csv"
    os.rename(picture("x.png"), name)
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)
    status, _, errors = detect(os.fsdecode(name), "--csv", table)
    assert status == 0, errors
    stdout.flush()
    assert stdout.buffer.getvalue().startswith(name + b": 1 found, ")
    assert table.read_bytes().splitlines()[1].startswith(name + b",,cat,1,0.75")


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs", "Cc", "Z"]), min_size=1)))
def test_every_line_of_a_list_is_an_input(lines):
    lines = [f"no/{line}.jpg" for line in lines]
    found, problems = names("-", stdin="\n".join(lines).encode())
    assert found == list(dict.fromkeys(lines)) and (problems == []) == bool(lines)


def test_cameras_and_streams_are_live_sources():
    for name in ("/dev/video0", "rtsp://camera/1", "https://example.org/a.m3u8?x=[1]"):
        assert list_sources([name], io.BytesIO()) == ([Source(name, "live")], [])


def test_image_is_read_from_standard_input(detect, picture, tmp_path, monkeypatch):
    def on_stdin(content, *options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return detect("-", "--json", tmp_path / "o.json", *options)

    content = picture("a.png").read_bytes()
    status, lines, errors = on_stdin(content)
    assert status == 0 and lines[0].startswith("stdin: 1 found, "), errors
    assert (tmp_path / "out" / "stdin.png").is_file()
    assert json.loads((tmp_path / "o.json").read_text())[0]["width"] == 40
    # The next run may read another image, so --resume does not skip it.
    assert len(detect(picture("b.png"), "--resume")[1]) == 1
    status, _, errors = on_stdin(picture("c.png", (20, 20)).read_bytes(), "--resume")
    assert status == 0 and not any("done before" in error for error in errors)
    assert json.loads((tmp_path / "o.json").read_text())[0]["width"] == 20
    status, _, errors = on_stdin(content[:60])
    assert status == 1 and any("stdin: not a readable image" in error for error in errors)
    assert errors[-1] == "detops: error: 1 of 1 images failed"


def test_too_large_image_on_standard_input_raises():
    (source,), _ = list_sources(["-"], io.BytesIO(b"P6 60000 60000 255\n"))
    with pytest.raises(ImageError, match=r"^stdin: more than the limit of 1,073,741,824 pixels"):
        source.read()


def test_run_continues_after_inputs_without_images(detect, folder, tmp_path):
    status, lines, errors = detect(folder / "empty", folder / "b.png", tmp_path / "*.bmp")
    assert status == 1 and len(lines) == 1
    assert errors[-1] == "detops: error: 2 of 3 images failed"
