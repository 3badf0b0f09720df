// SPDX-License-Identifier: MIT
#include "../../math/decay.h"
#include "../../ops.h"
#include "score_order.h"

namespace detops::cpu {

// Boxes of one label by descending score, as a structure of arrays, with room to read a vector
// more.
template <typename T>
struct MatrixNmsList {
  const T *x1, *y1, *x2, *y2, *area;
  const T* term;  // math::decay::matrix_term, of the boxes that it is known of
};
constexpr int64_t kMatrixNmsPadding = 16;

// What is known of a box from some of those better than it.
template <typename T>
struct MatrixNmsState {
  T most;    // largest IoU
  T weight;  // largest math::decay::matrix_weight
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../nms/matrix_nms.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Owns what a MatrixNmsList points at: boxes in the order of selection.
template <typename T>
class MatrixNmsBoxes {
 public:
  MatrixNmsBoxes(const T* boxes, const T* scores, const Selection& selection)
      : stride_(selection.ends().back() + kMatrixNmsPadding), data_(6 * stride_) {
    std::fill_n(data_.data(), 6 * stride_, T(0));
    for (int64_t i = 0; i < selection.ends().back(); ++i) {
      const int64_t from = selection.order()[i];
      // A box without a score says nothing, and is dropped.
      if (scores[from] != scores[from]) continue;
      const T* b = boxes + 4 * from;
      for (int64_t side = 0; side < 4; ++side) data_[side * stride_ + i] = b[side];
      data_[4 * stride_ + i] = math::area(math::Box<T>{b[0], b[1], b[2], b[3]});
    }
  }

  MatrixNmsList<T> from(int64_t begin) const {
    const T* x1 = data_.data() + begin;
    return {
        x1, x1 + stride_, x1 + 2 * stride_, x1 + 3 * stride_, x1 + 4 * stride_, x1 + 5 * stride_};
  }

  T* terms(int64_t begin) { return data_.data() + 5 * stride_ + begin; }

 private:
  int64_t stride_;
  Buffer<T> data_;
};

// By which factor the scores of one label fall. Boxes are taken a block at a time: all threads meet
// those of the block with the boxes before it, of which everything is known; then one thread
// settles the block in order.
template <math::Decay kind, typename T>
void settle(const MatrixNmsList<T>& list, T* terms, int64_t count, T sigma, T* factors) {
  constexpr int64_t kBlock = 256, kPairsPerThread = 1 << 15;
  const auto meet = DETOPS_IN_USE(matrix_nms_meet<kind, T>);
  MatrixNmsState<T> states[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    const int64_t grain = std::max<int64_t>(1, kPairsPerThread / (begin + 1));
    parallel_for(begin, end, grain, [&](int64_t j, int64_t last) {
      for (; j < last; ++j) {
        states[j - begin] = {0, math::decay::matrix_least_weight<kind, T>()};
        meet(list, 0, begin, j, states[j - begin]);
      }
    });
    for (int64_t j = begin; j < end; ++j) {
      MatrixNmsState<T>& state = states[j - begin];
      meet(list, begin, j, j, state);
      terms[j] = math::decay::matrix_term<kind>(state.most);
      factors[j] = math::decay::matrix_factor<kind>(state.weight, sigma);
    }
  }
}

// The new scores, by input order.
template <math::Decay kind, typename T>
Buffer<T> rescored(const T* boxes, const T* scores, const Selection& selection, T sigma,
                   T min_score) {
  const uint32_t* order = selection.order();
  const int64_t n = selection.ends().back();
  MatrixNmsBoxes<T> list(boxes, scores, selection);
  Buffer<T> factors(n);
  const auto settle_segment = [&](int64_t k) {
    const int64_t begin = selection.begin(k);
    int64_t count = selection.count(k);
    // Scores only fall: what is below the limit now will be dropped, and says nothing that matters.
    while (min_score > 0 && count > 0 && scores[order[begin + count - 1]] < min_score) {
      factors[begin + --count] = T(1);
    }
    settle<kind>(list.from(begin), list.terms(begin), count, sigma, factors.data() + begin);
  };
  // Long labels one after another, each by all threads; then the others side by side.
  constexpr int64_t kLong = 4096, kSettled = 1024;
  const int64_t segments = static_cast<int64_t>(selection.ends().size());
  const auto is_long = [&](int64_t k) { return segments == 1 || selection.count(k) >= kLong; };
  for (int64_t k = 0; k < segments; ++k) {
    if (is_long(k)) settle_segment(k);
  }
  const int64_t grain = std::max<int64_t>(1, segments * kSettled / n);
  parallel_for(0, segments, grain, [&](int64_t k, int64_t last) {
    for (; k < last; ++k) {
      if (!is_long(k)) settle_segment(k);
    }
  });
  Buffer<T> result(n);
  for (int64_t i = 0; i < n; ++i) result[order[i]] = scores[order[i]] * factors[i];
  return result;
}

}  // namespace

std::tuple<Tensor, Tensor> matrix_nms(const Tensor& boxes, const Tensor& scores,
                                      const std::optional<Tensor>& idxs, double sigma,
                                      double min_score, std::string_view method) {
  const int64_t n = boxes.size(0);
  check_count("matrix_nms", n);
  const auto indices = boxes.options().dtype(kLong);
  if (n == 0) return {empty({0}, indices), empty({0}, scores.options())};
  const auto type = compute_type(promoted_type(boxes.scalar_type(), scores.scalar_type()));
  const Tensor all = as_type(boxes, type).contiguous();
  const Tensor before = as_type(scores, type).contiguous();
  const Selection selection(before, Labels(idxs ? &*idxs : nullptr).data());
  const bool linear = decay_method(method) == math::Decay::kLinear;
  Tensor keep, after;
  DETOPS_WIDE_SWITCH(type, [&] {
    const auto lowest = math::nearest_finite<scalar_t>(min_score);
    auto* const run = linear ? rescored<math::Decay::kLinear, scalar_t>
                             : rescored<math::Decay::kGaussian, scalar_t>;
    const auto result = run(all.const_data_ptr<scalar_t>(), before.const_data_ptr<scalar_t>(),
                            selection, math::nearest_finite<scalar_t>(sigma), lowest);
    Buffer<uint32_t> kept(n), order(n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (result[i] >= lowest) kept[count++] = static_cast<uint32_t>(i);
    }
    ArgSort<decltype(descending_key(scalar_t()))>()(
        count, [&](int64_t i) { return descending_key(result[kept[i]]); }, order.data());
    keep = empty({count}, indices);
    after = empty({count}, before.options());
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t index = kept[order[i]];
      keep.mutable_data_ptr<int64_t>()[i] = index;
      after.mutable_data_ptr<scalar_t>()[i] = result[index];
    }
  });
  return {keep, as_type(after, scores.scalar_type())};
}

}  // namespace detops::cpu
