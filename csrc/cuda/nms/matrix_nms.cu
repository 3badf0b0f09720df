// SPDX-License-Identifier: MIT
#include "../../math/decay.h"
#include "nms.cuh"

namespace detops::cuda {
namespace {

template <typename T>
struct MatrixNmsParams {
  const math::Box<T>* boxes;  // [N], score descending
  const T* scores;            // [N]
  const int64_t* labels;      // [N], or null
  int64_t count;              // N
  T sigma;
  T* terms;     // [N], math::decay::matrix_term
  T* rescored;  // [N], out
};

// Calls meet(i, iou) for the boxes i before box j that it overlaps. A box without a score says
// nothing.
template <typename T, typename Meet>
__device__ void for_each_better(const MatrixNmsParams<T>& p, int64_t j, const Meet& meet) {
  const math::Box<T> box = p.boxes[j];
  const T area = math::area(box);
  for (int64_t i = 0; i < j; ++i) {
    if (p.labels != nullptr && p.labels[i] != p.labels[j]) continue;
    if (p.scores[i] != p.scores[i]) continue;
    const math::Box<T> other = p.boxes[i];
    const T common = math::intersection(other, box);
    const T iou = math::pairwise::iou(common, math::area(other) + area - common);
    if (iou > 0) meet(i, iou);
  }
}

template <math::Decay kind, typename T>
__global__ void matrix_terms_kernel(MatrixNmsParams<T> p) {
  DETOPS_FOR_EACH(j, p.count) {
    T most = 0;
    for_each_better(p, j, [&](int64_t, T iou) { most = math::max(most, iou); });
    p.terms[j] = math::decay::matrix_term<kind>(most);
  }
}

template <math::Decay kind, typename T>
__global__ void matrix_scores_kernel(MatrixNmsParams<T> p) {
  DETOPS_FOR_EACH(j, p.count) {
    T weight = math::decay::matrix_least_weight<kind, T>();
    for_each_better(p, j, [&](int64_t i, T iou) {
      weight = math::max(weight, math::decay::matrix_weight<kind, T>(iou, p.terms[i]));
    });
    p.rescored[j] = p.scores[j] * math::decay::matrix_factor<kind>(weight, p.sigma);
  }
}

}  // namespace

std::tuple<Tensor, Tensor> matrix_nms(const Tensor& boxes, const Tensor& scores,
                                      const std::optional<Tensor>& idxs, double sigma,
                                      double min_score, std::string_view method) {
  const int64_t count = boxes.size(0);
  if (count == 0) {
    return {empty({0}, boxes.options().dtype(kLong)), empty({0}, scores.options())};
  }
  const ScalarType type = compute_type(boxes, scores);
  const Tensor order = selection_order(scores);
  const Tensor sorted = index_select(boxes.to(type), order);
  const Tensor before = index_select(scores.to(type), order);
  const Tensor labels = idxs ? index_select(idxs->to(kLong), order) : Tensor();
  const Tensor terms = empty_like(before), after = empty_like(before);
  Tensor lowest;
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto finite = math::nearest_finite<scalar_t>(sigma);
    const MatrixNmsParams<scalar_t> p{elements(sorted), elements(before), elements(labels), count,
                                      finite,           elements(terms),  elements(after)};
    math::with_constant<math::Decay::kLinear, math::Decay::kGaussian>(
        decay_method(method), [&](auto kind) {
          launch("matrix_nms", matrix_terms_kernel<kind, scalar_t>, blocks_for(count), p);
          launch("matrix_nms", matrix_scores_kernel<kind, scalar_t>, blocks_for(count), p);
        });
    lowest = empty({}, after.options()).fill_(math::nearest_finite<scalar_t>(min_score));
  });
  // Back in input order, so that ties are in it.
  const Tensor rescored = empty_like(after);
  call::op("aten::index_copy_", "", rescored, int64_t(0), order, after);
  const Tensor stays = call::op("aten::ge", "Tensor", rescored, lowest);
  const Tensor keep =
      call::op("aten::squeeze", "dim", call::op("aten::nonzero", "", stays), int64_t(1));
  const Tensor kept = index_select(rescored, keep), places = selection_order(kept);
  return {index_select(keep, places), as_type(index_select(kept, places), scores.scalar_type())};
}

}  // namespace detops::cuda
