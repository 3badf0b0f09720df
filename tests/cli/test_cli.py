# SPDX-License-Identifier: MIT
"""The command line on the shipped photographs."""

import json
import re

import pytest
import torch
from PIL import Image

from detops import cli
from detops.cli.options import DEFAULT_CONFIG, PACKAGE
from detops.config import config_file

VAL = PACKAGE / "assets" / "tree_crowns" / "val.jpg"


@pytest.fixture
def config(tmp_path):
    """Writes the default config of a training."""
    path = tmp_path / "config.yaml"
    path.write_text(DEFAULT_CONFIG.read_text() if DEFAULT_CONFIG.is_file() else "OUTPUT_DIR: .\n")
    return path


SHORT_RUN = [
    *("SOLVER.MAX_ITER", "3", "SOLVER.CHECKPOINT_PERIOD", "2", "SOLVER.IMS_PER_BATCH", "1"),
    *("DATASETS.TEST", "[]", "DATALOADER.NUM_WORKERS", "0"),
]


def error_line(capsys, *arguments):
    """Runs a command that must fail; returns its one line of error."""
    assert cli.main(list(map(str, arguments))) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("detops: error: "), captured.err
    return lines[0]


def test_help_describes_every_command(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("train", "eval", "detect", "demo", "info"):
        assert command in text
        assert cli.main([command, "--help"]) == 0
        assert f"detops {command}" in capsys.readouterr().out


def test_info_prints_version_and_instruction_set(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert torch.__version__ in text and "instruction set" in text


def test_config_prints_shipped_configs(capsys):
    assert cli.main(["config"]) == 0
    names = capsys.readouterr().out.split()
    assert "configs/tree_crowns.yaml" in names and "configs/defaults.yaml" in names
    for name in names:
        assert cli.main(["config", name]) == 0
        assert capsys.readouterr().out == config_file(name).read_text()
    assert error_line(capsys, "config", "configs/tree_crown.yaml").endswith(
        "did you mean configs/tree_crowns.yaml?"
    )


@pytest.mark.slow
def test_user_errors_are_one_line(capsys, tmp_path, config):
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(b"nothing")
    assert "no such checkpoint" in error_line(capsys, "detect", VAL, "--weights", tmp_path / "w.pt")
    assert "damaged" in error_line(capsys, "detect", VAL, "--weights", damaged)
    assert "cannot read" in error_line(capsys, "eval", "--data", tmp_path / "none.json")
    assert "no such file or folder" in error_line(capsys, "eval", "--data", tmp_path / "none")
    assert "no option 'x'" in error_line(capsys, "eval", "--data", "shapes:test?length=1&x=1")
    assert "differ" in error_line(capsys, "eval", "--data", "shapes:test?length=1&size=32")
    assert "no such config" in error_line(capsys, "train", "--config", tmp_path / "none.yaml")
    misspelled = error_line(capsys, "train", "--config", "configs/tree_crown.yaml")
    assert misspelled.endswith("no such config file; did you mean configs/tree_crowns.yaml?")
    assert "NO_KEY" in error_line(capsys, "train", "--config", config, "SOLVER.NO_KEY", "1")
    error_line(capsys, "train", "--config", config, "SOLVER.MAX_ITER")
    error_line(capsys, "train", "--config", config, "SOLVER.MAX_ITER", "many")
    assert "none.json" in error_line(
        capsys, "train", "--config", config, "DATASETS.TRAIN", "[none.json]"
    )
    assert "NUM_CLASSES" in error_line(
        capsys, "train", "--config", config, "MODEL.ROI_BOX_HEAD.NUM_CLASSES", "5"
    )
    broken = tmp_path / "broken.yaml"
    broken.write_text("A: [1,\nB: {")
    error_line(capsys, "train", "--config", broken)
    assert "No such command" in error_line(capsys, "nonsense")
    assert "--nonsense" in error_line(capsys, "info", "--nonsense")
    error_line(capsys, "detect")
    error_line(capsys, "detect", VAL, "--score-threshold", "2")
    for command in (["detect", VAL, "--output", tmp_path], ["eval"], ["train", "--config", config]):
        error = error_line(capsys, *command, "--device", "gpu")
        assert "device: expected cpu, cuda or cuda:<number>, got 'gpu'" in error
        error = error_line(capsys, *command, "--device", "cuda:99")
        assert "CUDA devices, got cuda:99" in error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "there is not enough memory"),
        (MemoryError("of 3 TiB"), "there is not enough memory: of 3 TiB"),
        (ImportError("a.so: failed to map segment from shared object"), "not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"),
            "not enough memory: D",
        ),
        (SystemError("error return without exception set"), "not enough memory for an error: er"),
        (SyntaxError("expected ':' (schema.py, line 2)"), "a module is damaged, or there is not"),
        (ValueError("field 'target' is required for AnnAssign"), "not enough memory for a module"),
        (RuntimeError("operator torchvision::nms does not exist"), "another version of PyTorch"),
        (RuntimeError("of another kind"), "RuntimeError: of another kind (--debug shows where)"),
    ],
)
def test_cause_of_an_obscure_error_is_reported(capsys, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert cli.main(["info"]) == 1
    assert message in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys, tmp_path):
    assert cli.main(["eval", "--data", str(tmp_path / "none.json"), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.slow
def test_training_resumes_and_its_weights_detect(capsys, tmp_path, config):
    run = tmp_path / "run"
    train = ["train", "--config", str(config), "--output", str(run), "--device", "cpu"]
    assert cli.main([*train, "--half", *SHORT_RUN]) == 0, capsys.readouterr().err
    assert {file.name for file in run.iterdir()} == {
        *("checkpoint_000002.pt", "checkpoint_000003.pt", "checkpoint.pt"),
        *("metrics.jsonl", "results.json", "results.png", "weights.pt"),
    }
    capsys.readouterr()
    assert "--resume" in error_line(capsys, *train, *SHORT_RUN)
    assert cli.main([*train, "--resume", *SHORT_RUN, "SOLVER.MAX_ITER", "4"]) == 0
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").open()]
    assert steps == [1, 2, 3, 4]

    # After four steps a network finds little; the point is that it runs on a small image.
    Image.open(VAL).crop((0, 0, 130, 90)).save(tmp_path / "small.png")
    found = tmp_path / "found.json"
    command = ["detect", str(tmp_path / "small.png"), "--weights", str(run / "weights.pt")]
    options = ["--output", str(tmp_path), "--json", str(found), "--score-threshold", "0"]
    (tmp_path / "pictures").mkdir()
    options[1] = str(tmp_path / "pictures")
    assert cli.main([*command, *options]) == 0, capsys.readouterr().err
    (entry,) = json.loads(found.read_text())
    assert (entry["width"], entry["height"]) == (130, 90)
    assert Image.open(tmp_path / "pictures" / "small.png").size == (260, 180)


@pytest.fixture
def restore_nondeterminism():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_same_seed_trains_to_the_same_bits(capsys, tmp_path, config, restore_nondeterminism):
    files = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        run = tmp_path / name
        train = ["train", "--config", str(config), "--output", str(run), "--device", "cpu"]
        options = ["--deterministic", "--seed", seed, "SOLVER.ACCUMULATE", "2"]
        overrides = ["SOLVER.MAX_ITER", "2", "SOLVER.IMS_PER_BATCH", "2", "DATASETS.TEST", "[]"]
        assert cli.main([*train, *options, *overrides]) == 0, capsys.readouterr().err
        files.append((run / "checkpoint.pt").read_bytes())
    assert torch.are_deterministic_algorithms_enabled()
    assert files[0] == files[1] != files[2]


@pytest.mark.slow
def test_resume_without_a_checkpoint_starts_from_step_0(capsys, tmp_path, config):
    train = ["train", "--config", str(config), "--output", str(tmp_path / "run"), "--resume"]
    overrides = ["SOLVER.MAX_ITER", "1", "SOLVER.IMS_PER_BATCH", "1", "DATASETS.TEST", "[]"]
    assert cli.main([*train, "--device", "cpu", *overrides]) == 0
    assert "does not exist, training starts from step 0" in capsys.readouterr().err


@pytest.mark.slow
def test_masks_demo_draws_an_image_and_has_high_ap(capsys, tmp_path, monkeypatch):
    from detops import demo_masks

    monkeypatch.setattr(demo_masks, "EVALUATED_IMAGES", 20)
    image_path = tmp_path / "shapes.png"
    assert cli.main(["demo", "--masks", "--output", str(image_path)]) == 0, capsys.readouterr().err
    cells = capsys.readouterr().out.replace("│", " ").split()
    ap50 = {cells[i - 1]: float(cells[i + 1]) for i, w in enumerate(cells) if w == "AP50"}
    assert ap50["box"] >= 0.75 and ap50["mask"] >= 0.7
    width, height = Image.open(image_path).size
    assert width == 1200 and 800 < height < 900  # with a legend


@pytest.mark.slow
def test_shipped_detector_finds_tree_crowns(capsys, tmp_path):
    found, results = tmp_path / "found.json", tmp_path / "results.json"
    assert cli.main(["detect", str(VAL), "--output", str(tmp_path), "--json", str(found)]) == 0
    (entry,) = json.loads(found.read_text())
    assert 20 <= len(entry["detections"]) <= 200
    assert {detection["name"] for detection in entry["detections"]} == {"tree"}
    assert (tmp_path / "val.png").is_file()
    assert "detecting tree crowns in aerial photographs; " in capsys.readouterr().err
    assert cli.main(["eval", "--output", str(results)]) == 0, capsys.readouterr().err
    assert json.loads(results.read_text())["AP50"] >= 0.45


@pytest.mark.parametrize(
    "command",
    [
        *(
            [name]
            for name in "train eval detect export demo serve bench weights config info".split()
        ),
        *(["compat", name] for name in ("enable", "disable", "list")),
        ["data", "check"],
    ],
    ids=" ".join,
)
def test_help_examples_can_be_pasted(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*command, "--help"]) == 0
    text = capsys.readouterr().out.partition("For example:\n\n")[2]
    examples = re.split(r"\n(?:Arguments|Options):\n", text)[0].strip("\n").split("\n\n")
    for example in examples:
        *lines, last = example.splitlines()
        assert all(line.endswith(" \\") for line in lines) and not last.endswith("\\"), example
        assert all(len(line) <= 80 for line in (*lines, last)), example
        assert re.match(r" {6}(detops|torchrun|find) ", example), example
