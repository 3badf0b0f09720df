# SPDX-License-Identifier: MIT
"""Measures the benchmark cases."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch
from torch.utils.benchmark import Timer
from torch.utils.benchmark.utils.timer import timer as synchronised_clock

from . import (
    active_rotated_filter,
    border_align,
    box_coder,
    box_iou,
    box_iou_loss,
    carafe,
    chamfer_distance,
    corner_pool,
    deform_conv2d,
    deform_roi_pool,
    demo_ops,
    focal_loss,
    heatmaps_to_keypoints,
    linear_assignment,
    mask_iou,
    masked_conv2d,
    masks,
    ms_deform_attn,
    nms,
    point_sample,
    polygons,
    prroi_pool,
    riroi_align_rotated,
    roi_align,
    roi_align_max,
    roi_align_rotated,
    roi_pool,
    rotated,
    rotated_feature_align,
    soft_nms,
    weighted_box_fusion,
    winograd_conv2d,
)
from .case import Call, Case

MODULES = (
    nms,
    soft_nms,
    weighted_box_fusion,
    rotated,
    roi_align,
    roi_align_rotated,
    riroi_align_rotated,
    roi_align_max,
    border_align,
    prroi_pool,
    roi_pool,
    deform_roi_pool,
    deform_conv2d,
    ms_deform_attn,
    point_sample,
    carafe,
    corner_pool,
    rotated_feature_align,
    active_rotated_filter,
    masked_conv2d,
    winograd_conv2d,
    polygons,
    box_iou,
    box_iou_loss,
    box_coder,
    linear_assignment,
    focal_loss,
    chamfer_distance,
    masks,
    mask_iou,
    heatmaps_to_keypoints,
    demo_ops,
)
MIN_SECONDS = 0.4  # minimum measurement per time: several calls, or one long call
WARM_UP_SECONDS = 0.15
# A time is measured again if its interquartile range exceeds this fraction of the median, or if
# more threads take longer than fewer: both suggest that other processes interfered.
MAX_SCATTER, MAX_SLOWDOWN, MAX_TRIES = 0.1, 1.1, 4
COPY_SIZE = 1 << 26  # floats, far beyond any cache
MATMUL_SIDE = 2048  # side of the matrices
GPU_FACTOR = 4  # factor for both on a GPU, to hide the launch overhead
T = TypeVar("T")


@dataclass
class Machine:
    """The device, and its peak bandwidth and arithmetic rate by thread count."""

    name: str
    versions: dict[str, str]
    bandwidth: dict[int, float] = field(default_factory=dict)  # bytes per second, read plus written
    peak: dict[int, float] = field(default_factory=dict)  # float32 operations per second
    device: str = "cpu"  # cpu or cuda


@dataclass
class Result:
    """Median times in seconds by thread count; empty for an implementation that does not exist."""

    case: Case
    ours: dict[int, float]
    torchvision: dict[int, float]
    pytorch: dict[int, float]


def module_name(module: ModuleType) -> str:
    """Returns the name that selects a module's benchmarks."""
    return module.__name__.rpartition(".")[2]


def has_cases(module: ModuleType, name: str) -> bool:
    """Returns whether ``name`` is the module's name, or matches the start of one of its ops."""
    prefix = re.split("[ ,]", name)[0]
    return name == module_name(module) or any(op.startswith(prefix) for op in module.OPS)


def all_cases(device: torch.device, ops: Iterable[str] = (), quick: bool = False) -> Iterator[Case]:
    """Yields cases selected by ``ops``: module names or prefixes of op names; empty for all.

    ``quick`` selects a subset.
    """
    selected = tuple(ops)
    for module in MODULES:
        # Skips modules early: their inputs can take hundreds of megabytes to generate.
        if selected and not any(has_cases(module, name) for name in selected):
            continue
        whole_module = not selected or module_name(module) in selected
        for case in module.cases(device):
            if (whole_module or case.op.startswith(selected)) and (case.quick or not quick):
                yield case


def steadiest(measure_once: Callable[[], T], scatter: Callable[[T], float]) -> T:
    """Measures up to `MAX_TRIES` times until the scatter is small, and returns the steadiest try.

    Args:
        measure_once: measures once.
        scatter: returns the interquartile range of a try as a fraction of the median.
    """
    tries = [measure_once()]
    while scatter(tries[-1]) > MAX_SCATTER and len(tries) < MAX_TRIES:
        tries.append(measure_once())
    return min(tries, key=scatter)


def _median(call: Call, threads: int) -> float:
    # The first calls pay for memory allocation, cold caches and low clock rates.
    torch.set_num_threads(threads)
    began = synchronised_clock()
    call()
    while synchronised_clock() - began < WARM_UP_SECONDS:
        call()
    timer = Timer("call()", globals={"call": call}, num_threads=threads)
    timing = steadiest(
        lambda: timer.blocked_autorange(min_run_time=MIN_SECONDS),
        lambda timing: timing.iqr / timing.median,
    )
    return timing.median


def measure(case: Case, threads: Iterable[int]) -> Result:
    """Times torchvision, our op and plain PyTorch for each thread count."""
    result = Result(case, {}, {}, {})
    before = torch.get_num_threads()
    try:
        for count in threads:
            if case.torchvision is not None:
                result.torchvision[count] = _median(case.torchvision, count)
            result.ours[count] = _median(case.ours, count)
            if result.ours[count] > MAX_SLOWDOWN * min(result.ours.values()):
                result.ours[count] = min(result.ours[count], _median(case.ours, count))
            if case.pytorch is not None:
                result.pytorch[count] = _median(case.pytorch, count)
    finally:
        torch.set_num_threads(before)
    return result


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        name = found.group(1) if found else name
    from .. import _C

    return f"{name.strip()}, {_C.cpu_isa()}"


def describe_machine(device: torch.device) -> Machine:
    """Returns the names and versions, without measuring."""
    import torchvision

    from .. import __version__

    versions = {
        "detops": __version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "python": platform.python_version(),
    }
    return Machine(_device_name(device), versions, device=device.type)


def measure_machine(device: torch.device, threads: Iterable[int]) -> Machine:
    """Measures bandwidth with a large copy, and peak with a large matrix product."""
    machine = describe_machine(device)
    copy_size, side = COPY_SIZE, MATMUL_SIDE
    if device.type == "cuda":
        copy_size, side = GPU_FACTOR * copy_size, GPU_FACTOR * side
    source, target = torch.ones(copy_size, device=device), torch.empty(copy_size, device=device)
    a = torch.rand(side, side, device=device)
    before = torch.get_num_threads()
    for count in threads:
        machine.bandwidth[count] = 2 * 4 * copy_size / _median(lambda: target.copy_(source), count)
        machine.peak[count] = 2 * side**3 / _median(lambda: torch.mm(a, a), count)
    torch.set_num_threads(before)
    return machine
