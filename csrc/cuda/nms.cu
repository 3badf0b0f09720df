// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>

#include "../math/box.h"
#include "../ops.h"
#include "launch.cuh"

// Boxes in score order are resolved a chunk at a time: one block settles the chunk itself, then the
// whole device tests the boxes behind it against what the chunk kept. Memory is O(N), nothing is
// copied to the host, and the only synchronisation is for the size of the result.
namespace detops::cuda {
namespace {

constexpr int kChunk = 512;

template <typename T>
struct NmsParams {
  const math::Box<T>* boxes;  // [N], score descending
  const int64_t* labels;      // [N], or null
  int64_t count;              // N
  double threshold;
  bool* keep;       // [N], all true at first
  int32_t* kept;    // [kChunk], offsets into the chunk in work
  int32_t* n_kept;  // [1]
};

template <typename T>
__device__ bool suppressed(const NmsParams<T>& p, int64_t by, int64_t box) {
  if (p.labels != nullptr && p.labels[by] != p.labels[box]) return false;
  const math::Box<T> a = p.boxes[by], b = p.boxes[box];
  return math::suppresses(a, math::area(a), b, math::area(b), p.threshold);
}

template <typename T>
__global__ void resolve_chunk_kernel(NmsParams<T> p, int64_t begin) {
  __shared__ bool alive[kChunk];
  const int self = static_cast<int>(threadIdx.x);
  const int size = static_cast<int>(min(int64_t(kChunk), p.count - begin));
  alive[self] = self < size && p.keep[begin + self];
  for (int i = 0; i < size; ++i) {
    __syncthreads();
    if (alive[i] && self > i && alive[self] && suppressed(p, begin + i, begin + self)) {
      alive[self] = false;
    }
  }
  __syncthreads();
  if (self < size) p.keep[begin + self] = alive[self];
  if (self == 0) {
    int32_t n = 0;
    for (int i = 0; i < size; ++i) {
      if (alive[i]) p.kept[n++] = i;
    }
    *p.n_kept = n;
  }
}

template <typename T>
__global__ void suppress_rest_kernel(NmsParams<T> p, int64_t begin) {
  const int64_t rest = begin + kChunk;
  const int32_t n = *p.n_kept;
  DETOPS_FOR_EACH(offset, p.count - rest) {
    const int64_t box = rest + offset;
    if (!p.keep[box]) continue;
    for (int32_t i = 0; i < n; ++i) {
      if (suppressed(p, begin + p.kept[i], box)) {
        p.keep[box] = false;
        break;
      }
    }
  }
}

Tensor select(const Tensor& boxes, const Tensor& scores, const Tensor* idxs, double threshold) {
  const int64_t count = boxes.size(0);
  if (count == 0) return at::empty({0}, boxes.options().dtype(at::kLong));
  // Adding zero turns -0 into +0, so that the two tie.
  const Tensor order = std::get<1>((scores.to(compute_type(scores.scalar_type())) + 0)
                                       .sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  const Tensor sorted = boxes.to(compute_type(boxes.scalar_type())).index_select(0, order);
  const Tensor labels = idxs ? idxs->to(at::kLong).index_select(0, order) : Tensor();
  const Tensor keep = at::ones({count}, boxes.options().dtype(at::kBool));
  const Tensor kept = at::empty({kChunk + 1}, boxes.options().dtype(at::kInt));
  const auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES(sorted.scalar_type(), "detops.nms", [&] {
    const NmsParams<scalar_t> p{
        reinterpret_cast<const math::Box<scalar_t>*>(sorted.const_data_ptr<scalar_t>()),
        labels.defined() ? labels.const_data_ptr<int64_t>() : nullptr,
        count,
        threshold,
        keep.mutable_data_ptr<bool>(),
        kept.mutable_data_ptr<int32_t>(),
        kept.mutable_data_ptr<int32_t>() + kChunk};
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      resolve_chunk_kernel<<<1, kChunk, 0, stream>>>(p, begin);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      if (begin + kChunk >= count) break;
      suppress_rest_kernel<<<blocks_for(count - begin - kChunk), kThreads, 0, stream>>>(p, begin);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  });
  return order.masked_select(keep);
}

}  // namespace

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  const at::cuda::OptionalCUDAGuard guard(boxes.device());
  meta::check_nms(boxes, scores, std::nullopt, iou_threshold);
  return select(boxes, scores, nullptr, iou_threshold);
}

Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold) {
  const at::cuda::OptionalCUDAGuard guard(boxes.device());
  meta::check_nms(boxes, scores, idxs, iou_threshold);
  return select(boxes, scores, &idxs, iou_threshold);
}

}  // namespace detops::cuda
