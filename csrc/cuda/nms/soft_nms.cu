// SPDX-License-Identifier: MIT
#include "../../math/decay.h"
#include "../../ops.h"
#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

constexpr int kSoftNmsThreads = 1024;

template <typename T>
struct SoftNmsParams {
  const math::Box<T>* boxes;  // [N]
  T* scores;                  // [N], NaN for a box that is selected or dropped
  int64_t count;              // N
  math::SoftNmsRule<T> rule;
  int64_t limit;    // of selections
  int64_t* keep;    // [N], out
  T* kept_scores;   // [N], out
  int64_t* n_kept;  // [1], out
};

// The higher score, and of equals the lower index; an index of -1 is none.
template <typename T>
__device__ bool better(T score, int64_t index, T than_score, int64_t than_index) {
  if (index < 0 || than_index < 0) return index >= 0;
  return score > than_score || (score == than_score && index < than_index);
}

// Each selection is one pass over the boxes, and depends on the one before: a single block, each
// thread of which owns every 1024th box.
template <math::Decay kind, typename T>
__global__ void soft_nms_kernel(SoftNmsParams<T> p) {
  __shared__ T scores[kSoftNmsThreads];
  __shared__ int64_t indices[kSoftNmsThreads];
  const int self = static_cast<int>(threadIdx.x);
  math::Box<T> selected{};
  int64_t last = -1, n = 0;
  while (n < p.limit) {
    const T area = math::area(selected);
    T most = 0;
    int64_t best = -1;
    for (int64_t i = self; i < p.count; i += kSoftNmsThreads) {
      T score = p.scores[i];
      if (score != score) continue;
      if (last >= 0) {
        const math::Box<T> box = p.boxes[i];
        const T meet = math::intersection(selected, box);
        const T iou = math::pairwise::iou(meet, area + math::area(box) - meet);
        score = math::decay::decayed<kind, T>(score, iou, p.rule);
      }
      if (i == last || !(score >= p.rule.min_score)) {
        p.scores[i] = static_cast<T>(NAN);
        continue;
      }
      p.scores[i] = score;
      if (better(score, i, most, best)) most = score, best = i;
    }
    scores[self] = most;
    indices[self] = best;
    for (int half = kSoftNmsThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (self < half &&
          better(scores[self + half], indices[self + half], scores[self], indices[self])) {
        scores[self] = scores[self + half];
        indices[self] = indices[self + half];
      }
    }
    __syncthreads();
    last = indices[0];
    if (last < 0) break;
    if (self == 0) {
      p.keep[n] = last;
      p.kept_scores[n] = scores[0];
    }
    ++n;
    selected = p.boxes[last];
    // The shared numbers are read by all before they are written again.
    __syncthreads();
  }
  if (self == 0) *p.n_kept = n;
}

}  // namespace

std::tuple<Tensor, Tensor> soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                                    double sigma, double min_score, std::string_view method,
                                    std::optional<int64_t> max_output) {
  const int64_t count = boxes.size(0);
  const auto type = compute_type(promoted_type(boxes.scalar_type(), scores.scalar_type()));
  const Tensor all = as_type(boxes, type).contiguous();
  const Tensor left = empty({count}, scores.options().dtype(type)).copy_(scores);
  const Tensor keep = empty({count}, boxes.options().dtype(kLong));
  const Tensor kept_scores = empty({count}, left.options());
  if (count == 0) return {keep, as_type(kept_scores, scores.scalar_type())};
  const Tensor n_kept = empty({1}, keep.options());
  DETOPS_WIDE_SWITCH(type, [&] {
    const SoftNmsParams<scalar_t> p{
        reinterpret_cast<const math::Box<scalar_t>*>(all.const_data_ptr<scalar_t>()),
        left.mutable_data_ptr<scalar_t>(),
        count,
        math::soft_nms_rule<scalar_t>(iou_threshold, sigma, min_score),
        max_output.value_or(count),
        keep.mutable_data_ptr<int64_t>(),
        kept_scores.mutable_data_ptr<scalar_t>(),
        n_kept.mutable_data_ptr<int64_t>()};
    math::with_decay(decay_method(method), [&](auto constant) {
      launch("soft_nms", soft_nms_kernel<constant, scalar_t>, {1, kSoftNmsThreads}, p);
    });
  });
  const int64_t n = n_kept.item<int64_t>();
  return {keep.narrow(0, 0, n).clone(),
          empty({n}, scores.options()).copy_(kept_scores.narrow(0, 0, n))};
}

}  // namespace detops::cuda
