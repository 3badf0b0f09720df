// SPDX-License-Identifier: MIT
#include <cmath>

#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

// Samples are taken one by one, so a RoI's time grows with the square.
constexpr int64_t kMaxSamplesPerPart = 64;

// Sizes of which there is a square.
constexpr int64_t kMaxSide = INT16_MAX;

// Returns the number of classes of offsets.
c10::SymInt check_arguments(const char* op, const Tensor& input, const Tensor& rois,
                            const std::optional<Tensor>& offset, double spatial_scale,
                            const c10::SymInt& output_channels, int64_t group_size,
                            const c10::SymInt& pooled_height, const c10::SymInt& pooled_width,
                            int64_t part_size, int64_t sample_per_part, double trans_std) {
  check_map(op, "input", input);
  check_rois(op, rois, input, "input");
  check_pooling(op, pooled_height, pooled_width, 0);
  check_scale(op, spatial_scale);
  DETOPS_CHECK(group_size >= 1 && group_size <= kMaxSide, op, "group_size must be in [1, ",
               kMaxSide, "], got ", group_size);
  DETOPS_CHECK(part_size >= 1 && part_size <= kMaxSide, op, "part_size must be in [1, ", kMaxSide,
               "], got ", part_size);
  DETOPS_CHECK(sample_per_part >= 1 && sample_per_part <= kMaxSamplesPerPart, op,
               "sample_per_part must be in [1, ", kMaxSamplesPerPart, "], got ", sample_per_part);
  DETOPS_CHECK(std::isfinite(trans_std), op, "trans_std must be finite, got ", trans_std);
  TORCH_SYM_CHECK(output_channels.sym_ge(1), "detops.", op,
                  ": output_channels must be at least 1, got ", output_channels);
  check_size(op, "output_channels", output_channels);
  TORCH_SYM_CHECK(input.sym_size(1).sym_eq(output_channels * group_size * group_size), "detops.",
                  op, ": input must have output_channels * group_size^2 = ",
                  output_channels * group_size * group_size, " channels, got ", input.sym_size(1));
  if (!offset) return 1;
  DETOPS_CHECK(offset->dim() == 4, op, "offset must be [K, 2 * classes, ", part_size, ", ",
               part_size, "], got ", offset->sym_sizes());
  check_floating(op, "offset", *offset);
  check_same_device(op, "offset", *offset, "input", input);
  const c10::SymInt rows = offset->sym_size(1);
  TORCH_SYM_CHECK(offset->sym_size(0)
                      .sym_eq(rois.sym_size(0))
                      .sym_and(rows.sym_ge(2))
                      .sym_and((rows % 2).sym_eq(0))
                      .sym_and(offset->sym_size(2).sym_eq(part_size))
                      .sym_and(offset->sym_size(3).sym_eq(part_size)),
                  "detops.", op, ": offset must be [", rois.sym_size(0), ", 2 * classes, ",
                  part_size, ", ", part_size, "], got ", offset->sym_sizes());
  const c10::SymInt classes = rows / 2;
  TORCH_SYM_CHECK((output_channels % classes).sym_eq(0), "detops.", op,
                  ": output_channels must be a multiple of offset's classes (", classes, "), got ",
                  output_channels);
  return classes;
}

}  // namespace

std::tuple<Tensor, Tensor> deform_psroi_pool_forward(const Tensor& input, const Tensor& rois,
                                                     const std::optional<Tensor>& offset,
                                                     double spatial_scale,
                                                     c10::SymInt output_channels,
                                                     int64_t group_size, c10::SymInt pooled_height,
                                                     c10::SymInt pooled_width, int64_t part_size,
                                                     int64_t sample_per_part, double trans_std) {
  const c10::SymInt classes = check_arguments(
      "deform_psroi_pooling", input, rois, offset, spatial_scale, output_channels, group_size,
      pooled_height, pooled_width, part_size, sample_per_part, trans_std);
  const c10::SymInt count = rois.sym_size(0);
  return {empty_map(input, count, output_channels, pooled_height, pooled_width),
          at::empty_symint({count, classes, pooled_height, pooled_width},
                           input.options().dtype(compute_type(input.scalar_type())))};
}

std::tuple<Tensor, Tensor> deform_psroi_pool_backward(const Tensor& grad, const Tensor& input,
                                                      const Tensor& rois,
                                                      const std::optional<Tensor>& offset,
                                                      const Tensor& count, double spatial_scale,
                                                      int64_t group_size, int64_t part_size,
                                                      int64_t sample_per_part, double trans_std) {
  const char* op = "deform_psroi_pooling_backward";
  DETOPS_CHECK(grad.dim() == 4, op, "grad must be [K, C, ph, pw], got ", grad.sym_sizes());
  const c10::SymInt channels = grad.sym_size(1), high = grad.sym_size(2), wide = grad.sym_size(3);
  const c10::SymInt classes =
      check_arguments(op, input, rois, offset, spatial_scale, channels, group_size, high, wide,
                      part_size, sample_per_part, trans_std);
  check_pooled_grad(op, grad, rois, channels, high, wide);
  check_same_type(op, "grad", grad, "input", input);
  check_same_device(op, "grad", grad, "input", input);
  check_floating(op, "count", count);
  check_same_device(op, "count", count, "input", input);
  DETOPS_CHECK(count.dim() == 4, op, "count must be [K, classes, ph, pw], got ", count.sym_sizes());
  TORCH_SYM_CHECK(count.sym_size(0)
                      .sym_eq(rois.sym_size(0))
                      .sym_and(count.sym_size(1).sym_eq(classes))
                      .sym_and(count.sym_size(2).sym_eq(high))
                      .sym_and(count.sym_size(3).sym_eq(wide)),
                  "detops.", op, ": count must be [", rois.sym_size(0), ", ", classes, ", ", high,
                  ", ", wide, "], got ", count.sym_sizes());
  return {
      empty_map(input, input.sym_size(0), input.sym_size(1), input.sym_size(2), input.sym_size(3)),
      offset ? at::empty_symint(offset->sym_sizes(), offset->options())
             : at::empty({0}, input.options())};
}

}  // namespace detops::meta
