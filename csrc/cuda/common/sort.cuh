// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "../../products.h"

// PyTorch's sorting.
namespace detops::cuda {

// The elements of a vector in order, and where they were.
inline std::pair<Tensor, Tensor> stable_sort(const Tensor& t, bool descending) {
  int32_t stable = 1;
  AtenTensorHandle sorted = nullptr, order = nullptr;
  check_status(DETOPS_ATEN(sort_stable)(t.handle(), &stable, 0, descending, &sorted, &order),
               "sort");
  return {Tensor(sorted), Tensor(order)};
}

}  // namespace detops::cuda
