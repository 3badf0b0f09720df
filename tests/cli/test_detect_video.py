"""`detops detect` on videos, streams and cameras."""

import json
import sys
import threading
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import detect_command
import numpy as np
import pytest
from PIL import Image

from detops.data import ImageError
from detops.engine import Detector, OutputError
from detops.engine.sources import VIDEO_SUFFIXES
from detops.engine.video import VideoWriter, open_video

av = pytest.importorskip("av")
detect, picture = detect_command.detect, detect_command.image_file  # fixtures
FRAMES = 7


@pytest.fixture
def clip(tmp_path):
    """Writes a video with frames of increasing brightness."""
    path = tmp_path / "clip.mp4"
    with VideoWriter(path, Fraction(5)) as writer:
        for i in range(FRAMES):
            writer.add(Image.new("RGB", (65, 48), (30 * i,) * 3))
    return path


def test_written_video_is_read_back(clip):
    with open_video(str(clip)) as (rate, frames):
        pixels = list(frames)
    assert rate == 5 and len(pixels) == FRAMES
    # The odd column is dropped, and the colours are compressed.
    assert all(frame.shape == (3, 48, 64) for frame in pixels)
    assert np.allclose([f.float().mean() for f in pixels], [30 * i for i in range(FRAMES)], atol=3)


def test_list_of_videos_is_rejected_as_a_video(clip, tmp_path):
    """A list may refer to other files, whatever its own name is."""
    listed = tmp_path / "list.mp4"
    listed.write_text(f"ffconcat version 1.0\nfile {clip.name}\n")
    with (
        pytest.raises(ImageError, match=f"^{listed}: not a readable video"),
        open_video(str(listed)),
    ):
        pass


@pytest.mark.parametrize("suffix", VIDEO_SUFFIXES)
def test_each_video_format_is_read(tmp_path, suffix):
    path = str(tmp_path / f"a{suffix}")
    codec = {".webm": "libvpx-vp9", ".wmv": "wmv2"}.get(suffix, "mpeg4")
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg2video" if "mpg" in suffix else codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with open_video(path) as (_, frames):
        assert [frame.shape for frame in frames] == [(3, 48, 64)]


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_frames_are_rotated_upright(tmp_path, degrees):
    path = tmp_path / "turned.mp4"
    upright = np.zeros((48, 64, 3), np.uint8)
    upright[:24, :32] = 255  # the left upper corner
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=5)
        # Stored as by a phone that was rotated while recording.
        stored = np.ascontiguousarray(np.rot90(upright, -degrees // 90))
        stream.height, stream.width = stored.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.set_display_rotation(degrees)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(stored, format="rgb24")))
        container.mux(stream.encode(None))
    with open_video(str(path)) as (_, frames):
        (pixels,) = frames
    assert pixels.shape == (3, 48, 64)
    assert pixels[:, :20, :28].min() > 200 and pixels[:, 28:].max() < 60


@pytest.mark.parametrize("batch", ["1", "3"])
def test_detections_in_frames_are_written_and_drawn(detect, clip, picture, tmp_path, batch):
    found, yolo = tmp_path / "o.json", tmp_path / "yolo"
    image = picture("a.png")
    options = ["--json", found, "--yolo", yolo, "--batch", batch, "--csv", tmp_path / "o.csv"]
    status, lines, errors = detect(image, clip, *options)
    assert status == 0, errors
    assert lines[1].startswith(f"{clip}: {FRAMES} found in {FRAMES} frames, ")
    entries = json.loads(found.read_text())
    assert [entry.get("frame") for entry in entries] == [None, *range(FRAMES)]
    assert {entry["image"] for entry in entries[1:]} == {str(clip)}
    assert {path.name for path in yolo.iterdir()} == {
        "a.txt",
        *(f"clip_{i:06}.txt" for i in range(FRAMES)),
    }
    assert (tmp_path / "o.csv").read_text().splitlines()[2].startswith(f"{clip},0,cat,1,0.75")
    with open_video(str(tmp_path / "out" / "clip.mp4")) as (rate, frames):
        drawn = list(frames)
    assert rate == 5 and len(drawn) == FRAMES and drawn[0].shape == (3, 48, 64)
    assert drawn[0].max() > 150  # the box on black
    # Everything is done, so --resume repeats no work.
    status, lines, errors = detect(image, clip, *options, "--resume")
    assert (status, lines) == (0, []) and "2 were already done" in errors
    assert json.loads(found.read_text()) == entries


def test_run_continues_after_damaged_videos(detect, clip, picture, tmp_path):
    not_a_video, cut, audio_only = (tmp_path / name for name in ("no.mp4", "cut.mp4", "silent.mkv"))
    not_a_video.write_bytes(b"nothing")
    cut.write_bytes(clip.read_bytes()[: clip.stat().st_size // 2])
    with av.open(str(audio_only), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        audio = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        audio.sample_rate = 8000
        container.mux(stream.encode(audio))
    missing = tmp_path / "missing.mp4"
    status, lines, errors = detect(
        not_a_video, cut, audio_only, missing, "/dev/video99", picture("a.png")
    )
    assert status == 1 and len(lines) == 1
    reported = [error for error in errors if error.startswith("detops: error: ")]
    assert [error.split(": ")[2] for error in reported[:5]] == [
        *map(str, (not_a_video, cut, audio_only, missing)),
        "/dev/video99",
    ]
    assert "contains no video" in reported[2] and "No such file" in reported[3]
    assert "No such file" in reported[4] and reported[5].endswith("5 of 6 images failed")


def test_unwritable_video_raises(detect, clip, tmp_path):
    with (
        pytest.raises(OutputError, match=r"no/x.mp4: cannot be written"),
        VideoWriter(tmp_path / "no" / "x.mp4", Fraction(5)) as writer,
    ):
        writer.add(Image.new("RGB", (64, 48)))
    (tmp_path / "out" / "clip.mp4").mkdir(parents=True)
    status, _, errors = detect(clip)
    assert status == 2 and errors[-1].startswith(f"detops: error: {tmp_path}/out/clip.mp4: cannot")


def test_missing_pyav_is_reported_with_install_command(detect, clip, picture, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    status, lines, errors = detect(clip, picture("a.png"))
    assert status == 1 and len(lines) == 1
    assert any(f"{clip}: videos require PyAV" in error for error in errors)
    assert any("pip install 'detops[video]'" in error for error in errors)
    with pytest.raises(ImageError), open_video("x.mp4"):
        pass


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(clip):
    """Serves the video; yields the address of the server."""
    handler = partial(QuietHandler, directory=str(clip.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_ctrl_c_ends_the_stream_but_not_the_run(detect, address, picture, tmp_path, monkeypatch):
    original, calls = Detector.detect, []

    def interrupted_detect(self, pixels, threshold):
        calls.append(pixels)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, pixels, threshold)

    monkeypatch.setattr(Detector, "detect", interrupted_detect)
    found = tmp_path / "o.json"
    stream = f"{address}/clip.mp4"
    status, lines, errors = detect(stream, picture("a.png"), "--json", found)
    assert status == 0, errors
    assert lines[0].startswith(f"{stream}: 2 found in 2 frames") and len(lines) == 2
    assert [entry.get("frame") for entry in json.loads(found.read_text())] == [0, 1, None]
    with open_video(str(tmp_path / "out" / "clip.mp4")) as (_, frames):
        assert len(list(frames)) == 2


def test_missing_stream_is_reported(detect, address):
    status, _, errors = detect(f"{address}/none.mp4")
    assert status == 1 and errors[1].startswith(
        f"detops: error: {address}/none.mp4: not a readable"
    )
