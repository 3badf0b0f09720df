// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "../../products.h"

namespace detops::cuda {

struct Pairs {
  Tensor keys, values;
};

// In ascending order of the lowest `bits` of the keys; equal ones stay in order. Keys are int32[N]
// or int64[N], taken for unsigned, and values int32[N].
Pairs sort_pairs(const Tensor& keys, const Tensor& values, int bits);

// int32[N]: where the scores, of any floating type, are in the order of selection: NaN of either
// sign first, then the highest. Ties, as of both zeros, are in input order.
Tensor selection_order(const Tensor& scores);

// By PyTorch: the elements of a vector in order, and where they were.
inline std::pair<Tensor, Tensor> stable_sort(const Tensor& t, bool descending) {
  int32_t stable = 1;
  AtenTensorHandle sorted = nullptr, order = nullptr;
  check_status(DETOPS_ATEN(sort_stable)(t.handle(), &stable, 0, descending, &sorted, &order),
               "sort");
  return {Tensor(sorted), Tensor(order)};
}

}  // namespace detops::cuda
