// SPDX-License-Identifier: MIT
// The dispatch page: every op's schema, and which function runs it on which backend. Nothing else.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/extension.h>
#include <torch/library.h>

#ifdef WITH_CUDA
#include <cuda.h>
#endif

#include "cpu/kernels/isa.h"
#include "ops.h"
#include "structured.h"

TORCH_LIBRARY(detops, m) {
  for (const detops::Contract& contract : detops::Contract::all()) m.def(contract.schema().c_str());
}

namespace {

// clang-format off
// What runs an op on each backend: a host function of cpu/ or cuda/ for the op.
#define DETOPS_OPS(op) \
  op(nms, nms) \
  op(batched_nms, batched_nms) \
  op(nms_rotated, nms_rotated) \
  op(batched_nms_rotated, batched_nms_rotated) \
  op(soft_nms, soft_nms) \
  op(matrix_nms, matrix_nms) \
  op(nms_padded, nms_padded) \
  op(roi_align, roi_align_forward) \
  op(roi_align_forward, roi_align_forward) \
  op(roi_align_backward, roi_align_backward) \
  op(multiscale_roi_align, multiscale_roi_align_forward) \
  op(multiscale_roi_align_forward, multiscale_roi_align_forward) \
  op(multiscale_roi_align_backward, multiscale_roi_align_backward) \
  op(roi_align_rotated, roi_align_rotated_forward) \
  op(roi_align_rotated_forward, roi_align_rotated_forward) \
  op(roi_align_rotated_backward, roi_align_rotated_backward) \
  op(roi_pool, roi_pool_forward) \
  op(roi_pool_forward, roi_pool_forward) \
  op(roi_pool_backward, roi_pool_backward) \
  op(ps_roi_align, ps_roi_align_forward) \
  op(ps_roi_align_forward, ps_roi_align_forward) \
  op(ps_roi_align_backward, ps_roi_align_backward) \
  op(ps_roi_pool, ps_roi_pool_forward) \
  op(ps_roi_pool_forward, ps_roi_pool_forward) \
  op(ps_roi_pool_backward, ps_roi_pool_backward) \
  op(deform_psroi_pool_forward, deform_psroi_pool_forward) \
  op(deform_psroi_pool_backward, deform_psroi_pool_backward) \
  op(deform_conv2d, deform_conv2d_forward) \
  op(deform_conv2d_forward, deform_conv2d_forward) \
  op(deform_conv2d_backward, deform_conv2d_backward) \
  op(ms_deform_attn, ms_deform_attn_forward) \
  op(ms_deform_attn_forward, ms_deform_attn_forward) \
  op(ms_deform_attn_backward, ms_deform_attn_backward) \
  op(box_iou_forward, box_iou_forward) \
  op(box_iou_backward, box_iou_backward) \
  op(box_iou_loss_forward, box_iou_loss_forward) \
  op(box_iou_loss_backward, box_iou_loss_backward) \
  op(match_boxes, match_boxes) \
  op(box_iou_rotated, box_iou_rotated) \
  op(encode_boxes, encode_boxes_forward) \
  op(encode_boxes_forward, encode_boxes_forward) \
  op(encode_boxes_backward, encode_boxes_backward) \
  op(decode_boxes, decode_boxes_forward) \
  op(decode_boxes_forward, decode_boxes_forward) \
  op(decode_boxes_backward, decode_boxes_backward) \
  op(sigmoid_focal_loss_forward, sigmoid_focal_loss_forward) \
  op(sigmoid_focal_loss_sum, sigmoid_focal_loss_sum) \
  op(sigmoid_focal_loss_backward, sigmoid_focal_loss_backward) \
  op(masks_to_boxes, masks_to_boxes) \
  op(masks_to_rle, masks_to_rle) \
  op(paste_masks_in_image, paste_masks_in_image) \
  op(axpy, axpy_forward) \
  op(axpy_forward, axpy_forward) \
  op(axpy_backward, axpy_backward) \
  op(gdh_forward, gdh_forward) \
  op(mlp, mlp_forward) \
  op(mlp_forward, mlp_forward) \
  op(mlp_backward, mlp_backward) \
  op(lltm_forward, lltm_forward) \
  op(lltm_backward, lltm_backward)
// clang-format on

#define DETOPS_NAMES(op, function) {#op, #function},
#define DETOPS_CUDA(op, function) impl<name_of::op, &detops::cuda::function>(m);
#ifdef DETOPS_EMULATE_CUDA
#define DETOPS_CPU DETOPS_CUDA
#else
#define DETOPS_CPU(op, function) impl<name_of::op, &detops::cpu::function>(m);
#endif

// As template arguments.
namespace name_of {

#define DETOPS_NAME_OF(op, function) constexpr char op[] = #op;
DETOPS_OPS(DETOPS_NAME_OF)

}  // namespace name_of

template <const char* op, auto function>
void impl(torch::Library& m) {
  using Call = detops::Structured<op, function>;
  m.impl(op, torch::CppFunction::makeFromBoxedFunction<&Call::call>());
}

constexpr struct {
  std::string_view op, function;
} kOps[] = {DETOPS_OPS(DETOPS_NAMES)};

}  // namespace

TORCH_LIBRARY_IMPL(detops, CPU, m) { DETOPS_OPS(DETOPS_CPU); }

#ifdef WITH_CUDA
TORCH_LIBRARY_IMPL(detops, CUDA, m) { DETOPS_OPS(DETOPS_CUDA); }
#else
namespace {

void report_no_cuda(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(
      false, op.schema().name(),
      ": detops was built without CUDA and got tensors on a GPU; install a CUDA toolkit and "
      "rebuild with FORCE_CUDA=1");
}

}  // namespace

TORCH_LIBRARY_IMPL(detops, CUDA, m) {
  for (const auto& row : kOps) {
    m.impl(row.op.data(), torch::CppFunction::makeFromBoxedFunction<&report_no_cuda>());
  }
}
#endif

// The derivative of a public op is an autograd function over raw ops, in Python. A raw op called
// with gradients wanted says so on the way back, instead of recording what ATen calls happen inside
// it.
TORCH_LIBRARY_IMPL(detops, Autograd, m) {
  for (const auto& row : kOps) {
    if (row.op != row.function) continue;
    m.impl(row.op.data(), torch::autograd::autogradNotImplementedFallback());
  }
}

namespace {

// Under autocast, boxes, losses and the demo ops are computed and returned in float32. The RoI ops
// are not here: they take features of any dtype with boxes of any other, and accumulate in float32
// as it is.
template <c10::DeviceType device, c10::DispatchKey key>
void autocast_to_float(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) value = at::autocast::cached_cast(at::kFloat, value.toTensor(), device);
  }
  op.callBoxed(stack);
}

template <c10::DeviceType device, c10::DispatchKey key>
void impl_autocast(torch::Library& m) {
  for (const char* op : {"nms",
                         "batched_nms",
                         "nms_padded",
                         "nms_rotated",
                         "batched_nms_rotated",
                         "soft_nms",
                         "matrix_nms",
                         "box_iou_forward",
                         "box_iou_loss_forward",
                         "match_boxes",
                         "box_iou_rotated",
                         "encode_boxes_forward",
                         "decode_boxes_forward",
                         "sigmoid_focal_loss_forward",
                         "sigmoid_focal_loss_sum",
                         "axpy",
                         "mlp",
                         "lltm_cell",
                         "lltm",
                         "encode_boxes",
                         "decode_boxes"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&autocast_to_float<device, key>>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(detops, AutocastCPU, m) {
  impl_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>(m);
}

TORCH_LIBRARY_IMPL(detops, AutocastCUDA, m) {
  impl_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>(m);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  // TORCH_LIBRARY's initialisers have run by now: detops._C.X is torch.ops.detops.X.
  const py::object ops = py::module_::import("torch").attr("ops").attr("detops");
  for (const auto& contract : detops::Contract::all()) {
    m.attr(contract.op().c_str()) = ops.attr(contract.op().c_str());
  }
  m.attr("contracts") = detops::Contract::text();
  m.def("cpu_isa", &detops::cpu::cpu_isa, "The instruction set in use: baseline, avx2 or avx512.");
  m.def("set_cpu_isa", &detops::cpu::set_cpu_isa, py::arg("name"),
        "Forces an instruction set (baseline, avx2, avx512), or auto for PyTorch's choice.");
#ifdef DETOPS_EMULATE_CUDA
  m.attr("emulated") = true;
#else
  m.attr("emulated") = false;
#endif
#ifdef WITH_CUDA
  m.attr("cuda_version") = CUDA_VERSION;
#else
  m.attr("cuda_version") = py::none();
#endif
}
