// SPDX-License-Identifier: MIT
#include "checks.h"

#include <cmath>

namespace detops::meta {

// [N, columns].
void check_rows(const char* op, const char* name, const Tensor& t, int64_t columns) {
  DETOPS_CHECK(t.dim() == 2, op, name, " must be [N, ", columns, "], got ", t.sym_sizes());
  TORCH_SYM_CHECK(t.sym_size(1).sym_eq(columns), "detops.", op, ": ", name, " must be [N, ",
                  columns, "], got ", t.sym_sizes());
  check_floating(op, name, t);
}

void check_sizes(const char* op, const char* name, const Tensor& t, c10::SymIntArrayRef expected) {
  DETOPS_CHECK(t.dim() == static_cast<int64_t>(expected.size()), op, name, " must be ", expected,
               ", got ", t.sym_sizes());
  for (int64_t d = 0; d < t.dim(); ++d) {
    TORCH_SYM_CHECK(t.sym_size(d).sym_eq(expected[d]), "detops.", op, ": ", name, " must be ",
                    expected, ", got ", t.sym_sizes());
  }
}

void check_same_length(const char* op, const char* name, const Tensor& t, const char* other_name,
                       const Tensor& other) {
  TORCH_SYM_CHECK(t.sym_size(0).sym_eq(other.sym_size(0)), "detops.", op, ": ", name,
                  " must have as many rows as ", other_name, " (", other.sym_size(0), "), got ",
                  t.sym_size(0));
}

void check_rois(const char* op, const Tensor& rois, const Tensor& other, const char* other_name,
                int64_t columns) {
  DETOPS_CHECK(rois.dim() == 2, op, "boxes must be [K, ", columns, "], got ", rois.sym_sizes());
  TORCH_SYM_CHECK(rois.sym_size(1).sym_eq(columns), "detops.", op, ": boxes must be [K, ", columns,
                  "], got ", rois.sym_sizes());
  check_floating(op, "boxes", rois);
  check_same_device(op, "boxes", rois, other_name, other);
}

void check_pooling(const char* op, const c10::SymInt& pooled_height,
                   const c10::SymInt& pooled_width, int64_t sampling_ratio,
                   int64_t max_sampling_ratio) {
  TORCH_SYM_CHECK(pooled_height.sym_ge(1).sym_and(pooled_width.sym_ge(1)), "detops.", op,
                  ": output_size must be at least 1 x 1, got ", pooled_height, " x ", pooled_width);
  check_size(op, "output_size", pooled_height);
  check_size(op, "output_size", pooled_width);
  DETOPS_CHECK(sampling_ratio <= max_sampling_ratio, op, "sampling_ratio must be at most ",
               max_sampling_ratio, ", got ", sampling_ratio);
}

void check_scale(const char* op, double spatial_scale) {
  DETOPS_CHECK(std::isfinite(spatial_scale) && spatial_scale > 0, op,
               "spatial_scale must be positive and finite, got ", spatial_scale);
}

void check_map(const char* op, const char* name, const Tensor& t) {
  DETOPS_CHECK(t.dim() == 4, op, name, " must be [N, C, H, W], got ", t.sym_sizes());
  check_floating(op, name, t);
  TORCH_SYM_CHECK(t.sym_size(2).sym_ge(1).sym_and(t.sym_size(3).sym_ge(1)), "detops.", op, ": ",
                  name, " must have H and W of at least 1, got ", t.sym_sizes());
}

void check_pooled_grad(const char* op, const Tensor& grad, const Tensor& rois,
                       const c10::SymInt& channels, const c10::SymInt& pooled_height,
                       const c10::SymInt& pooled_width, int64_t roi_columns) {
  DETOPS_CHECK(grad.dim() == 4, op, "grad must be [K, C, ", pooled_height, ", ", pooled_width,
               "], got ", grad.sym_sizes());
  check_floating(op, "grad", grad);
  check_rois(op, rois, grad, "grad", roi_columns);
  check_pooling(op, pooled_height, pooled_width, 0);
  TORCH_SYM_CHECK(grad.sym_size(0)
                      .sym_eq(rois.sym_size(0))
                      .sym_and(grad.sym_size(1).sym_eq(channels))
                      .sym_and(grad.sym_size(2).sym_eq(pooled_height))
                      .sym_and(grad.sym_size(3).sym_eq(pooled_width)),
                  "detops.", op, ": grad must be [", rois.sym_size(0), ", ", channels, ", ",
                  pooled_height, ", ", pooled_width, "], got ", grad.sym_sizes());
}

void check_map_size(const char* op, const c10::SymInt& n, const c10::SymInt& c,
                    const c10::SymInt& h, const c10::SymInt& w) {
  const char* name = "the input's size";
  TORCH_SYM_CHECK(h.sym_ge(1).sym_and(w.sym_ge(1)).sym_and(n.sym_ge(0)).sym_and(c.sym_ge(0)),
                  "detops.", op, ": ", name,
                  " must be [N, C, H, W] with H and W of at least 1, got [", n, ", ", c, ", ", h,
                  ", ", w, "]");
  for (const c10::SymInt& size : {n, c, h, w}) check_size(op, name, size);
}

Tensor empty_map(const Tensor& like, const c10::SymInt& n, const c10::SymInt& c,
                 const c10::SymInt& h, const c10::SymInt& w) {
  return at::empty_symint({n, c, h, w}, like.options().memory_format(like.suggest_memory_format()));
}

void check_like(const char* op, const char* name, const Tensor& t, const char* like_name,
                const Tensor& like) {
  check_floating(op, name, t);
  check_same_device(op, name, t, like_name, like);
  check_sizes(op, name, t, like.sym_sizes());
}

void check_grad_like(const char* op, const Tensor& grad, const Tensor& like) {
  check_like(op, "grad", grad, "the input", like);
}

}  // namespace detops::meta
