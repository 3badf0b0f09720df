# SPDX-License-Identifier: MIT
"""`detops train` and `detops eval` with signals, locked folders, and invalid outputs."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tiny_training as tiny
import torch
from paths import SUPPORT, environment
from PIL import Image

from detops import cli
from detops.cli.options import PACKAGE
from detops.config import load_config
from detops.data import load_datasets
from detops.engine import OutputError, RunFolder, Trainer, load_checkpoint
from detops.engine.config_checks import doubtful_settings
from detops.engine.data_failure import data_failure
from detops.modeling import build_detection_model

pytestmark = pytest.mark.slow


def error_line(capsys):
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("detops: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory):
    """Returns the folder of an undisturbed run."""
    output = tmp_path_factory.mktemp("whole") / "run"
    assert tiny.train(output) == 0
    return output


@pytest.fixture
def at_step(monkeypatch):
    """Calls a function in the middle of a step, counted from 1."""

    def set_step(step, function):
        losses = Trainer._losses

        def wrapped(self, *arguments):
            if self.step + 1 == step:
                function()
            return losses(self, *arguments)

        monkeypatch.setattr(Trainer, "_losses", wrapped)

    return set_step


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_training_with_a_checkpoint(
    tmp_path, capsys, monkeypatch, at_step, uninterrupted_run, number, status
):
    before = signal.getsignal(number)
    at_step(3, lambda: os.kill(os.getpid(), number))
    assert tiny.train(tmp_path) == status
    saved = tmp_path / "checkpoint_000003.pt"
    assert error_line(capsys) == (
        f"detops: stopped by {signal.Signals(number).name} after step 3; {saved} is saved, "
        "--resume continues from it"
    )
    assert signal.getsignal(number) == before and not (tmp_path / "weights.pt").exists()
    monkeypatch.undo()
    assert tiny.train(tmp_path, "--resume") == 0
    ours, theirs = (load_checkpoint(run / "checkpoint.pt") for run in (tmp_path, uninterrupted_run))
    assert ours["training"]["step"] == 6
    assert all(torch.equal(ours["model"][key], value) for key, value in theirs["model"].items())


def test_signal_outside_the_steps_stops_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "run", lambda *a: pytest.fail("training began"))
    monkeypatch.setattr(
        "detops.engine.command.seed_all", lambda seed: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert tiny.train(tmp_path) == 143
    assert error_line(capsys) == "detops: stopped by SIGTERM"
    assert list(tmp_path.iterdir()) == []


ENDLESS_STEP = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
sys.path.insert(0, sys.argv[1])
import tiny_training
from detops.engine import Trainer

def endless(*arguments):
    print("in a step", flush=True)
    while signal.getsignal(signal.SIGINT) != signal.SIG_DFL:
        time.sleep(0.01)
    print("noted", flush=True)
    time.sleep(600)

Trainer._losses = endless
tiny_training.train(sys.argv[2])
"""


def expect_line(process, line):
    """Waits for a process to print a line."""
    assert select.select([process.stdout], [], [], 200)[0]
    assert process.stdout.readline().strip() == line


def test_second_ctrl_c_exits_at_once(tmp_path):
    command = [sys.executable, "-c", ENDLESS_STEP, SUPPORT, tmp_path / "run"]
    single_thread = environment(OMP_NUM_THREADS="1")
    with subprocess.Popen(command, env=single_thread, stdout=subprocess.PIPE, text=True) as process:
        expect_line(process, "in a step")
        process.send_signal(signal.SIGINT)
        expect_line(process, "noted")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT


LOCK_HOLDER = """
import os, sys, time
from detops.engine import RunFolder
with RunFolder(sys.argv[1]).locked():
    if os.fork() == 0:  # as a data worker, which outlives a killed run
        time.sleep(60)
        os._exit(0)
    print("locked", flush=True)
    time.sleep(600)
"""


def test_second_run_in_a_folder_is_rejected(tmp_path, capsys):
    command = [sys.executable, "-c", LOCK_HOLDER, tmp_path]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            expect_line(process, "locked")
            for option in ([], ["--resume"]):
                assert tiny.train(tmp_path, *option) == 2
                line = error_line(capsys)
                assert f"{tmp_path}: another run is writing here (process {process.pid} on " in line
                assert f"; {tmp_path}/run.lock): stop it first" in line
            process.kill()
            process.wait()
            # The child of the process is still alive.
            os.killpg(process.pid, 0)
            with RunFolder(tmp_path).locked():
                text = (tmp_path / "run.lock").read_text()
                assert text.startswith(f"process {os.getpid()} on ")
            assert list(tmp_path.iterdir()) == []
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_invalid_outputs_are_rejected_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "run", lambda *a: pytest.fail("training began"))
    file = tmp_path / "file"
    file.write_text("")
    for output, message in (
        (file, f"{file}: expected a folder, got a file"),
        (file / "run", f"{file}/run: cannot be written: Not a directory"),
        (Path("/dev/null/x"), "/dev/null/x: cannot be written: Not a directory"),
    ):
        assert tiny.train(output) == 2
        assert error_line(capsys) == f"detops: error: {message}"
    monkeypatch.setattr(
        "detops.engine.command.evaluate", lambda *a: pytest.fail("evaluation began")
    )
    for output, message in (
        (tmp_path, f"{tmp_path}: expected a file, got a folder"),
        (file / "r.json", f"{file}/r.json: cannot be written: "),
    ):
        assert cli.main(["eval", "--output", str(output)]) == 2
        assert error_line(capsys).startswith(f"detops: error: {message}")


def test_folder_without_write_permission_raises():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        # Permissions do not restrict root.
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            for path in (Path(name), Path(name) / "a" / "b"):
                with pytest.raises(OutputError, match=r"cannot be written: Permission denied"):
                    with RunFolder(path).locked():
                        pass
        finally:
            if root:
                os.seteuid(0)


def test_missing_parent_folders_are_created(tmp_path):
    with RunFolder(tmp_path / "a" / "b").locked():
        assert (tmp_path / "a" / "b" / "run.lock").exists()


@pytest.mark.parametrize("name", ["weights.pt.tmp", "results.json", "checkpoint.pt.tmp"])
def test_full_disk_prints_a_one_line_error(tmp_path, capsys, name):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    os.symlink("/dev/full", tmp_path / name)
    assert tiny.train(tmp_path, "SOLVER.MAX_ITER", "2") == 2
    line = error_line(capsys)
    reported = {"checkpoint.pt.tmp": "checkpoint_000002.pt"}.get(name, name.removesuffix(".tmp"))
    assert line.startswith(
        f"detops: error: {tmp_path}/{reported}: cannot be written: No space left"
    )
    assert "enforce fail" not in line


def test_test_data_is_checked_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "run", lambda *a: pytest.fail("training began"))
    other = ["DATASETS.TEST", "[tree_crowns/val.json]", "MODEL.MASK_ON", "False"]
    assert tiny.train(tmp_path, *other) == 2
    line = error_line(capsys)
    assert "val.json: categories ['tree'] differ from the detector's" in line
    assert tiny.train(tmp_path, "DATASETS.TEST", "[none.json]") == 2
    assert "none.json: cannot read" in error_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_failed_start_leaves_no_folder(tmp_path, capsys):
    output = tmp_path / "new"
    assert tiny.train(output, "DATASETS.TEST", "[none.json]") == 2
    assert not output.exists()


def test_doubtful_settings_are_reported(tmp_path):
    cfg = load_config(
        "configs/tree_crowns.yaml",
        ["MODEL.RPN.FPN_POST_NMS_PER_BATCH", True, "INPUT.MIN_SIZE_TEST", 2560]
        + ["INPUT.MAX_SIZE_TEST", 2560],
    )
    model = build_detection_model(cfg)
    train, other = load_datasets(["tree_crowns/train.json", "tree_crowns/val.json"])
    few, shared, anchors = doubtful_settings(cfg, model, [train], [train, other])
    assert "400 proposals for the whole batch are 100 for each of 4 images" in few
    assert "1 of the 1 images of" in shared and "train.json are also in DATASETS.TRAIN" in shared
    assert re.search(r"train.json match no anchor \(IoU below 0.3\)", anchors)
    cfg = load_config("configs/tree_crowns.yaml")
    assert list(doubtful_settings(cfg, model, [train], [other])) == []


def test_invalid_crop_sizes_are_rejected(tmp_path, capsys):
    for smallest, largest in ((300, 224), (0, 224)):
        crops = ["INPUT.CROP_MIN", str(smallest), "INPUT.CROP_MAX", str(largest)]
        assert tiny.train(tmp_path, *crops) == 2
        expected = f"expected 1 to INPUT.CROP_MAX, which is {largest}, got {smallest}"
        assert error_line(capsys) == f"detops: error: INPUT.CROP_MIN: {expected}"


def test_data_failures_are_explained():
    def explain(error, workers=2):
        return data_failure(error, workers)

    shm = "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent "
    shm += "call last):\n  x\nRuntimeError: unable to write to file </torch_1_2>: No space left"
    assert "ran out of shared memory (unable to write" in explain(RuntimeError(shm))
    died = explain(RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"))
    assert "died (DataLoader worker (pid(s) 7) exited unexpectedly)" in died
    assert "NUM_WORKERS (now 2)" in died
    assert "died" in explain(ConnectionResetError(104, "Connection reset by peer"))
    missing = "Caught FileNotFoundError in DataLoader worker process 0.\nOriginal Traceback:\nx: y"
    assert explain(FileNotFoundError(missing)) is None
    assert explain(FileNotFoundError("x"), workers=0) is None
    assert explain(TypeError("x")) is None


def test_broken_images_are_skipped_up_to_a_limit(tmp_path, capsys, monkeypatch):
    """The files vanish after the dataset was opened."""
    photograph = PACKAGE / "assets" / "tree_crowns" / "val.jpg"
    images, annotations = [], []
    for i in range(10):
        Image.open(photograph).crop((0, 0, 64, 64)).save(tmp_path / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": 64, "height": 64})
        annotations.append({"id": i, "image_id": i, "category_id": 1, "bbox": [4, 4, 30, 30]})
    categories = [{"id": 1, "name": "tree"}]
    file = tmp_path / "train.json"
    file.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    data = ["DATASETS.TRAIN", f"[{file}]", "MODEL.ROI_BOX_HEAD.NUM_CLASSES", "2"]
    data += ["MODEL.MASK_ON", "False"]

    original = Trainer.run

    def delete_images(count):
        def run(self, *arguments):
            for i in range(count):
                (tmp_path / f"{i}.png").unlink(missing_ok=True)
            return original(self, *arguments)

        monkeypatch.setattr(Trainer, "run", run)

    delete_images(1)
    with pytest.warns(UserWarning, match="0.png: .*the next image replaces it"):
        assert tiny.train(tmp_path / "one", "--skip-broken", *data, "SOLVER.MAX_ITER", "10") == 0
    capsys.readouterr()
    delete_images(4)
    with pytest.warns(UserWarning):
        Image.open(photograph).crop((0, 0, 64, 64)).save(tmp_path / "0.png")
        assert tiny.train(tmp_path / "four", "--skip-broken", *data, "SOLVER.MAX_ITER", "20") == 2
    line = error_line(capsys)
    assert "2 of 10 images can no longer be read, which is more than 10%; the last: " in line
