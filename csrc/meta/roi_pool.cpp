// SPDX-License-Identifier: MIT
#include <cstdint>

#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

void check_indexable(const char* op, const c10::SymInt& height, const c10::SymInt& width) {
  check_size(op, "a map's height", height);
  check_size(op, "a map's width", width);
  TORCH_SYM_CHECK((height * width).sym_le(INT32_MAX), "detops.", op, ": a map must have at most ",
                  INT32_MAX, " pixels, got ", height, " x ", width);
}

}  // namespace

std::tuple<Tensor, Tensor> roi_pool_forward(const Tensor& input, const Tensor& rois,
                                            double spatial_scale, c10::SymInt pooled_height,
                                            c10::SymInt pooled_width) {
  const char* op = "roi_pool";
  check_map(op, "input", input);
  check_indexable(op, input.sym_size(2), input.sym_size(3));
  check_rois(op, rois, input, "input");
  check_pooling(op, pooled_height, pooled_width, 0);
  check_scale(op, spatial_scale);
  Tensor output =
      empty_map(input, rois.sym_size(0), input.sym_size(1), pooled_height, pooled_width);
  Tensor argmax = at::empty_like(output, output.options().dtype(at::kInt));
  return {std::move(output), std::move(argmax)};
}

Tensor roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& rois,
                         const Tensor& argmax, double spatial_scale, c10::SymInt pooled_height,
                         c10::SymInt pooled_width, c10::SymInt batch_size, c10::SymInt channels,
                         c10::SymInt height, c10::SymInt width) {
  const char* op = "roi_pool_backward";
  DETOPS_CHECK(input.dim() == 4, op, "input must be [N, C, H, W], got ", input.sym_sizes());
  check_pooled_grad(op, grad, rois, channels, pooled_height, pooled_width);
  check_same_type(op, "grad", grad, "input", input);
  check_same_device(op, "grad", grad, "input", input);
  DETOPS_CHECK(argmax.scalar_type() == at::kInt && argmax.dim() == 4, op, "argmax must be int32 ",
               grad.sym_sizes(), ", got ", argmax.scalar_type(), " ", argmax.sym_sizes());
  check_same_device(op, "argmax", argmax, "grad", grad);
  for (int64_t d = 0; d < 4; ++d) {
    TORCH_SYM_CHECK(argmax.sym_size(d).sym_eq(grad.sym_size(d)), "detops.", op,
                    ": argmax must be int32 ", grad.sym_sizes(), ", got ", argmax.scalar_type(),
                    " ", argmax.sym_sizes());
  }
  check_scale(op, spatial_scale);
  check_map_size(op, batch_size, channels, height, width);
  check_indexable(op, height, width);
  return empty_map(input, batch_size, channels, height, width);
}

}  // namespace detops::meta
