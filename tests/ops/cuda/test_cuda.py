"""GPU features: streams, graphs, devices, synchronisation. Every op agrees with the CPU.

The calls come from calls.py. A test with a ``device`` also runs on the CPU and in emulation.
"""

import re
from functools import partial

import cuda_smoke
import pytest
import torch
from calls import CALLS, kernel_ops
from cuda_smoke import same_bits
from needs import NEEDS_GPU
from torch.utils._python_dispatch import TorchDispatchMode

import detops
from detops.bench.case import clustered

SLEEP = 30_000_000  # cycles: more than ten milliseconds, far longer than starting a call

every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
asynchronous_calls = pytest.mark.parametrize(
    "call", [call for call in CALLS if not call.synchronisations], ids=lambda call: call.name
)


class OpRecorder(TorchDispatchMode):
    """Records the names of the detops ops that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "detops":
            self.names.add(func._schema.name.removeprefix("detops::"))
        return func(*args, **(kwargs or {}))


def test_calls_reach_every_kernel():
    with OpRecorder() as seen:
        for call in CALLS:
            results = call.results(call.tensors())
            assert any(r.numel() and r.any() for r in results), call.name
    # Under a dispatch mode, gdh is composed of ATen ops.
    assert seen.names >= kernel_ops() - {"gdh_forward"}


def test_sanitizer_script_reports_every_call(tmp_path, capsys):
    assert cuda_smoke.main(["--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"{len(CALLS)} calls\n"
    # A call missing from the report would pass for a success.
    assert cuda_smoke.main(["--device", "cpu", "--report", str(tmp_path / "r"), "--runs", "2"]) == 0
    assert set((tmp_path / "r").read_text().split('"')) >= {call.name for call in CALLS}


@every_call
def test_every_run_gives_the_same_bits(call, device):
    assert cuda_smoke.repeats(call, device, runs=5)


@every_call
def test_deterministic_algorithms_give_the_same_bits(call, device, poison):
    tensors = call.tensors(device)
    strict = call.results(tensors)
    torch.use_deterministic_algorithms(False)
    assert same_bits(strict, call.results(tensors))


@every_call
def test_tensors_on_different_devices_raise(call, device):
    other = "cpu" if device == "cuda" else "meta"
    tensors = call.tensors(device)
    for name in tensors if len(tensors) > 1 else ():
        if name in ("spatial_shapes", "level_start_index"):  # may be on the CPU
            continue
        moved = tensors | {name: tensors[name].detach().to(other)}
        with pytest.raises(RuntimeError, match=r"detops\.\w+: \S+ must be on the device") as caught:
            call.forward(moved)
        assert re.search(rf"\b{name.split('[')[0]}\b", str(caught.value))


def assert_agree(ours, expected):
    """Asserts equal integers, and floats that differ by some roundings of the largest element."""
    for one, other in zip(ours, expected, strict=True):
        assert one.dtype == other.dtype
        if not one.is_floating_point():
            assert torch.equal(one.cpu(), other.cpu())
            continue
        scale = max(1.0, other.double().abs().max().item()) if other.numel() else 1.0
        roundings = 64 if one.dtype == torch.float32 else 2  # half types are rounded at the end
        torch.testing.assert_close(
            one.double().cpu(),
            other.double().cpu(),
            rtol=0,
            atol=roundings * torch.finfo(one.dtype).eps * scale,
        )


@NEEDS_GPU
@every_call
def test_gpu_results_agree_with_the_cpu(call):
    ours, expected = (call.results(call.tensors(device)) for device in ("cuda", "cpu"))
    assert all(t.is_cuda for t in ours)
    assert_agree(ours, expected)


@NEEDS_GPU
@every_call
def test_call_synchronises_only_for_the_size_of_its_result(call):
    assert cuda_smoke.synchronisations(call, "cuda") <= call.synchronisations


@NEEDS_GPU
def test_synchronisations_are_counted():
    tensors = {"x": torch.ones(1)}
    for synchronisations in (0, 1):
        call = cuda_smoke.Call(
            "item", lambda x: x * x.item(), lambda _: tensors, synchronisations=synchronisations
        )
        assert cuda_smoke.synchronisations(call, "cuda") == 1


def copy_after_delay(stream, targets, sources):
    """Copies the values on the stream after a delay."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(SLEEP)
        for name, target in targets.items():
            target.copy_(sources[name])


@NEEDS_GPU
@every_call
def test_call_runs_on_the_current_stream(call):
    stale, fresh = call.tensors("cuda", seed=1), call.tensors("cuda", seed=0)
    expected = call.results(fresh)
    call.results(stale)
    stream = torch.cuda.Stream()
    copy_after_delay(stream, stale, fresh)
    with torch.cuda.stream(stream):
        found = call.results(stale)
    stream.synchronize()
    assert same_bits(found, expected)


@NEEDS_GPU
def test_call_on_another_stream_reads_stale_values():
    stale, fresh = ({"x": torch.full((9,), v, device="cuda")} for v in (1.0, 2.0))
    y = torch.zeros(9, device="cuda")
    detops.axpy(y, y)
    copy_after_delay(torch.cuda.Stream(), stale, fresh)
    early = detops.axpy(stale["x"], y).tolist()
    torch.cuda.synchronize()
    assert early == [2.0] * 9 and detops.axpy(stale["x"], y).tolist() == [4.0] * 9


@NEEDS_GPU
@asynchronous_calls
def test_cuda_graph_captures_forward_and_backward(call):
    tensors, others = call.tensors("cuda", seed=0), call.tensors("cuda", seed=1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call.results(tensors)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call.results(tensors)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(others[name])
    graph.replay()
    assert same_bits(captured, call.results(others))


@NEEDS_GPU
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@every_call
def test_call_runs_on_a_non_current_device(call):
    with torch.cuda.device(0):
        found = call.results(call.tensors("cuda:1"))
        assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in found)
    assert_agree(found, call.results(call.tensors("cpu")))


def needs_memory(gigabytes):
    if torch.cuda.mem_get_info()[0] < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of free memory on the GPU")


@pytest.fixture
def empty_cache():
    yield
    torch.cuda.empty_cache()


IMAGE_INDICES = (0, 64, 129)  # indices into 130 images with more than 2^31 elements
ROI_OPS = {
    "roi_align": partial(detops.roi_align, sampling_ratio=2),
    "roi_align_rotated": partial(detops.roi_align_rotated, sampling_ratio=2),
    "roi_pool": detops.roi_pool,
    "ps_roi_align": partial(detops.ps_roi_align, sampling_ratio=2),
    "ps_roi_pool": detops.ps_roi_pool,
    "deform_psroi_pooling": lambda x, boxes, **sizes: detops.deform_psroi_pooling(
        x, boxes, None, **sizes, output_channels=16, group_size=4
    ),
    "multiscale_roi_align": lambda x, boxes, output_size, spatial_scale: (
        detops.multiscale_roi_align([x], boxes, output_size, [spatial_scale], 2)
    ),
}


def large_rois(count, rotated=False):
    generator = torch.Generator().manual_seed(0)
    index = torch.arange(count).view(-1, 1) % len(IMAGE_INDICES)
    low = torch.rand(count, 2, generator=generator) * torch.tensor([1200.0, 700.0])
    side = 40 + torch.rand(count, 2, generator=generator) * 200
    rest = [low, low + side]
    if rotated:
        rest = [low + side / 2, side, torch.rand(count, 1, generator=generator) * 360]
    return torch.cat([index, *rest], 1).cuda()


@NEEDS_GPU
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("op", ROI_OPS)
def test_images_of_a_huge_batch_match_a_small_batch(op, layout, empty_cache):
    needs_memory(20)
    x = torch.empty(130, 256, 200, 336, dtype=torch.half, device="cuda", memory_format=layout)
    x.normal_().requires_grad_()
    small_batch = x.detach()[list(IMAGE_INDICES)].contiguous(memory_format=layout).requires_grad_()
    rois = large_rois(90, rotated=op == "roi_align_rotated")
    rois_of_large = rois.clone()
    rois_of_large[:, 0] = torch.tensor(IMAGE_INDICES, device="cuda")[rois[:, 0].long()]
    pooled_of_large, pooled = (
        ROI_OPS[op](maps, boxes, output_size=4, spatial_scale=0.25)
        for maps, boxes in ((x, rois_of_large), (small_batch, rois))
    )
    assert pooled.any() and torch.equal(pooled_of_large, pooled)
    grad_of_large, grad = (
        torch.autograd.grad(out, maps, torch.ones_like(out))[0]
        for out, maps in ((pooled_of_large, x), (pooled, small_batch))
    )
    assert torch.equal(grad_of_large[list(IMAGE_INDICES)], grad)
    assert grad_of_large.count_nonzero() == grad.count_nonzero() > 0


@NEEDS_GPU
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_last_of_two_billion_results_match_a_small_call(layout, empty_cache):
    needs_memory(20)
    x = torch.randn(3, 256, 50, 84, device="cuda").half().contiguous(memory_format=layout)
    rois = large_rois(43_000)
    pooled = detops.roi_align(x, rois, 14, 1 / 16, 2)
    assert pooled.numel() > 2**31
    assert torch.equal(pooled[-7:], detops.roi_align(x, rois[-7:], 14, 1 / 16, 2))


@NEEDS_GPU
@pytest.mark.parametrize("labelled", [False, True])
def test_nms_of_half_a_million_boxes_matches_the_cpu(labelled, empty_cache):
    generator, count = torch.Generator().manual_seed(0), 500_000
    tensors = clustered(generator, count)
    if labelled:
        tensors += (torch.randint(80, (count,), generator=generator),)
    nms = detops.batched_nms if labelled else detops.nms
    expected = nms(*tensors, 0.5)
    on_gpu = [t.cuda() for t in tensors]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = nms(*on_gpu, 0.5)
    assert torch.equal(found.cpu(), expected)
    # Per box: a sorted copy, 64 bytes for the boxes that overlap it, and some numbers.
    assert torch.cuda.max_memory_allocated() - before < 150 * count


@NEEDS_GPU
def test_cuda_graph_captures_nms_that_sorts_boxes():
    generator = torch.Generator().manual_seed(0)
    captured, others = ([t.cuda() for t in clustered(generator, 10_000)] for _ in range(2))
    detops.nms_padded(*captured, 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keep, count = detops.nms_padded(*captured, 0.5)
    for tensor, other in zip(captured, others, strict=True):
        tensor.copy_(other)
    graph.replay()
    assert torch.equal(keep[:count], detops.nms(*others, 0.5))
