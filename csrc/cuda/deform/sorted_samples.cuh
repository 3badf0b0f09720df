// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/bilinear.h"
#include "../common/launch.cuh"
#include "../common/sort.cuh"
#include "../common/vector.cuh"

// The gradient of a map that was sampled bilinearly, by owner-computes: samples are sorted by their
// cell (bilinear.h), and who owns a pixel adds those of the four cells around it in their order.
// No atomics, so the same bits every run.
namespace detops::cuda {

struct SortedSamples {
  Tensor order;  // as sort_samples takes them, cell by cell
  Tensor begin;  // int32[cells + 1]: where each cell's begin
};

// samples: int32[samples, 2], a number of each, and its cell: at most `cells`, which is the cell of
// those that do not count. Samples of a cell keep their order. Then calls each(j, number) for the
// sample that comes to be the j-th, on the device: it may change the number.
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
    int from = 0, to = count;  // the first sample of this cell or one after it is of [from, to]
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

// Calls visit(j, corner) for the sorted samples j that reach a pixel, `corner` being what that is
// to the sample's cell. `pixel` is its number, `x` and `y` its place in a map of that width.
template <typename Visit>
__device__ void visit_samples(const int* begin, int64_t pixel, int y, int x, int width,
                              const Visit& visit) {
  for (int lower = 0; lower <= (y > 0 ? 1 : 0); ++lower) {
    const int64_t cell = pixel - int64_t(lower) * width;  // and the one before it
    const int middle = begin[cell], end = begin[cell + 1];
    for (int j = x > 0 ? begin[cell - 1] : middle; j < end; ++j) {
      visit(j, 2 * lower + (j < middle ? 1 : 0));
    }
  }
}

// Adds the values at a sample's corners, by their shares: pixels of a map in global memory that lie
// `stride` apart, or -1 with a share of 0. All are loaded before one is waited for, which compilers
// do where no load has a condition of its own.
template <int n, typename T, typename Stride, typename A>
__device__ void add_corners(const T* map, Stride stride, Vector<int, 4> corner, Vector<A, 4> share,
                            Vector<A, n>& sums) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(map));
#endif
  Vector<T, n> found[4] = {};
  if ((corner.at[0] | corner.at[1] | corner.at[2] | corner.at[3]) >= 0) {
    for (int i = 0; i < 4; ++i) found[i] = load<n>(map + int64_t(corner.at[i]) * stride);
  } else {
    for (int i = 0; i < 4; ++i) {
      if (corner.at[i] >= 0) found[i] = load<n>(map + int64_t(corner.at[i]) * stride);
    }
  }
  for (int i = 0; i < 4; ++i) add_weighted(share.at[i], found[i], sums);
}

constexpr int kBlockSamples = 64;  // samples that a block takes at a time

// The products of samples' gradients, to which grad_at(sample, channel) points, with the values at
// their corners: pixels of `maps` that lie `stride` apart, or -1. By all threads of a block,
// `lanes` of them for a sample.
template <int n, typename A, typename T, typename GradAt>
__device__ void multiply_corners(const Vector<int, 4>* corners, const T** maps, int64_t stride,
                                 int channels, int lanes, const GradAt& grad_at,
                                 Vector<A, 4>* products) {
  const int self = static_cast<int>(threadIdx.x), lane = self % lanes;
  for (int i = self / lanes; i < kBlockSamples; i += kThreads / lanes) {
    const Vector<int, 4> corner = corners[i];
    const int end = math::cell_of(corner.at) < 0 ? 0 : channels;
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
