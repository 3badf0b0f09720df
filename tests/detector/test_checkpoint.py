# SPDX-License-Identifier: MIT
"""Damaged checkpoints: the file, its content, the folder."""

import os
import random
import struct
import warnings
import zipfile

import pytest
import torch
from test_engine import stop_after, trainer

from detops.cli.options import SHAPES_WEIGHTS
from detops.engine import CheckpointError, DamagedCheckpointError, Detector, load_checkpoint
from detops.engine.checkpoint import SEAL_SIZE, is_sealed, save_checkpoint, save_weights


def content(**changes):
    generator = torch.Generator().manual_seed(3)
    model = {"w": torch.rand(40, 50, generator=generator), "n": torch.tensor(7)}
    return {"config": "X: 1\n", "names": ["a"], "model": model} | changes


@pytest.fixture
def sealed(tmp_path):
    save_checkpoint(tmp_path / "c.pt", content())
    return tmp_path / "c.pt"


@pytest.fixture
def unsealed(tmp_path):
    """Writes a checkpoint without a seal, like version 0.1.0."""
    torch.save(content(), tmp_path / "old.pt")
    return tmp_path / "old.pt"


def assert_damaged(path, match="damaged"):
    with pytest.raises(DamagedCheckpointError, match=match) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_loading_detects_every_flipped_bit(sealed):
    intact = sealed.read_bytes()
    # One bit of each of the last bytes, the directory and the seal, and 400 bits of the rest.
    end = SEAL_SIZE + 300
    bits = random.Random(0).sample(range(8 * (len(intact) - end)), 400)
    bits += [8 * (len(intact) - 1 - i) + i % 8 for i in range(end)]
    for bit in bits:
        sealed.write_bytes(flipped(intact, bit))
        assert_damaged(sealed)
    sealed.write_bytes(intact)
    assert torch.equal(load_checkpoint(sealed)["model"]["w"], content()["model"]["w"])


def test_loading_detects_every_truncation(sealed):
    intact = sealed.read_bytes()
    for size in [*range(0, len(intact), 97), *range(len(intact) - SEAL_SIZE - 25, len(intact))]:
        sealed.write_bytes(intact[:size])
        assert_damaged(sealed)
    sealed.write_bytes(intact + b"\0")
    assert_damaged(sealed)


def test_torch_load_and_zipfile_read_sealed_checkpoints(sealed):
    assert is_sealed(sealed)
    assert torch.equal(torch.load(sealed, weights_only=True)["model"]["w"], content()["model"]["w"])
    assert torch.load(sealed, weights_only=True, mmap=True)["names"] == ["a"]
    assert zipfile.ZipFile(sealed).testzip() is None


def test_same_content_gives_the_same_bytes(sealed, tmp_path):
    save_checkpoint(tmp_path / "d.pt", content(), tmp_path / "other.tmp")
    # The file names do not matter.
    assert (tmp_path / "d.pt").read_bytes() == sealed.read_bytes()


def test_unsealed_checkpoints_are_verified_by_checksums(unsealed):
    assert not is_sealed(unsealed) and load_checkpoint(unsealed)["names"] == ["a"]
    intact = unsealed.read_bytes()
    start = intact.index(struct.pack("<f", float(content()["model"]["w"][0, 0])))
    for bit in random.Random(1).sample(range(8 * start, 8 * (start + 4 * 2000)), 100):
        unsealed.write_bytes(flipped(intact, bit))
        assert_damaged(unsealed, "checksum")
    for size in range(4, len(intact), 101):
        unsealed.write_bytes(intact[:size])
        assert_damaged(unsealed)


@pytest.fixture
def finished_run(tmp_path):
    """Returns the folder of a run with checkpoints of steps 4, 6 and 8."""
    trainer(tmp_path, CHECKPOINT_PERIOD=2).run()
    return tmp_path


def checkpoint_names(folder):
    return sorted(path.name for path in folder.glob("checkpoint_*"))


def resume_run(folder, lines=None, **changes):
    run = trainer(folder, **changes)
    run.resume(tell=(lambda line: None) if lines is None else lines.append)
    return run


def test_run_keeps_the_last_three_checkpoints(finished_run):
    assert checkpoint_names(finished_run) == [f"checkpoint_{step:06}.pt" for step in (4, 6, 8)]
    assert os.readlink(finished_run / "checkpoint.pt") == "checkpoint_000008.pt"
    # All temporary files are gone.
    assert len(list(finished_run.iterdir())) == 5
    steps = [
        load_checkpoint(path)["training"]["step"] for path in sorted(finished_run.glob("*_*.pt"))
    ]
    assert steps == [4, 6, 8]


def test_resume_loads_the_newest_intact_checkpoint(finished_run):
    uninterrupted = load_checkpoint(finished_run / "checkpoint.pt")
    newest, middle = finished_run / "checkpoint_000008.pt", finished_run / "checkpoint_000006.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    middle.write_bytes(flipped(middle.read_bytes(), 9000))
    lines = []
    run = resume_run(finished_run, lines, CHECKPOINT_PERIOD=2)
    assert run.step == 4 and len(lines) == 2
    for line, name in zip(lines, (newest, middle), strict=True):
        assert line.startswith(f"{name}: damaged") and line.endswith("skipped")
    run.run()
    # The resumed run ends with the same bits as the first run.
    assert checkpoint_names(finished_run) == [f"checkpoint_{step:06}.pt" for step in (4, 6, 8)]
    after_resume = load_checkpoint(finished_run / "checkpoint.pt")
    assert repr(after_resume) == repr(uninterrupted)
    for path in finished_run.glob("checkpoint*"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of its checkpoints.*8\.pt.*6\.pt.*4\.pt"):
        resume_run(finished_run)


def test_resuming_an_older_checkpoint_removes_later_ones(finished_run):
    run = trainer(finished_run, CHECKPOINT_PERIOD=3)
    run.resume(finished_run / "checkpoint_000004.pt")
    with pytest.raises(Exception, match="^$"):
        run.run(stop_after(7))
    assert checkpoint_names(finished_run) == ["checkpoint_000004.pt", "checkpoint_000006.pt"]
    assert os.readlink(finished_run / "checkpoint.pt") == "checkpoint_000006.pt"


def test_resume_accepts_and_reports_a_checkpoint_of_0_1_0(finished_run):
    uninterrupted = load_checkpoint(finished_run / "checkpoint.pt")
    old = load_checkpoint(finished_run / "checkpoint_000004.pt")
    for path in finished_run.glob("checkpoint*"):
        path.unlink()
    torch.save(old, finished_run / "checkpoint.pt")
    lines = []
    run = resume_run(finished_run, lines)
    assert len(lines) == 1 and "without a digest" in lines[0] and "checkpoint.pt" in lines[0]
    run.run()
    assert repr(load_checkpoint(finished_run / "checkpoint.pt")) == repr(uninterrupted)
    assert checkpoint_names(finished_run) == ["checkpoint_000004.pt", "checkpoint_000008.pt"]


def test_resume_warns_when_no_callback_is_given(finished_run):
    newest = finished_run / "checkpoint_000008.pt"
    newest.write_bytes(b"")
    run = trainer(finished_run)
    with pytest.warns(UserWarning, match="000008.pt: damaged"):
        run.resume()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(finished_run).resume(finished_run / "checkpoint_000006.pt")


def change(*path, to=None):
    def apply(checkpoint):
        parent = checkpoint
        for key in path[:-1]:
            parent = parent[key]
        if to is None:
            del parent[path[-1]]
        else:
            parent[path[-1]] = to

    return apply


BROKEN = {
    "no step": (change("training", "step"), "its step is missing"),
    "step is text": (change("training", "step", to="4"), "its step is '4'"),
    "step is negative": (change("training", "step", to=-4), "its step is -4"),
    "step is true": (change("training", "step", to=True), "its step is True"),
    "step is broken": (change("training", "step", to=4.5), "its step is 4.5"),
    "no seed": (change("training", "seed"), "its seed is missing"),
    "seed is text": (change("training", "seed", to="x"), "its seed is 'x'"),
    "training is a list": (change("training", to=[1]), "its 'training' is not a dict"),
    "names are numbers": (change("names", to=[1]), "its names are not all strings"),
    "no optimizer": (change("training", "optimizer"), "its optimizer is missing"),
    "no state": (change("training", "optimizer", "state"), "optimizer's state is missing"),
    "no groups": (change("training", "optimizer", "param_groups"), "param_groups are missing"),
    "groups": (change("training", "optimizer", "param_groups", to=[3]), "param_groups are a list"),
    "state of one": (change("training", "optimizer", "state", 0, to=3), "state of 0 is 3"),
    "no raw model": (change("training", "raw_model"), "its raw_model is not a dict of tensors"),
    "no count": (change("training", "averaged_steps"), "its averaged_steps is missing"),
    "weight is text": (change("model", "conv.bias", to="x"), "its model is not a dict of tensors"),
    "diverged": (
        change("training", "raw_model", "conv.bias", to=torch.tensor([1, 2, torch.nan, 4])),
        "its raw_model is not finite",
    ),
    "momentum": (
        change("training", "optimizer", "state", 0, "exp_avg", to=torch.tensor(torch.inf)),
        "state of 0 is not finite",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_fields_raise_a_one_line_error(finished_run, kind):
    apply, message = BROKEN[kind]
    path = finished_run / "checkpoint_000008.pt"
    checkpoint = load_checkpoint(path)
    apply(checkpoint)
    save_checkpoint(path, checkpoint)
    with pytest.raises(DamagedCheckpointError, match=message) as caught:
        trainer(finished_run).resume(path)
    assert str(caught.value).startswith(f"{path}: damaged: ")
    # Resume skips the file like any other damaged one.
    assert resume_run(finished_run).step == 6


MISMATCHED = {
    "step far off": (
        change("training", "step", to=10**9),
        r"step 1000000000 is above SOLVER.MAX_ITER",
    ),
    "other parameters": (
        change("training", "optimizer", "param_groups", to=[{"params": [0]}]),
        r"does not fit the optimizer: groups of \[1\] parameters",
    ),
    "no such parameter": (
        change("training", "optimizer", "state", 99, to={}),
        "does not fit the optimizer: a parameter 99",
    ),
    "state of another shape": (
        change("training", "optimizer", "state", 0, "exp_avg", to=torch.zeros(3)),
        r"exp_avg of parameter 0 is not of shape \[4, 3, 3, 3\]",
    ),
    "state is text": (
        change("training", "optimizer", "state", 0, "exp_avg", to="x"),
        "exp_avg of parameter 0 is not of shape",
    ),
    "a weight of another shape": (
        change("model", "conv.bias", to=torch.zeros(3)),
        r"conv.bias is \[3\], the model's is \[4\]",
    ),
}


@pytest.mark.parametrize("kind", MISMATCHED)
def test_mismatched_state_raises_a_one_line_error(finished_run, kind):
    apply, message = MISMATCHED[kind]
    path = finished_run / "checkpoint_000008.pt"
    checkpoint = load_checkpoint(path)
    apply(checkpoint)
    save_checkpoint(path, checkpoint)
    # Resume raises instead of using an older checkpoint: the config may be the wrong one.
    with pytest.raises(CheckpointError, match=message):
        resume_run(finished_run)


def test_resume_uses_the_optimizer_settings_of_the_config(finished_run):
    run = resume_run(finished_run, BASE_LR=0.5, WEIGHT_DECAY=0.25)
    group = run.optimizer.param_groups[0]
    assert (group["initial_lr"], group["weight_decay"]) == (0.5, 0.25)


def test_compressed_or_overlapping_archives_are_rejected(tmp_path):
    path, packed = tmp_path / "a.pt", tmp_path / "packed.pt"
    save_weights(path, {"w": torch.zeros(1000)}, "MODEL: {}", ["cat"])
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedCheckpointError, match="packed.pt: damaged, .*it is compressed"):
        load_checkpoint(packed)
    # The added parts repeat the position and size of the largest one.
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        largest = max(target.filelist, key=lambda entry: entry.file_size)
        target.filelist += [largest] * 9
    with pytest.raises(DamagedCheckpointError, match="its parts are larger than the file"):
        load_checkpoint(packed)


def test_invalid_config_error_names_the_checkpoint(tmp_path):
    save_weights(tmp_path / "a.pt", {}, "MODEL: {MASK_ON: 3}", ["cat"])
    message = r"^/.*/a\.pt: its config: MODEL.MASK_ON: expected bool, got int 3$"
    with pytest.raises(CheckpointError, match=message):
        Detector.from_checkpoint(tmp_path / "a.pt")


def test_config_larger_than_the_weights_is_rejected(tmp_path):
    """Views of one storage count as many weights, but occupy few bytes."""
    checkpoint = load_checkpoint(SHAPES_WEIGHTS)
    checkpoint["config"] = "MODEL: {RESNETS: {STEM_OUT_CHANNELS: 200000}}"
    checkpoint["model"]["views"] = torch.zeros(1).expand(1 << 40)
    torch.save(checkpoint, tmp_path / "a.pt")
    message = "a.pt: its config requires more weights than it contains"
    with pytest.raises(CheckpointError, match=message):
        Detector.from_checkpoint(tmp_path / "a.pt")
