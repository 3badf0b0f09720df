// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>
#include <tuple>
#include <vector>

#include "contract/contract.h"
#include "math/decay.h"
#include "math/overlap.h"
#include "parallel.h"

namespace detops {

// These parse keywords that a contract has validated.
inline math::Overlap overlap_kind(std::string_view kind) {
  if (kind == "iou") return math::Overlap::kIoU;
  if (kind == "iof") return math::Overlap::kIoF;
  if (kind == "giou") return math::Overlap::kGIoU;
  return kind == "diou" ? math::Overlap::kDIoU : math::Overlap::kCIoU;
}

inline math::Base overlap_base(std::string_view mode) {
  return mode == "iof" ? math::Base::kFirst : math::Base::kUnion;
}

inline math::Decay decay_method(std::string_view method) {
  if (method == "linear") return math::Decay::kLinear;
  return method == "gaussian" ? math::Decay::kGaussian : math::Decay::kNaive;
}

// Returns COCO's compressed run lengths as text on the host, all masks concatenated, and the end of
// each mask.
std::tuple<Tensor, Tensor> masks_to_rle(const Tensor& masks);

namespace cpu {

using detops::masks_to_rle;  // runs on the host for every device
#include "ops.inl"

}  // namespace cpu

namespace cuda {

using detops::masks_to_rle;
#include "ops.inl"

}  // namespace cuda

// Returns whether all elements share one memory location, as in the gradient of a sum.
inline bool is_constant(const Tensor& t) {
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) != 1 && t.stride(d) != 0) return false;
  }
  return true;
}

// Returns `t`, contiguous, in the type in which ops on `features` compute coordinates.
inline Tensor wide(const Tensor& t, ScalarType features) {
  return t.to(compute_type(features)).contiguous();
}

// Returns an undefined tensor if there is none.
inline Tensor wide(const std::optional<Tensor>& t, ScalarType features) {
  return t ? wide(*t, features) : Tensor();
}

inline Tensor wide(const Tensor& t) { return wide(t, t.scalar_type()); }

// The result of wide(t). If that is `t` itself, it is borrowed and `t` must outlive it: acquiring
// and releasing five references takes a tenth of the time of a small op.
class Widened {
 public:
  explicit Widened(const Tensor& t)
      : converted_(is_wide(t) ? Tensor() : wide(t)),
        tensor_(converted_.defined() ? converted_ : t) {}
  Widened(const Widened&) = delete;
  Widened& operator=(const Widened&) = delete;

  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }

 private:
  static bool is_wide(const Tensor& t) {
    return t.scalar_type() == compute_type(t.scalar_type()) && t.is_contiguous();
  }

  const Tensor converted_;
  const Tensor& tensor_;
};

inline bool is_channels_last(const Tensor& t) { return is_channels_last(t.metadata()); }

// Selects rows of a tensor by index.
inline Tensor index_select(const Tensor& t, const Tensor& indices) {
  return call::op("aten::index_select", "", t, int64_t(0), indices);
}

// Returns the rows of a contiguous [N, columns] tensor as structs.
template <template <typename> class Row, typename T>
const Row<T>* rows(const Tensor& t) {
  return reinterpret_cast<const Row<T>*>(t.const_data_ptr<T>());
}

template <template <typename> class Row, typename T>
Row<T>* mutable_rows(const Tensor& t) {
  return reinterpret_cast<Row<T>*>(t.mutable_data_ptr<T>());
}

// Returns the dtype in which ops on two tensors compute.
inline ScalarType compute_type(const Tensor& a, const Tensor& b) {
  return compute_type(promote_types(a.scalar_type(), b.scalar_type()));
}

}  // namespace detops
