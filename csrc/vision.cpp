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
#include "family/family.h"
#include "guard.h"
#include "masks_to_rle.h"
#include "ops.h"

TORCH_LIBRARY(detops, m) {
  m.def(
      "check_nms(Tensor boxes, Tensor scores, Tensor? idxs, float iou_threshold, "
      "int columns=4) -> ()");
  m.def("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor");
  m.def("batched_nms(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor");
  m.def(
      "nms_padded(Tensor boxes, Tensor scores, Tensor? idxs, float iou_threshold, "
      "SymInt max_output) -> (Tensor keep, Tensor count)");
  m.def("nms_rotated(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor");
  m.def(
      "batched_nms_rotated(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) "
      "-> Tensor");
  m.def(
      "check_soft_nms(Tensor boxes, Tensor scores, float iou_threshold, float sigma, "
      "float min_score, str method) -> ()");
  m.def(
      "soft_nms(Tensor boxes, Tensor scores, float iou_threshold=0.3, float sigma=0.5, "
      "float min_score=1e-3, str method='linear') -> (Tensor keep, Tensor scores)");
  m.def(
      "check_matrix_nms(Tensor boxes, Tensor scores, Tensor? idxs, float sigma, float min_score, "
      "str method) -> ()");
  m.def(
      "matrix_nms(Tensor boxes, Tensor scores, Tensor? idxs=None, float sigma=2.0, "
      "float min_score=1e-3, str method='gaussian') -> (Tensor keep, Tensor scores)");

  m.def(
      "roi_align_forward(Tensor input, Tensor boxes, float spatial_scale, SymInt pooled_height, "
      "SymInt pooled_width, int sampling_ratio, bool aligned=False) -> Tensor");
  m.def(
      "roi_align_backward(Tensor grad, Tensor boxes, float spatial_scale, SymInt pooled_height, "
      "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, "
      "int sampling_ratio, bool aligned=False) -> Tensor");
  m.def(
      "multiscale_roi_align_forward(Tensor[] inputs, Tensor boxes, float[] spatial_scales, "
      "SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned, "
      "float canonical_scale, int canonical_level) -> Tensor");
  m.def(
      "multiscale_roi_align_backward(Tensor grad, Tensor boxes, float[] spatial_scales, "
      "SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, "
      "SymInt[] heights, SymInt[] widths, int sampling_ratio, bool aligned, "
      "float canonical_scale, int canonical_level) -> Tensor[]");
  m.def(
      "roi_align_rotated_forward(Tensor input, Tensor boxes, float spatial_scale, "
      "SymInt pooled_height, SymInt pooled_width, int sampling_ratio) -> Tensor");
  m.def(
      "roi_align_rotated_backward(Tensor grad, Tensor boxes, float spatial_scale, "
      "SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, "
      "SymInt height, SymInt width, int sampling_ratio) -> Tensor");
  m.def(
      "roi_pool_forward(Tensor input, Tensor boxes, float spatial_scale, SymInt pooled_height, "
      "SymInt pooled_width) -> (Tensor output, Tensor argmax)");
  m.def(
      "roi_pool_backward(Tensor grad, Tensor input, Tensor boxes, Tensor argmax, "
      "float spatial_scale, SymInt pooled_height, SymInt pooled_width, SymInt batch_size, "
      "SymInt channels, SymInt height, SymInt width) -> Tensor");
  m.def(
      "ps_roi_align_forward(Tensor input, Tensor boxes, float spatial_scale, "
      "SymInt pooled_height, SymInt pooled_width, int sampling_ratio) -> Tensor");
  m.def(
      "ps_roi_align_backward(Tensor grad, Tensor boxes, float spatial_scale, "
      "SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, "
      "SymInt height, SymInt width, int sampling_ratio) -> Tensor");
  m.def(
      "ps_roi_pool_forward(Tensor input, Tensor boxes, float spatial_scale, SymInt pooled_height, "
      "SymInt pooled_width) -> Tensor");
  m.def(
      "ps_roi_pool_backward(Tensor grad, Tensor boxes, float spatial_scale, SymInt pooled_height, "
      "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) "
      "-> Tensor");
  m.def(
      "deform_psroi_pool_forward(Tensor input, Tensor boxes, Tensor? offset, float spatial_scale, "
      "SymInt output_channels, int group_size, SymInt pooled_height, SymInt pooled_width, "
      "int part_size, int sample_per_part, float trans_std) -> (Tensor output, Tensor count)");
  m.def(
      "deform_psroi_pool_backward(Tensor grad, Tensor input, Tensor boxes, Tensor? offset, "
      "Tensor count, float spatial_scale, int group_size, int part_size, int sample_per_part, "
      "float trans_std) -> (Tensor, Tensor)");

  m.def(
      "deform_conv2d_forward(Tensor input, Tensor offset, Tensor? mask, Tensor weight, "
      "Tensor? bias, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1) -> Tensor");
  m.def(
      "deform_conv2d_backward(Tensor grad, Tensor input, Tensor offset, Tensor? mask, "
      "Tensor weight, Tensor? bias, SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation, "
      "bool[5] wanted, bool edge_gradient=True) "
      "-> (Tensor input, Tensor offset, Tensor mask, Tensor weight, Tensor bias)");
  m.def(
      "ms_deform_attn_forward(Tensor value, Tensor spatial_shapes, Tensor level_start_index, "
      "Tensor sampling_locations, Tensor attention_weights) -> Tensor");
  m.def(
      "ms_deform_attn_backward(Tensor grad, Tensor value, Tensor spatial_shapes, "
      "Tensor level_start_index, Tensor sampling_locations, Tensor attention_weights) "
      "-> (Tensor, Tensor, Tensor)");

  m.def("box_iou_forward(Tensor boxes1, Tensor boxes2, str kind='iou', float eps=1e-7) -> Tensor");
  m.def(
      "box_iou_backward(Tensor grad, Tensor boxes1, Tensor boxes2, str kind='iou', "
      "float eps=1e-7) -> (Tensor, Tensor)");
  m.def(
      "box_iou_loss_forward(Tensor boxes1, Tensor boxes2, str kind='giou', float eps=1e-7) "
      "-> Tensor");
  m.def(
      "box_iou_loss_backward(Tensor grad, Tensor boxes1, Tensor boxes2, str kind='giou', "
      "float eps=1e-7) -> (Tensor, Tensor)");
  m.def("match_boxes(Tensor boxes1, Tensor boxes2) -> (Tensor best, Tensor index)");
  m.def("box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor");
  m.def("encode_boxes_forward(Tensor boxes, Tensor anchors, float[] weights) -> Tensor");
  m.def(
      "encode_boxes_backward(Tensor grad, Tensor boxes, Tensor anchors, float[] weights) "
      "-> (Tensor, Tensor)");
  m.def(
      "decode_boxes_forward(Tensor deltas, Tensor anchors, float[] weights, float clip) -> Tensor");
  m.def(
      "decode_boxes_backward(Tensor grad, Tensor deltas, Tensor anchors, float[] weights, "
      "float clip) -> (Tensor, Tensor)");
  m.def(
      "sigmoid_focal_loss_forward(Tensor inputs, Tensor targets, float alpha, float gamma) "
      "-> Tensor");
  m.def(
      "sigmoid_focal_loss_sum(Tensor inputs, Tensor targets, float alpha, float gamma) -> Tensor");
  m.def(
      "sigmoid_focal_loss_backward(Tensor grad, Tensor inputs, Tensor targets, float alpha, "
      "float gamma) -> Tensor");
  m.def("masks_to_boxes(Tensor masks) -> Tensor");
  m.def("masks_to_rle(Tensor masks) -> (Tensor text, Tensor ends)");
  m.def(
      "paste_masks_in_image(Tensor masks, Tensor boxes, SymInt height, SymInt width, "
      "float threshold=0.5) -> Tensor");

  m.def("axpy(Tensor x, Tensor y, float alpha=2.0) -> Tensor");
  m.def("axpy_forward(Tensor x, Tensor y, float alpha=2.0) -> Tensor");
  m.def("axpy_backward(Tensor grad, float alpha=2.0) -> (Tensor, Tensor)");
  m.def("gdh(Tensor(a) x) -> Tensor(a)");
  m.def("gdh_forward(Tensor x) -> Tensor");
  m.def(
      "mlp(Tensor input, Tensor hidden_weights, Tensor hidden_bias, Tensor output_weights, "
      "Tensor output_bias) -> Tensor");
  m.def(
      "mlp_forward(Tensor input, Tensor hidden_weights, Tensor hidden_bias, Tensor output_weights, "
      "Tensor output_bias) -> (Tensor output, Tensor hidden)");
  m.def(
      "mlp_backward(Tensor grad, Tensor input, Tensor hidden, Tensor hidden_weights, "
      "Tensor output_weights, bool input_wanted=True) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "lltm_cell(Tensor input, Tensor weights, Tensor bias, Tensor h, Tensor c) "
      "-> (Tensor, Tensor)");
  m.def(
      "lltm(Tensor input, Tensor weights, Tensor bias, Tensor h, Tensor c) "
      "-> (Tensor output, Tensor h, Tensor c)");
  m.def(
      "lltm_forward(Tensor input, Tensor weights, Tensor bias, Tensor h, Tensor c) "
      "-> (Tensor output, Tensor cells, Tensor gates)");
  m.def(
      "lltm_backward(Tensor grad_output, Tensor? grad_h, Tensor grad_c, Tensor input, "
      "Tensor weights, Tensor h, Tensor c, Tensor output, Tensor cells, Tensor gates, "
      "bool input_wanted=True, bool h_wanted=True) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");

  m.def("box_area(Tensor boxes, str fmt='xyxy') -> Tensor");
  m.def("box_convert(Tensor boxes, str in_fmt, str out_fmt) -> Tensor");
  m.def("clip_boxes_to_image(Tensor boxes, SymInt height, SymInt width) -> Tensor");
  m.def("remove_small_boxes(Tensor boxes, float min_size) -> Tensor");
}

namespace {

// clang-format off
// The ops that have a kernel per backend: those whose output size depends on values, and those
// that run on Meta too.
#define DETOPS_OPS_SIZED_BY_VALUES(op) \
  op(nms) \
  op(batched_nms) \
  op(nms_rotated) \
  op(batched_nms_rotated) \
  op(soft_nms) \
  op(matrix_nms)
#define DETOPS_OPS(op) \
  op(nms_padded) \
  op(roi_align_forward) \
  op(roi_align_backward) \
  op(multiscale_roi_align_forward) \
  op(multiscale_roi_align_backward) \
  op(roi_align_rotated_forward) \
  op(roi_align_rotated_backward) \
  op(roi_pool_forward) \
  op(roi_pool_backward) \
  op(ps_roi_align_forward) \
  op(ps_roi_align_backward) \
  op(ps_roi_pool_forward) \
  op(ps_roi_pool_backward) \
  op(deform_psroi_pool_forward) \
  op(deform_psroi_pool_backward) \
  op(deform_conv2d_forward) \
  op(deform_conv2d_backward) \
  op(ms_deform_attn_forward) \
  op(ms_deform_attn_backward) \
  op(box_iou_forward) \
  op(box_iou_backward) \
  op(box_iou_loss_forward) \
  op(box_iou_loss_backward) \
  op(match_boxes) \
  op(box_iou_rotated) \
  op(encode_boxes_forward) \
  op(encode_boxes_backward) \
  op(decode_boxes_forward) \
  op(decode_boxes_backward) \
  op(sigmoid_focal_loss_forward) \
  op(sigmoid_focal_loss_sum) \
  op(sigmoid_focal_loss_backward) \
  op(masks_to_boxes) \
  op(paste_masks_in_image) \
  op(axpy_forward) \
  op(axpy_backward) \
  op(gdh_forward) \
  op(mlp_forward) \
  op(mlp_backward) \
  op(lltm_forward) \
  op(lltm_backward)

// Compositions of other ops.
#define DETOPS_COMPOSITES(op) \
  op(meta, check_nms) \
  op(meta, check_soft_nms) \
  op(meta, check_matrix_nms) \
  op(autograd, axpy) \
  op(autograd, gdh) \
  op(autograd, mlp) \
  op(autograd, lltm_cell) \
  op(autograd, lltm) \
  op(composite, box_area) \
  op(composite, box_convert) \
  op(composite, clip_boxes_to_image) \
  op(composite, remove_small_boxes) \
  op(composite, masks_to_rle)
// clang-format on

#define DETOPS_NAME(op) #op,
#define DETOPS_COMPOSITE_NAME(space, op) #op,
#define DETOPS_CUDA(op) m.impl(#op, detops::guarded<name_of::op, &detops::cuda::op>());
#ifdef DETOPS_EMULATE_CUDA
#define DETOPS_CPU DETOPS_CUDA
#else
#define DETOPS_CPU(op) m.impl(#op, detops::guarded<name_of::op, &detops::cpu::op>());
#endif
#define DETOPS_META(op) m.impl(#op, detops::guarded<name_of::op, &detops::meta::op>());
#define DETOPS_COMPOSITE(space, op) m.impl(#op, detops::guarded<name_of::op, &detops::space::op>());

// As guards want them.
namespace name_of {

#define DETOPS_NAME_OF(op) constexpr char op[] = #op;
#define DETOPS_COMPOSITE_NAME_OF(space, op) DETOPS_NAME_OF(op)
DETOPS_OPS_SIZED_BY_VALUES(DETOPS_NAME_OF)
DETOPS_OPS(DETOPS_NAME_OF)
DETOPS_COMPOSITES(DETOPS_COMPOSITE_NAME_OF)

}  // namespace name_of

constexpr const char* kRawOps[] = {DETOPS_OPS_SIZED_BY_VALUES(DETOPS_NAME) DETOPS_OPS(DETOPS_NAME)};

}  // namespace

TORCH_LIBRARY_IMPL(detops, CPU, m){DETOPS_OPS_SIZED_BY_VALUES(DETOPS_CPU) DETOPS_OPS(DETOPS_CPU)}
#ifdef WITH_CUDA
TORCH_LIBRARY_IMPL(detops, CUDA, m) {
  DETOPS_OPS_SIZED_BY_VALUES(DETOPS_CUDA)
  DETOPS_OPS(DETOPS_CUDA)
}
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
  for (const char* op : kRawOps) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&report_no_cuda>());
  }
}
#endif

TORCH_LIBRARY_IMPL(detops, Meta, m){DETOPS_OPS(DETOPS_META)}

TORCH_LIBRARY_IMPL(detops, CompositeImplicitAutograd, m){DETOPS_COMPOSITES(DETOPS_COMPOSITE)}

// Functionalization and vmap know only ATen's views: they get the calls inside.
TORCH_LIBRARY_IMPL(detops, Functionalize, m) {
  m.impl("gdh", TORCH_FN(detops::autograd::gdh));
}
TORCH_LIBRARY_IMPL(detops, FuncTorchBatched, m) { m.impl("gdh", TORCH_FN(detops::autograd::gdh)); }

// The derivative is an autograd function over the raw ops, in Python or, for the demo ops, in
// autograd/. A raw op called with gradients wanted says so on the way back, instead of recording
// what ATen calls happen inside it.
TORCH_LIBRARY_IMPL(detops, Autograd, m) {
  for (const char* op : kRawOps) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
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
  for (const char* op :
       {"nms", "batched_nms", "nms_padded", "nms_rotated", "batched_nms_rotated", "soft_nms",
        "matrix_nms", "box_iou_forward", "box_iou_loss_forward", "match_boxes", "box_iou_rotated",
        "encode_boxes_forward", "decode_boxes_forward", "sigmoid_focal_loss_forward",
        "sigmoid_focal_loss_sum", "axpy", "mlp", "lltm_cell", "lltm"}) {
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
  for (const char* op : kRawOps) m.attr(op) = ops.attr(op);
  for (const char* op : {DETOPS_FAMILY_OPS(DETOPS_NAME)}) m.attr(op) = ops.attr(op);
  for (const char* op : {DETOPS_COMPOSITES(DETOPS_COMPOSITE_NAME)}) m.attr(op) = ops.attr(op);

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
