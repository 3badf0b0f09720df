"""`detops detect --resume` and several processes give the results of a single run."""

import json
import os
import signal
import subprocess
import sys
import time

import detect_command
import pytest
from detect_command import OneObject
from hypothesis import given
from hypothesis import strategies as st
from paths import SUPPORT, environment
from PIL import Image

from detops.engine import OutputError, RunFolder
from detops.engine.journal import MERGED, PART_NAME, SETTINGS, Journal

detect, picture = detect_command.detect, detect_command.image_file  # fixtures
# The command with a slow detector, whose boxes depend on the brightness of an image.
SLOW_DETECT = """
import sys, time
sys.path.insert(0, {tests!r})
from detect_command import OneObject
from detops import cli
from detops.engine import Detector

class Slow(OneObject):
    def detections(self, image):
        time.sleep({seconds})
        found = super().detections(image)
        return found | {{"boxes": found["boxes"] + image.mean()}}

Detector.from_checkpoint = lambda *_: Detector(Slow(), ["cat", "dog"], device="cpu")
sys.exit(cli.main())
"""


def line(name, **more):
    return {"image": name, "detections": []} | more


def test_results_are_sorted_by_input(tmp_path):
    journals = [Journal(tmp_path) for _ in range(2)]
    assert journals[0].begin({}, resume=False) == {}
    journals[0].append([line("b"), line("d")])
    journals[1].append([line("a"), line("c")], process=1)
    for journal in journals:
        journal.close()
    journals[0].finish(["a", "b", "c"])
    assert [json.loads(each)["image"] for each in (tmp_path / MERGED).open()] == list("abcd")
    assert not list(tmp_path.glob(PART_NAME.format("*")))


def test_finished_run_is_parsed_once_per_table(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.begin({}, resume=False)
    # The lines differ in length, so that a wrong offset shows.
    lines = [line(name, note=name * i) for i, name in enumerate("cab")]
    journal.append(lines)
    journal.close()
    assert list(journal.entries("abc")) == [lines[1], lines[2], lines[0]]
    journal.finish("abc")
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    assert list(journal.entries("abc")) == [lines[1], lines[2], lines[0]]
    assert len(parsed) == 3


@given(cut=st.integers(0, 200), parts=st.integers(1, 3))
def test_resume_repairs_a_torn_line(tmp_path_factory, cut, parts):
    folder = tmp_path_factory.mktemp("torn")
    Journal(folder).begin({}, resume=False)
    lines = [line(f"picture {i} \N{EVERGREEN TREE}") for i in range(6)]
    for number in range(parts):
        journal = Journal(folder)
        journal.append(lines[number::parts], process=number)
        journal.close()
    torn = folder / PART_NAME.format(0)
    content = torn.read_bytes()
    os.truncate(torn, max(0, len(content) - cut))
    lost_lines = content.count(b"\n") - torn.read_bytes().count(b"\n")
    resumed = Journal(folder)
    done = resumed.begin({}, resume=True)
    assert len(done) == len(lines) - lost_lines
    resumed.append([each for each in lines if each["image"] not in done])
    resumed.close()
    resumed.finish([each["image"] for each in lines])
    assert [json.loads(each) for each in (folder / MERGED).open()] == lines


def test_resume_restarts_an_unfinished_video(tmp_path):
    journal = Journal(tmp_path)
    journal.begin({}, resume=False)
    finished_video = [
        line("a.mp4", frame=0),
        line("a.mp4", frame=1),
        {"image": "a.mp4", "frames": 2},
    ]
    journal.append([*finished_video, line("b.mp4", frame=0), line("b.mp4", frame=1), line("c")])
    journal.close()
    assert journal.begin({}, resume=True) == {"a.mp4": None, "c": None}
    assert list(journal.entries(["c", "a.mp4"])) == [line("c"), *finished_video]


def test_incompatible_or_damaged_runs_cannot_be_resumed(tmp_path):
    journal = Journal(tmp_path)
    journal.begin({"weights": "a.pt"}, resume=True)
    journal.append([line("a")])
    journal.close()
    with pytest.raises(OutputError, match="an unfinished run: use --resume"):
        Journal(tmp_path).begin({"weights": "a.pt"}, resume=False)
    with pytest.raises(OutputError, match="the results so far have another weights"):
        Journal(tmp_path).begin({"weights": "b.pt"}, resume=True)
    malformed = [line("c") | {"image": [1]}, line("c") | {"detections": [{"box": [1, 2, 3, 4]}]}]
    for damage in ("{}\n", "[]\n", "\0\n", "3\n", *(json.dumps(x) + "\n" for x in malformed)):
        (tmp_path / PART_NAME.format(1)).write_text(damage + json.dumps(line("b")) + "\n")
        with pytest.raises(OutputError, match=r"part1\.jsonl: line 1 is damaged"):
            Journal(tmp_path).begin({"weights": "a.pt"}, resume=True)


@pytest.mark.parametrize("content", [b"", b"[]\n", b"3\n", b"\xff\n", b'{"weights": "a'])
def test_damaged_settings_are_reported(detect, picture, tmp_path, content):
    first = picture("a.png")
    assert detect(first)[0] == 0
    settings = tmp_path / "out" / SETTINGS
    settings.write_bytes(content)
    status, _, errors = detect(first, "--resume")
    assert status == 2
    assert f"{settings}: damaged: expected the settings of the results" in errors[-1]
    settings.unlink()  # as the message suggests
    status, _, errors = detect(first, "--resume")
    assert status == 0 and "1 were already done" in errors


def test_settings_survive_a_full_disk(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    Journal(tmp_path).begin({"weights": "a.pt"}, resume=False)
    before = (tmp_path / SETTINGS).read_bytes()
    (tmp_path / f"{SETTINGS}.tmp").symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"run\.json: cannot be written: No space left"):
        Journal(tmp_path).begin({"weights": "a.pt"}, resume=True)
    assert (tmp_path / SETTINGS).read_bytes() == before


def test_resume_processes_only_new_and_failed_images(detect, picture, tmp_path, monkeypatch):
    first, second = picture("a.png"), picture("b.png")
    cut = tmp_path / "cut.png"
    cut.write_bytes(b"nothing")
    assert detect(second, cut)[0] == 1
    batch_sizes, forward = [], OneObject.forward
    monkeypatch.setattr(
        OneObject,
        "forward",
        lambda self, images: batch_sizes.append(len(images)) or forward(self, images),
    )
    found = tmp_path / "o.json"
    status, lines, errors = detect(first, second, cut, "--json", found, "--resume")
    # Failed images are tried again.
    assert (status, batch_sizes, len(lines)) == (1, [1], 1) and lines[0].startswith(str(first))
    assert "1 were already done" in errors
    assert [each["image"] for each in json.loads(found.read_text())] == [str(first), str(second)]
    status, _, errors = detect(first, "--resume", "--score-threshold", "0.1")
    assert status == 2 and "another score_threshold" in errors[-1]
    assert detect(first)[0] == 0  # a finished run may be replaced
    assert (tmp_path / "out" / MERGED).read_text().count("\n") == 1


def test_resume_keeps_the_paths_of_drawn_images(detect, picture, tmp_path):
    first, second = picture("a/x.png", (20, 20)), picture("b/x.png")
    assert detect(second)[0] == 0
    drawn, found = tmp_path / "out" / "x.png", tmp_path / "o.json"
    before = drawn.read_bytes()
    assert detect(first, second, "--json", found, "--resume")[0] == 0
    paths = [each["picture"] for each in json.loads(found.read_text())]
    assert paths == [str(drawn.with_name("x_2.png")), str(drawn)]
    assert drawn.read_bytes() == before and Image.open(paths[0]).size == (40, 40)
    # The path stays reserved even if its own image is not among the inputs.
    third = picture("c/x.png", (30, 30))
    assert detect(third, "--resume")[0] == 0
    assert drawn.read_bytes() == before and Image.open(drawn.with_name("x_3.png")).size == (60, 60)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    for i in range(24):
        Image.new("RGB", (40 + 8 * (i % 3), 30), (10 * i, 0, 0)).save(folder / f"{i:02}.png")
    return folder


def start(output, photographs, *options, processes=1, seconds=0.0):
    script = output.parent / "slow.py"
    script.write_text(SLOW_DETECT.format(tests=str(SUPPORT), seconds=seconds))
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    tables = ["--json", output / "o.json", "--coco", output / "c.json", "--csv", output / "o.csv"]
    arguments = ["detect", photographs, "--weights", "w.pt", "--output", output, *tables, *options]
    return subprocess.Popen(
        [*command, str(script), *map(str, arguments)],
        env=environment(OMP_NUM_THREADS="1"),
        stderr=subprocess.PIPE,
        text=True,
    )


def results(output):
    # The files contain the name of the folder.
    return {
        name: (output / name).read_text().replace(str(output), "OUT")
        for name in (MERGED, "o.json", "c.json", "o.csv")
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, photographs):
    output = tmp_path_factory.mktemp("uninterrupted") / "out"
    process = start(output, photographs)
    assert process.wait() == 0, process.stderr.read()
    return results(output)


@pytest.mark.exhaustive
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_run_resumes_to_the_same_results(tmp_path, photographs, uninterrupted, processes):
    output = tmp_path / "out"
    process = start(output, photographs, "--batch", "2", seconds=0.1)
    part = output / PART_NAME.format(0)
    while not part.exists() or part.read_bytes().count(b"\n") < 5:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = part.read_bytes().count(b"\n")
    image_count = len(list(output.glob("*.png")))
    # An image may be drawn but not recorded yet; at most one batch is lost.
    assert 5 <= kept < 24 and kept <= image_count <= kept + 2
    process = start(output, photographs, "--resume", processes=processes)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"{kept} were already done" in errors
    assert results(output) == uninterrupted


@pytest.mark.exhaustive
def test_two_processes_give_the_results_of_one(tmp_path, photographs, uninterrupted):
    output = tmp_path / "out"
    process = start(output, photographs, "--batch", "3", processes=2, seconds=0.05)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert results(output) == uninterrupted
    assert len(list(output.glob("*.png"))) == 24 and not list(output.glob(PART_NAME.format("*")))
    assert errors.count("24 images in") == 1


@pytest.mark.exhaustive
def test_parallel_run_reports_one_broken_image(tmp_path, photographs):
    broken = tmp_path / "bad.png"
    broken.write_bytes(b"nothing")
    output = tmp_path / "out"
    process = start(output, photographs, broken, processes=2)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "error: 1 of 25 images failed" in errors
    assert (output / MERGED).read_text().count("\n") == 24


@pytest.mark.slow
def test_second_run_in_a_folder_is_rejected(detect, picture, tmp_path):
    with RunFolder(tmp_path / "out").locked():
        process = start(tmp_path / "out", picture("a.png"), "--resume")
        _, errors = process.communicate()
    assert process.returncode == 2 and "another run" in errors
    assert not (tmp_path / "out" / MERGED).exists()
