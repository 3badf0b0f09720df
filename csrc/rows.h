// SPDX-License-Identifier: MIT
#pragma once

#include "ops.h"

// The rows of a contiguous [N, columns] tensor as structs of numbers.
namespace detops {

template <template <typename> class Row, typename T>
const Row<T>* rows(const Tensor& t) {
  return reinterpret_cast<const Row<T>*>(t.const_data_ptr<T>());
}

template <template <typename> class Row, typename T>
Row<T>* mutable_rows(const Tensor& t) {
  return reinterpret_cast<Row<T>*>(t.mutable_data_ptr<T>());
}

// The dtype that two tensors are computed in together.
inline ScalarType compute_type(const Tensor& a, const Tensor& b) {
  return compute_type(promoted_type(a.scalar_type(), b.scalar_type()));
}

}  // namespace detops
