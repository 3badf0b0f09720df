// SPDX-License-Identifier: MIT
#include "../math/ms_deform_attn.h"

#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

void check_long(const char* op, const char* name, const Tensor& t, const Tensor& value) {
  DETOPS_CHECK(t.scalar_type() == at::kLong, op, name, " must be int64, got ", t.scalar_type());
  DETOPS_CHECK(t.device() == value.device() || t.is_cpu(), op, name,
               " must be on the device of value (", value.device(), ") or on the CPU, got ",
               t.device());
}

void check_inputs(const char* op, const Tensor& value, const Tensor& spatial_shapes,
                  const Tensor& level_start_index, const Tensor& locations, const Tensor& weights) {
  DETOPS_CHECK(value.dim() == 4, op, "value must be [N, S, M, D], got ", value.sym_sizes());
  check_floating(op, "value", value);
  DETOPS_CHECK(spatial_shapes.dim() == 2, op, "spatial_shapes must be [L, 2], got ",
               spatial_shapes.sym_sizes());
  const c10::SymInt levels = spatial_shapes.sym_size(0);
  check_sizes(op, "spatial_shapes", spatial_shapes, {levels, 2});
  check_long(op, "spatial_shapes", spatial_shapes, value);
  check_sizes(op, "level_start_index", level_start_index, {levels});
  check_long(op, "level_start_index", level_start_index, value);

  check_floating(op, "sampling_locations", locations);
  check_floating(op, "attention_weights", weights);
  check_same_device(op, "sampling_locations", locations, "value", value);
  check_same_device(op, "attention_weights", weights, "value", value);
  DETOPS_CHECK(locations.dim() == 6, op, "sampling_locations must be [N, Q, M, L, P, 2], got ",
               locations.sym_sizes());
  check_sizes(op, "sampling_locations", locations,
              {value.sym_size(0), locations.sym_size(1), value.sym_size(2), levels,
               locations.sym_size(4), 2});
  check_sizes(op, "attention_weights", weights, locations.sym_sizes().slice(0, 5));
}

Tensor empty_output(const Tensor& value, const Tensor& locations) {
  return at::empty_symint(
      {value.sym_size(0), locations.sym_size(1), value.sym_size(2) * value.sym_size(3)},
      value.options());
}

}  // namespace

void check_levels(const char* op, const Tensor& spatial_shapes, const Tensor& level_start_index,
                  int64_t count) {
  const auto shapes = spatial_shapes.accessor<int64_t, 2>();
  const auto starts = level_start_index.accessor<int64_t, 1>();
  int64_t covered = 0;
  for (int64_t i = 0; i < shapes.size(0); ++i) {
    const math::Level level{shapes[i][0], shapes[i][1], starts[i]};
    DETOPS_CHECK(math::lies_within(level, count), op, "level ", i, " of ", level.height, " x ",
                 level.width, " from position ", level.start, " on must lie within value's ", count,
                 " positions");
    covered += level.height * level.width;
  }
  DETOPS_CHECK(covered == count, op, "the levels must have as many positions as value (", count,
               "), got ", covered);
}

Tensor ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                              const Tensor& level_start_index, const Tensor& sampling_locations,
                              const Tensor& attention_weights) {
  check_inputs("ms_deform_attn", value, spatial_shapes, level_start_index, sampling_locations,
               attention_weights);
  return empty_output(value, sampling_locations);
}

std::tuple<Tensor, Tensor, Tensor> ms_deform_attn_backward(const Tensor& grad, const Tensor& value,
                                                           const Tensor& spatial_shapes,
                                                           const Tensor& level_start_index,
                                                           const Tensor& sampling_locations,
                                                           const Tensor& attention_weights) {
  const char* op = "ms_deform_attn_backward";
  check_inputs(op, value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  check_grad_like(op, grad, empty_output(value, sampling_locations));
  const auto empty = [](const Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); };
  return {empty(value), empty(sampling_locations), empty(attention_weights)};
}

}  // namespace detops::meta
