import itertools
import json
import math
import re
from types import SimpleNamespace

import pytest
import reference
import torch

import detops
from detops import cli
from detops.bench import (
    corner_calls,
    corner_pool,
    corner_report,
    corners,
    demo_ops,
    point_sample,
)
from detops.bench import run as bench_run
from detops.bench.case import Case, clustered, plain_iou
from detops.bench.nms import plain_nms
from detops.bench.report import bars, markdown, op_family, to_json
from detops.bench.roi_align import plain_roi_align
from detops.bench.run import Machine, Result


def test_pytorch_baselines_give_the_same_results():
    generator = torch.Generator().manual_seed(0)
    boxes, scores = clustered(generator, 300)
    assert torch.equal(plain_nms(boxes, scores, 0.5), detops.nms(boxes, scores, 0.5))
    torch.testing.assert_close(plain_iou(boxes, boxes), detops.box_iou(boxes, boxes))
    x = torch.randn(1, 3, 20, 30, generator=generator)
    rois = torch.cat([torch.zeros(40, 1), reference.random_boxes(40)], 1)
    ours = detops.roi_align(x, rois, 7, 0.25, 2)
    torch.testing.assert_close(plain_roi_align(x, rois, 7, 0.25, 2), ours)


@pytest.mark.exhaustive
def test_every_case_runs_once_and_agrees(monkeypatch):
    """Runs all cases except the largest; compared calls must do the same work."""
    ops = set()
    for case in bench_run.all_cases(torch.device("cpu")):
        assert op_family(case.op) != "Others"
        ops.add(re.split("[ ,]", case.op)[0])
        if not case.quick:
            continue
        ours = case.ours()
        for other in (case.torchvision, case.pytorch):
            if other is None:
                continue
            if other is case.pytorch and case.op.startswith("deform_conv2d"):
                continue  # a plain convolution, only compared in time
            theirs = other()
            if case.op == "batched_nms":  # torchvision orders ties unstably
                assert set(ours.tolist()) == set(theirs.tolist())
                continue
            if case.op.startswith("masks_to_rle"):  # pycocotools returns bytes
                assert ours == [{**mask, "counts": mask["counts"].decode()} for mask in theirs]
                continue
            if case.op.startswith("linear_assignment"):  # SciPy returns rows and columns
                for objects, (queries, chosen) in zip(ours, theirs, strict=True):
                    assert torch.equal(objects[objects >= 0], chosen)
                    assert torch.equal((objects >= 0).nonzero()[:, 0], queries)
                continue
            if case.op == "min_area_polygons":  # rectangles of the same area may differ
                corners = [x.view(-1, 4, 2) for x in (ours, theirs)]
                sides = [(x.roll(-1, 1) - x).norm(dim=2) for x in corners]
                ours, theirs = ((x[:, 0] * x[:, 1]) for x in sides)
            pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
            for x, y in pairs:
                if x.dtype in (torch.int64, torch.bool):
                    assert torch.equal(x, y)
                else:
                    atol = 1e-4 * max(1.0, y.abs().max().item())
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=atol)
    assert ops == {op for module in bench_run.MODULES for op in module.OPS}


def machine():
    return Machine("A device, avx2", {"torch": "1.0"}, {1: 1e9, 2: 2e9}, {1: 1e10, 2: 2e10})


def test_report_shows_times_and_speedups():
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


def test_each_series_of_bars_has_a_colour_and_a_legend_entry(tmp_path):
    pytest.importorskip("matplotlib")
    ratios = {
        "one": {"nms": [2.0, 3.0], "roi": [4.0]},
        "two": {"roi": [5.0]},
        "three": {"x": [6.0]},
    }
    text = bars(ratios, tmp_path / "bars.svg", "ratio").read_text()
    assert [len(re.findall(f">{series}</text>", text)) for series in ratios] == [1, 1, 1]
    legend = text[text.index('id="legend_1"') :]
    assert len(set(re.findall("fill: (#[0-9a-f]{6})", legend)) - {"#ffffff"}) == 3


def test_op_without_a_family_belongs_to_others():
    assert op_family("soup") == "Others"


def test_scattered_time_is_measured_again(monkeypatch):
    measurements = iter([(1.0, 0.5), (3.0, 0.6), (2.0, 0.1)])

    class Timer:
        def __init__(self, *args, **kwargs):
            pass

        def blocked_autorange(self, min_run_time):
            median, iqr = next(measurements)
            return SimpleNamespace(median=median, iqr=iqr)

    monkeypatch.setattr(bench_run, "Timer", Timer)
    monkeypatch.setattr(bench_run, "WARM_UP_SECONDS", 0.0)
    before = torch.get_num_threads()
    assert bench_run._median(lambda: None, 1) == 2.0
    torch.set_num_threads(before)
    assert not list(measurements)


def test_slowdown_with_more_threads_is_measured_again(monkeypatch):
    measurements = iter([1.0, 5.0, 0.6])
    monkeypatch.setattr(bench_run, "_median", lambda call, threads: next(measurements))
    result = bench_run.measure(Case("box_iou", "9 x 9", len), [1, 2])
    assert result.ours == {1: 1.0, 2: 0.6}


@pytest.mark.slow
def test_bench_command_writes_a_report_and_plots(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_run, "MIN_SECONDS", 1e-4)
    monkeypatch.setattr(bench_run, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(bench_run, "COPY_SIZE", 1000)
    monkeypatch.setattr(bench_run, "MATMUL_SIDE", 8)
    arguments = ["bench", "box_iou", "--threads", "1", "--quick", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert "`box_iou`" in capsys.readouterr().out
    (report,) = tmp_path.glob("*.json")
    assert json.loads(report.read_text())["results"]
    assert {path.name for path in tmp_path.glob("*.svg")} == {"times.svg", "speedups-boxes.svg"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nms", "soup"], "no benchmark of soup; expected one of nms, soft_nms"),
        (["nms backward"], "no benchmark of nms backward; expected one of nms, soft_nms"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
    ],
)
def test_invalid_bench_arguments_are_rejected(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(bench_run, "MIN_SECONDS", 1e-4)
    monkeypatch.setattr(bench_run, "COPY_SIZE", 1000)
    monkeypatch.setattr(bench_run, "MATMUL_SIDE", 8)
    assert cli.main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("op", corners.OPS)
def test_corners_cover_every_feasible_pair(op):
    rows, missing = corners.covering(op)
    assert all(corners.feasible(row) for row in rows)
    covered = {
        f"{a} {getattr(row, a)} with {b} {getattr(row, b)}"
        for row in rows
        for a, b in itertools.combinations(corners.LEVELS, 2)
    }
    all_pairs = {
        f"{a} {x} with {b} {y}"
        for a, b in itertools.combinations(corners.LEVELS, 2)
        for x in corners.LEVELS[a]
        for y in corners.LEVELS[b]
    }
    infeasible = {
        pair for pair in all_pairs for gap in missing if pair == gap or gap in pair.split(" with ")
    }
    assert covered | infeasible == all_pairs and not covered & infeasible
    assert len(missing) == len(set(missing)) < 10


@pytest.mark.slow
@pytest.mark.parametrize("op", corners.OPS)
def test_value_missing_from_all_rows_is_reported_in_one_line(op):
    missing = corners.covering(op)[1]
    single_values = [gap for gap in missing if " with " not in gap]
    assert single_values == [gap for op_name, gap in corners.UNSUPPORTED if op_name == op]
    for gap in missing:
        assert gap in single_values or not set(gap.split(" with ")) & set(single_values)
    lines = corners.gaps(op)
    assert len(lines) == len(missing)
    assert all(f"`{op}`: {corners.UNSUPPORTED[op, gap]}" in lines for gap in single_values)


@pytest.mark.parametrize("op", corners.OPS)
def test_corner_calls_do_the_same_work(op):
    for corner in corners.corners((op,)):
        if corner.op != op or (op == "ps_roi_pool" and corner.extent == "whole"):
            continue  # torchvision's ps_roi_pool includes the last row and column
        ours, theirs = (call() for call in corner_calls.calls(corners.shrunk(corner)))
        tolerance = 1e-4 if corner.dtype == "float32" else 2e-2
        ours, theirs = (x if isinstance(x, (list, tuple)) else (x,) for x in (ours, theirs))
        for x, y in zip(ours, theirs, strict=False):  # without further outputs
            if x.dtype != torch.int32:
                atol = tolerance * max(1.0, y.abs().max().item())
                torch.testing.assert_close(x, y, rtol=tolerance, atol=atol)


def test_tiny_corner_calls_do_the_same_work():
    for case in corner_calls.tiny():
        ours, theirs = case.ours(), case.torchvision()
        if isinstance(ours, torch.Tensor):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_corners_command_writes_a_table(monkeypatch, tmp_path, capsys):
    corner_rows = [corners.shrunk(row) for row in corners.covering("roi_pool")[0][:3]]
    monkeypatch.setattr(corner_report, "corners", lambda only: corner_rows)
    monkeypatch.setattr(corner_report, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(corner_report, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(corner_report, "peak_memory", lambda call: 3 << 20)
    arguments = ["bench", "corners", "--only", "roi_pool", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    (report,) = tmp_path.glob("corners-*.json")
    rows = json.loads(report.read_text())["results"]
    assert len(rows) == 3 and all(row["memory"] == 1 for row in rows)
    table = report.with_suffix(".md").read_text()
    assert "`roi_pool " in table and "no row has rois 1000 with size 512" in table
    assert cli.main(["bench", "corners", "--quick"]) == 2
    assert "expected no option but --only and --output" in capsys.readouterr().err
    assert cli.main(["bench", "nms", "--only", "nms"]) == 2


def test_corner_is_below_if_slower_beyond_noise_or_using_more_memory():
    row = corner_report.Row("roi_align", "x", "NCHW", "float32", 1.0, 0.95, (0.9, 1.05))
    assert not row.below and row.memory is None
    row.spread = (0.94, 0.96)
    assert row.below
    memory_hungry = corner_report.Row(
        "a", "b", "", "float32", 1.0, 2.0, (2.0, 2.0), 5 << 20, 2 << 20
    )
    assert memory_hungry.memory == 2.5 and memory_hungry.below


def test_benchmarks_are_selected_by_op_or_module_name(monkeypatch):
    monkeypatch.setattr(bench_run, "MODULES", (point_sample, corner_pool, demo_ops))
    cases = bench_run.all_cases(torch.device("cpu"), ["corner_pool forward", "demo_ops"])
    assert {"corner_pool forward", "mlp both"} <= (ops := {case.op for case in cases})
    assert not {"point_sample forward", "corner_pool backward"} & ops
