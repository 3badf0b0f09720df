// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/bilinear.h"
#include "launch.cuh"
#include "sort.cuh"
#include "vector.cuh"

// The gradient of a bilinearly sampled feature map, by owner-computes. Samples are sorted by their
// cell (bilinear.h). The owner of a pixel adds the samples of the four cells around it, in order.
// There are no atomics, so every run gives the same bits.
namespace detops::cuda {

struct SortedSamples {
  Tensor order;  // the argument of sort_samples, grouped by cell
  Tensor begin;  // int32[cells + 1]: start of each cell in `order`
};

// Sorts samples, int32[samples, 2], by their cell. A sample is an index and a cell in [0, cells];
// `cells` is for samples that do not count. Samples of a cell keep their order. Then calls
// each(j, index) on the device for the sample that is now the j-th; it may change the index.
template <typename Each>
SortedSamples sort_samples(const Tensor& samples, int64_t cells, const Each& each) {
  const Tensor order = sort_by_second(samples, cells);
  const Tensor begin = empty({cells + 1}, samples.options());
  const int count = narrow(samples.size(0));
  Vector<int, 2>* sorted = elements(order);
  int* first = elements(begin);
  for_each(std::max<int64_t>(count, cells + 1), [=] __device__(int64_t i) {
    if (i < count) each(i, sorted[i].at[0]);
    if (i > cells) return;
    int from = 0, to = count;  // the first sample of this or a later cell is in [from, to]
    while (from < to) {
      const int middle = from + (to - from) / 2;
      if (sorted[middle].at[1] < i) {
        from = middle + 1;
      } else {
        to = middle;
      }
    }
    first[i] = from;
  });
  return {order, begin};
}

inline SortedSamples sort_samples(const Tensor& samples, int64_t cells) {
  return sort_samples(samples, cells, [] __device__(int64_t, int) {});
}

// Calls visit(j, corner) for the sorted samples j that reach a pixel, where `corner` is the pixel's
// corner in the sample's cell. `pixel` is the index of the pixel, `x` and `y` its position in a
// feature map `width` pixels wide.
template <typename Visit>
__device__ void visit_samples(const int* begin, int64_t pixel, int y, int x, int width,
                              const Visit& visit) {
  for (int lower = 0; lower <= (y > 0 ? 1 : 0); ++lower) {
    const int64_t cell = pixel - int64_t(lower) * width;  // and the cell before it
    const int middle = begin[cell], end = begin[cell + 1];
    for (int j = x > 0 ? begin[cell - 1] : middle; j < end; ++j) {
      visit(j, 2 * lower + (j < middle ? 1 : 0));
    }
  }
}

// Adds the weighted values at a sample's corners. Corners are pixels of a feature map in global
// memory with stride `stride`, or -1 with a weight of 0. If all corners are pixels, the loads are
// unconditional: compilers then issue all of them before they use the first.
template <int n, typename T, typename Stride, typename A>
__device__ void add_corners(const T* map, Stride stride, Vector<int, 4> corner, Vector<A, 4> weight,
                            Vector<A, n>& sums) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(map));
#endif
  Vector<T, n> values[4] = {};
  if ((corner.at[0] | corner.at[1] | corner.at[2] | corner.at[3]) >= 0) {
    for (int i = 0; i < 4; ++i) values[i] = load<n>(map + int64_t(corner.at[i]) * stride);
  } else {
    for (int i = 0; i < 4; ++i) {
      if (corner.at[i] >= 0) values[i] = load<n>(map + int64_t(corner.at[i]) * stride);
    }
  }
  for (int i = 0; i < 4; ++i) add_weighted(weight.at[i], values[i], sums);
}

constexpr int kBlockSamples = 64;  // samples that a block handles at a time

// Computes the dot products over channels of a sample's gradient with the values at its corners.
// grad_at(sample, channel) points to the gradient. Corners are pixels of `maps` with stride
// `stride`, or -1. All threads of a block must call it; `lanes` of them handle a sample.
template <int n, typename A, typename T, typename GradAt>
__device__ void dot_corners(const Vector<int, 4>* corners, const T** maps, int64_t stride,
                            int channels, int lanes, const GradAt& grad_at,
                            Vector<A, 4>* products) {
  const int self = static_cast<int>(threadIdx.x), lane = self % lanes;
  for (int i = self / lanes; i < kBlockSamples; i += kThreads / lanes) {
    const Vector<int, 4> corner = corners[i];
    const int end = math::corner_cell(corner.at) < 0 ? 0 : channels;
    Vector<A, 4> sums{};
    for (int c = lane * kRun; c < end; c += lanes * kRun) {
      const auto grad = load_run<n, A>(channels - c, [&](int k) { return grad_at(i, c + k); });
      for (int k = 0; k < 4; ++k) {
        if (corner.at[k] < 0) continue;
        const T* pixel = maps[i] + corner.at[k] * stride + c;
        const auto value = load_run<n, A>(channels - c, [&](int m) { return pixel + m; });
        sums.at[k] = dot(grad, value, sums.at[k]);
      }
    }
    sum_over_lanes(sums, lanes);
    if (lane == 0) products[i] = sums;
  }
}

}  // namespace detops::cuda
