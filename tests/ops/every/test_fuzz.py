"""The fuzzer: a short run, its earlier findings, and defects that it must detect."""

import json
import os
import random
import subprocess
import sys
import time

import fuzz.check
import fuzz.files
import fuzz.run
import fuzz.server
import fuzz.worker
import pytest
import torch
from fuzz import contents
from fuzz.case import TAME, WILD, bytes_of, from_json, tensors_of, to_json
from fuzz.check import ROUNDING_SENSITIVE, Finding, check, check_float64, outcome, require_close
from fuzz.draw import draw
from fuzz.files import LOADERS, check_file
from fuzz.oracles import REFERENCES, compare
from fuzz.table import FILES, PLAIN, UNDER_SANITIZERS, publish
from fuzz.values import LAYOUTS, expanded, fill_between, overlapping
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import ROOT, SUPPORT, environment
from raw_calls import schema_ops

import detops

FINDINGS = sorted((SUPPORT / "fuzz" / "finds").glob("*.json"))
pytestmark = pytest.mark.skipif(detops._C.emulated, reason="compares CPU kernels")


@pytest.fixture(autouse=True)
def _compare_under_sanitizers(monkeypatch):
    """Compares everything under the sanitizers, too."""
    monkeypatch.setattr(fuzz.check, "SANITIZED", False)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_short_fuzzing_run_finds_no_failures(tmp_path):
    """Runs eight cases of every op in a separate process."""
    command = ["--cases", 8 * len(schema_ops()), "--seed", 1_000_000, "--finds", tmp_path]
    result = subprocess.run(
        [sys.executable, "-m", "fuzz.run", *map(str, command)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(op=st.sampled_from(schema_ops()), rng=st.randoms(use_true_random=False))
def test_any_drawn_call_passes_the_checks(op, rng):
    """Hypothesis shrinks a failing call to a smaller and tamer one."""
    check(draw(op, 0, rng=rng))


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_earlier_findings_stay_fixed(path):
    fuzz.run.repeat(path)


@pytest.mark.parametrize("op", ["nms", "multiscale_roi_align_forward", "deform_conv_forward"])
def test_seed_and_file_reproduce_a_case(op):
    for seed in range(20):
        stored = json.dumps(to_json(draw(op, seed)))
        assert stored == json.dumps(to_json(draw(op, seed)))
        assert stored == json.dumps(to_json(from_json(json.loads(stored))))


@pytest.mark.parametrize("op", [op for op in schema_ops() if not op.startswith(ROUNDING_SENSITIVE)])
def test_tame_calls_are_compared_with_float64(op):
    has_floating_results = False
    for seed in range(40):
        case = draw(op, seed, TAME)
        found = outcome(op, case.args)
        if isinstance(found, str) or not any(t.is_floating_point() and t.numel() for t in found):
            continue
        has_floating_results = True
        if check_float64(case, found):
            return
    assert not has_floating_results


def test_ops_accept_most_tame_cases():
    """A case that an op rejects early says little about its kernel."""
    accepted = {op: 0 for op in schema_ops()}
    for op in schema_ops():
        for seed in range(6):
            case = draw(op, seed, mood=TAME)
            try:
                getattr(torch.ops.detops, op)(**case.args)
            except RuntimeError:
                continue
            accepted[op] += 1
    assert min(accepted.values()) > 0 and sum(accepted.values()) > 0.95 * 6 * len(schema_ops()), (
        accepted
    )


@pytest.mark.parametrize("layout", [f for f in LAYOUTS if f is not expanded])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1, 4), (2, 3, 1, 5), (0, 2**40)])
def test_layouts_keep_the_values(layout, shape):
    dense = torch.rand(shape) if 0 not in shape else torch.empty(shape)
    x = layout(dense.clone(), random.Random(0))
    assert torch.equal(x, dense)
    fill_between([x], 0x7F)
    assert torch.equal(x, dense)


def test_fill_overwrites_memory_between_elements():
    x = torch.zeros(4, 6)[1:3, ::2].fill_(1)
    fill_between([x], 0x7F)
    memory = bytes_of(x).view(torch.float32).view(4, 6)
    assert x.eq(1).all() and (memory > 1e38).sum() == 24 - 6


def test_fill_overwrites_memory_unused_by_overlapping_rows():
    """The memory is as large as for a dense tensor, but the rows use only part of it."""
    x = overlapping(torch.ones(3, 4), random.Random(0))
    fill_between([x], 0x7F)
    memory = bytes_of(x).view(torch.float32)
    assert x.eq(1).all() and (memory > 1e38).sum() == 12 - 6


def test_check_restores_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check(draw("axpy_forward", 0, mood=TAME))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_cases_reach_every_reference():
    def reached(op):
        for seed in range(200):
            case = draw(op, seed, mood=TAME)
            found = fuzz.check.outcome(op, case.args)
            if not isinstance(found, str) and compare(case, found, require_close):
                return True
        return False

    assert {op for op in REFERENCES if reached(op)} == set(REFERENCES)


# Each function breaks one promise of axpy_forward.
def _modifies_its_input(x, y, alpha):
    x.mul_(2)
    return alpha * x + y


FRESH = [0]  # values of memory before an op writes it


def _forgets_to_write(x, y, alpha):
    found = alpha * x + y
    found[0] = FRESH[-1]
    return found


def _reads_memory_between_elements(x, y, alpha):
    return bytes_of(x).view(x.dtype).clone()


def _depends_on_thread_count(x, y, alpha):
    return alpha * x + y + torch.get_num_threads()


def _depends_on_the_instruction_set(x, y, alpha):
    return alpha * x + y + len(detops._C.cpu_isa())


def _subtracts(x, y, alpha):
    return alpha * x - y


def _is_wrong_in_float32(x, y, alpha):
    return alpha * x + y + (x.dtype == torch.float32)


def _raises_without_op_name(x, y, alpha):
    raise RuntimeError("something is wrong")


def _returns_another_size(x, y, alpha):
    return (alpha * x + y)[..., None]


def _returns_nan(x, y, alpha):
    return (alpha * x + y) * float("nan")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_modifies_its_input, "the op modified an input"),
        (_forgets_to_write, "another fill of unused memory"),
        (_reads_memory_between_elements, "another fill of unused memory"),
        (_depends_on_thread_count, "on two threads"),
        (_depends_on_the_instruction_set, "on (baseline|avx2|avx512)"),
        (_subtracts, "compared with the reference"),
        (_is_wrong_in_float32, "compared with float64"),
        (_raises_without_op_name, "RuntimeError: something is wrong"),
        (_returns_another_size, "eager .* fake"),
        (_returns_nan, "NaN from finite values"),
    ],
)
def test_check_detects_a_broken_op(monkeypatch, broken, message):
    if broken is _depends_on_the_instruction_set and len(fuzz.check.isas()) < 2:
        pytest.skip("this processor has one instruction set")
    case = draw("axpy_forward", 0, mood=TAME)
    x = torch.zeros(30)[::3].copy_(torch.linspace(1, 2, 10))
    case.args = {"x": x, "y": torch.linspace(3, 4, 10), "alpha": 2.0}
    check(case)
    if broken is not _subtracts:
        monkeypatch.setattr(fuzz.check, "compare", lambda *_: None)
    if broken is not _is_wrong_in_float32:
        monkeypatch.setattr(fuzz.check, "check_float64", lambda *_: None)
    if broken is _reads_memory_between_elements:
        monkeypatch.setattr(fuzz.check, "check_fake", lambda *_: None)
    monkeypatch.setattr(fuzz.check, "fill_fresh_memory", FRESH.append)
    monkeypatch.setattr(fuzz.check, "call", lambda op, args: broken(**args))
    with pytest.raises(Finding, match=message):
        check(case)


def test_check_detects_nms_that_depends_on_box_order(monkeypatch):
    case = draw("nms", 0, mood=TAME)
    boxes = torch.arange(10.0)[:, None] + torch.tensor([0.0, 0, 4, 4])
    case.args = {"boxes": boxes, "scores": torch.linspace(0, 1, 10), "iou_threshold": 0.5}
    case.args |= {"score_threshold": None, "max_output": None}
    check(case)
    monkeypatch.setattr(fuzz.check, "call", lambda op, args: torch.arange(len(args["boxes"])))
    monkeypatch.setattr(fuzz.check, "compare", lambda *_: None)
    with pytest.raises(Finding, match="the order of the boxes changes which are kept"):
        check(case)


CRASHING_WORKER = """
import os, sys, time
from fuzz.worker import CURRENT_CASE
with open(sys.argv[2], "r+b") as file:
    file.write(CURRENT_CASE.pack(7, {began}))
{end}
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("began", "end", "status"), [("time.time()", "os.abort()", -6), ("0", "time.sleep(60)", -9)]
)
def test_crashed_or_hung_process_is_reported_with_its_case(
    monkeypatch, tmp_path, capsys, began, end, status
):
    worker = [sys.executable, "-c", CRASHING_WORKER.format(began=began, end=end)]
    monkeypatch.setattr(fuzz.run, "WORKER", worker)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    current = tmp_path / "current"
    current.write_bytes(bytes(fuzz.run.CURRENT_CASE.size))
    run = fuzz.run.Run(["nms", "axpy"], tmp_path)
    assert run.one_process(3, 1e12, 10, current) == 8
    (finding,) = run.findings
    assert finding["op"] == "axpy" and f"exited with status {status}" in finding["what"]
    assert 'make fuzz SEED=7 CASES=1 OPS="nms axpy"' in capsys.readouterr().out
    stored = from_json(json.loads((tmp_path / "axpy-7.json").read_text()))
    assert stored.op == "axpy" and len(tensors_of(stored.args)) == 2


@pytest.mark.exhaustive
def test_parallel_processes_split_the_case_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    run = fuzz.run.Run(["axpy", "box_area", "box_iou"], tmp_path)
    run.work_in_parallel(2, seed=10, minutes=10, cases=9)
    assert {name: cases for name, (cases, _) in run.counts.items()} == dict.fromkeys(run.names, 3)
    assert not run.findings


def test_memory_growth_is_reported_with_all_cases_run(monkeypatch, tmp_path, capsys):
    sizes = iter((0, 1 << 40))
    monkeypatch.setattr(fuzz.worker, "resident", lambda: next(sizes))
    worker = fuzz.worker.Worker(bytearray(fuzz.worker.CURRENT_CASE.size), ["axpy"], sanitized=False)
    worker.work(3, time.time() + 600, 8)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (finding,) = [line for line in lines if "what" in line]
    fuzz.run.Run(["axpy"], tmp_path).record(finding)
    out = capsys.readouterr().out
    assert "memory grew" in out and 'make fuzz SEED=3 CASES=8 OPS="axpy"' in out


def test_reliability_data_lists_every_op():
    counts = json.loads((ROOT / "docs" / "reliability-figures.json").read_text())
    assert sorted(counts["plain"]) == schema_ops()


def test_publish_writes_the_numbers_of_cases(tmp_path):
    page = tmp_path / "page.md"
    marks = "".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in ("cases", FILES))
    page.write_text(f"Cases.\n\n{marks}\nMore.\n")
    publish(page, {"nms": [1500, 1200], "axpy": [500, 500]}, PLAIN)
    publish(page, {"nms": [40, 40]}, UNDER_SANITIZERS)
    publish(page, {"nms": [2, 2]}, UNDER_SANITIZERS, accumulate=True)
    publish(page, {"image": [20, 5]}, FILES)
    lines = page.read_text().splitlines()
    assert "| `nms` | 1,500 | 80% | 42 |" in lines and "| all | 2,000 | 85% | 42 |" in lines
    assert "| image | 20 | 25% |" in lines and "| all | 20 | 25% |" in lines
    assert lines[0] == "Cases." and lines[-1] == "More."
    counts = json.loads((tmp_path / "page.json").read_text())
    assert counts["plain"]["axpy"] == [500, 500] and counts["sanitized"] == {"nms": [42, 42]}


def test_some_wild_cases_raise_a_detops_error():
    messages = []
    for seed in range(60):
        try:
            fuzz.check.call("nms", draw("nms", seed, mood=WILD).args)
        except RuntimeError as error:
            messages.append(str(error))
    assert len(messages) > 5 and all("detops" in message for message in messages)


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files_are_read_or_rejected_without_harm(name):
    accepted = [check_file(seed, name) for seed in range(2_000_000, 2_000_030)]
    assert not all(accepted)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: os.system("true"), "caused .*os.system"),
        (lambda path: subprocess.run(["true"]), "caused .*subprocess.Popen"),
        (lambda path: path.with_name("other").write_text("x"), "caused .*open"),
        (lambda path: exec("1"), "caused .*exec"),
        (lambda path: 1 / 0, "ZeroDivisionError"),
        (lambda path: b"x" * (100 << 20), r"used \d+ MiB"),
    ],
)
def test_check_file_detects_harm(monkeypatch, harm, message):
    _ = b"x" * (200 << 20)  # an earlier peak above the later ones
    monkeypatch.setattr(fuzz.files, "MAX_GROWTH", 80 << 20)
    loader = LOADERS["config"]._replace(load=fuzz.files.recorded(harm))
    monkeypatch.setitem(LOADERS, "config", loader)
    monkeypatch.setattr(fuzz.files, "_prepare", lambda name: None)
    with pytest.raises(Finding, match=message):
        check_file(0, "config")


def test_read_detects_a_failing_server(monkeypatch):
    detect, rng = contents.requests()[0], random.Random(0)
    assert fuzz.files.read("request", detect, rng)
    monkeypatch.setattr(fuzz.server._Finds, "forward", lambda *_: 1 / 0)
    with pytest.raises(Finding, match="RuntimeError: HTTP/1.1 500"):
        fuzz.files.read("request", detect, rng)
