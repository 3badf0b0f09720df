import json
import math

import pytest
import reference
import torch

import detops
from detops import cli
from detops.bench import run as bench_run
from detops.bench.case import Case, clustered, plain_iou
from detops.bench.nms import plain_nms
from detops.bench.report import markdown, to_json
from detops.bench.roi_align import plain_roi_align
from detops.bench.run import Machine, Result


def test_plain_versions_compute_the_same():
    generator = torch.Generator().manual_seed(0)
    boxes, scores = clustered(generator, 300)
    assert torch.equal(plain_nms(boxes, scores, 0.5), detops.nms(boxes, scores, 0.5))
    torch.testing.assert_close(plain_iou(boxes, boxes), detops.box_iou(boxes, boxes))
    x = torch.randn(1, 3, 20, 30, generator=generator)
    rois = torch.cat([torch.zeros(40, 1), reference.random_boxes(40)], 1)
    ours = detops.roi_align(x, rois, 7, 0.25, 2)
    torch.testing.assert_close(plain_roi_align(x, rois, 7, 0.25, 2), ours)


def test_every_case_runs_once_and_agrees(monkeypatch):
    """All cases but the largest; the calls that are compared must do the same work."""
    seen = set()
    for case in bench_run.all_cases(torch.device("cpu"), quick=True):
        seen.add(case.op)
        ours = case.ours()
        for other in (case.torchvision, case.pytorch):
            if other is None:
                continue
            if other is case.pytorch and case.op.startswith("deform_conv2d"):
                continue  # a plain convolution, for comparison of time alone
            theirs = other()
            if case.op == "batched_nms":  # torchvision's order among ties is not stable
                assert set(ours.tolist()) == set(theirs.tolist())
                continue
            pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
            for x, y in pairs:
                if x.dtype == torch.int64:
                    assert torch.equal(x, y)
                else:
                    atol = 1e-4 * max(1.0, y.abs().max().item())
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=atol)
    assert {"nms", "batched_nms", "roi_align forward", "roi_align backward", "box_iou"} <= seen


def machine():
    return Machine("A device, avx2", {"torch": "1.0"}, {1: 1e9, 2: 2e9}, {1: 1e10, 2: 2e10})


def test_report():
    case = Case("box_iou", "9 x 9", len, bytes=1_000_000, flops=100)
    result = Result(case, {1: 0.002, 2: 0.001}, {1: 0.1, 2: 0.05}, {1: 0.4})
    table = markdown(machine(), [result, Result(case, {1: 0.5, 2: 0.5}, {}, {})])
    assert (
        "| `box_iou` | 9 x 9 |  | float32 | 400 | 100 | 2 | **50x** | 1 (50%) | 1 | 2.00x |"
        in table
    )
    assert "| - | - | 500 | - | 1 (0%) | 500 | 1.00x |" in table
    data = json.loads(json.dumps(to_json(machine(), [result])))
    assert math.isclose(data["results"][0]["limit"]["1"], 0.001)


def test_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_run, "LEAST_SECONDS", 1e-4)
    monkeypatch.setattr(bench_run, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(bench_run, "COPIED", 1000)
    monkeypatch.setattr(bench_run, "MULTIPLIED", 8)
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- benchmarks: begin -->\nold\n<!-- benchmarks: end -->\nz\n")
    arguments = ["bench", "box_iou", "--threads", "1", "--quick", "--output", str(tmp_path)]
    assert cli.main([*arguments, "--readme", str(readme)]) == 0
    assert "box_iou" in capsys.readouterr().out
    text = readme.read_text()
    assert text.startswith("a\n") and text.endswith("-->\nz\n")
    assert "`box_iou`" in text and "old" not in text
    (written,) = tmp_path.glob("*.json")
    assert json.loads(written.read_text())["results"]
    assert (tmp_path / "times.svg").exists() and (tmp_path / "speedups.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["soup"], "no benchmark of soup; there are those of nms, soft_nms"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--readme", "{tmp}/empty.md"], "no <!-- benchmarks: begin -->"),
    ],
)
def test_bad_usage(arguments, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_run, "LEAST_SECONDS", 1e-4)
    monkeypatch.setattr(bench_run, "COPIED", 1000)
    monkeypatch.setattr(bench_run, "MULTIPLIED", 8)
    (tmp_path / "empty.md").write_text("")
    assert cli.main(["bench", *(a.format(tmp=tmp_path) for a in arguments)]) == 2
    assert message in capsys.readouterr().err
