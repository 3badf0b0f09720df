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
#include "ops.h"

TORCH_LIBRARY(detops, m) {
  m.def("check_nms(Tensor boxes, Tensor scores, Tensor? idxs, float iou_threshold) -> ()");
  m.def("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor");
  m.def("batched_nms(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor");

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

  m.def("box_iou_forward(Tensor boxes1, Tensor boxes2, str kind='iou', float eps=1e-7) -> Tensor");
  m.def(
      "box_iou_backward(Tensor grad, Tensor boxes1, Tensor boxes2, str kind='iou', "
      "float eps=1e-7) -> (Tensor, Tensor)");
  m.def("match_boxes(Tensor boxes1, Tensor boxes2) -> (Tensor best, Tensor index)");
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
      "ms_deform_attn_forward(Tensor value, Tensor spatial_shapes, Tensor level_start_index, "
      "Tensor sampling_locations, Tensor attention_weights) -> Tensor");
  m.def(
      "ms_deform_attn_backward(Tensor grad, Tensor value, Tensor spatial_shapes, "
      "Tensor level_start_index, Tensor sampling_locations, Tensor attention_weights) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "sigmoid_focal_loss_forward(Tensor inputs, Tensor targets, float alpha, float gamma) "
      "-> Tensor");
  m.def(
      "sigmoid_focal_loss_sum(Tensor inputs, Tensor targets, float alpha, float gamma) -> Tensor");
  m.def(
      "sigmoid_focal_loss_backward(Tensor grad, Tensor inputs, Tensor targets, float alpha, "
      "float gamma) -> Tensor");

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

  m.def(
      "sigmoid_focalloss_forward(Tensor logits, Tensor targets, int num_classes, float gamma, "
      "float alpha) -> Tensor");
  m.def(
      "sigmoid_focalloss_backward(Tensor logits, Tensor targets, Tensor d_losses, "
      "int num_classes, float gamma, float alpha) -> Tensor");

  m.def("box_area(Tensor boxes) -> Tensor");
  m.def("box_convert(Tensor boxes, str in_fmt, str out_fmt) -> Tensor");
  m.def("clip_boxes_to_image(Tensor boxes, SymInt height, SymInt width) -> Tensor");
  m.def("remove_small_boxes(Tensor boxes, float min_size) -> Tensor");
}

namespace {

// The ops that have a kernel per backend: those whose output size depends on values, and those
// that run on Meta too.
#define DETOPS_OPS_SIZED_BY_VALUES(op) op(nms) op(batched_nms)
#define DETOPS_OPS(op)                                                                            \
  op(roi_align_forward) op(roi_align_backward) op(multiscale_roi_align_forward)                   \
      op(multiscale_roi_align_backward) op(box_iou_forward) op(box_iou_backward) op(match_boxes)  \
          op(ms_deform_attn_forward) op(ms_deform_attn_backward) op(sigmoid_focal_loss_forward)   \
              op(sigmoid_focal_loss_sum) op(sigmoid_focal_loss_backward) op(encode_boxes_forward) \
                  op(encode_boxes_backward) op(decode_boxes_forward) op(decode_boxes_backward)    \
                      op(axpy_forward) op(axpy_backward) op(gdh_forward) op(mlp_forward)          \
                          op(mlp_backward) op(lltm_forward) op(lltm_backward)

// Compositions of other ops.
#define DETOPS_COMPOSITES(op)                                                \
  op(meta, check_nms) op(autograd, axpy) op(autograd, gdh) op(autograd, mlp) \
      op(autograd, lltm_cell) op(autograd, lltm) op(composite, box_area)     \
          op(composite, box_convert) op(composite, clip_boxes_to_image)      \
              op(composite, remove_small_boxes)

// The functions under which detectors of the maskrcnn-benchmark family know ops that have other
// names or other arguments here; many write into tensors that the caller allocates.
#define DETOPS_FAMILY_OPS(op) op(sigmoid_focalloss_forward) op(sigmoid_focalloss_backward)

#define DETOPS_NAME(op) #op,
#define DETOPS_COMPOSITE_NAME(space, op) #op,
#define DETOPS_CPU(op) m.impl(#op, TORCH_FN(detops::cpu::op));
#define DETOPS_CUDA(op) m.impl(#op, TORCH_FN(detops::cuda::op));
#define DETOPS_META(op) m.impl(#op, TORCH_FN(detops::meta::op));
#define DETOPS_FAMILY(op) m.impl(#op, TORCH_FN(detops::family::op));
#define DETOPS_COMPOSITE(space, op) m.impl(#op, TORCH_FN(detops::space::op));

constexpr const char* kRawOps[] = {DETOPS_OPS_SIZED_BY_VALUES(DETOPS_NAME) DETOPS_OPS(DETOPS_NAME)};
constexpr std::initializer_list<const char*> kFamilyOps = {DETOPS_FAMILY_OPS(DETOPS_NAME)};

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

TORCH_LIBRARY_IMPL(detops, CompositeExplicitAutograd, m){DETOPS_FAMILY_OPS(DETOPS_FAMILY)}

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
  for (const char* op : kFamilyOps) {
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
       {"nms", "batched_nms", "box_iou_forward", "match_boxes", "encode_boxes_forward",
        "decode_boxes_forward", "sigmoid_focal_loss_forward", "axpy", "mlp", "lltm_cell", "lltm"}) {
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
  for (const char* op : kFamilyOps) m.attr(op) = ops.attr(op);
  for (const char* op : {DETOPS_COMPOSITES(DETOPS_COMPOSITE_NAME)}) m.attr(op) = ops.attr(op);

  m.def("cpu_isa", &detops::cpu::cpu_isa, "The instruction set in use: baseline, avx2 or avx512.");
  m.def("set_cpu_isa", &detops::cpu::set_cpu_isa, py::arg("name"),
        "Forces an instruction set (baseline, avx2, avx512), or auto for PyTorch's choice.");
#ifdef WITH_CUDA
  m.attr("cuda_version") = CUDA_VERSION;
#else
  m.attr("cuda_version") = py::none();
#endif
}
