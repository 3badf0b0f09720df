// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/bilinear.h"
#include "../common/launch.cuh"
#include "../common/sort.cuh"

// The gradient of a map that was sampled bilinearly, by owner-computes: samples are sorted by their
// cell (bilinear.h), and who owns a pixel adds those of the four cells around it in their order.
// No atomics, so the same bits every run.
namespace detops::cuda {

struct SortedSamples {
  Tensor order;  // int64[samples]: their numbers, cell by cell, ascending within a cell
  Tensor begin;  // int32[cells + 1]: where each cell's begin
};

template <typename>
__global__ void numbers_kernel(int* out, int64_t count) {
  DETOPS_FOR_EACH(i, count) out[i] = static_cast<int>(i);
}

// cell: int32[samples], at most `cells`, which is the cell of samples that do not count.
inline SortedSamples sort_samples(const Tensor& cell, int64_t cells) {
  const auto [sorted, order] = stable_sort(cell, /*descending=*/false);
  const Tensor numbers = empty({cells + 1}, cell.options());
  launch("sort_samples", numbers_kernel<void>, blocks_for(cells + 1),
         numbers.mutable_data_ptr<int>(), cells + 1);
  AtenTensorHandle begin = nullptr;
  check_status(
      DETOPS_ATEN(searchsorted_Tensor)(sorted.handle(), numbers.handle(),
                                       /*out_int32=*/1, /*right=*/0, nullptr, nullptr, &begin),
      "searchsorted");
  return {order, Tensor(begin)};
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

}  // namespace detops::cuda
