// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>

#include "../../math/focal_loss.h"
#include "../../ops.h"
#include "../common/element_type.h"
#include "../common/memory.h"

#define DETOPS_KERNELS "../boxes/softmax_focal_loss.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

constexpr int64_t kElementsPerThread = 8192;

int64_t rows_per_thread(int64_t classes) {
  return std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, classes));
}

// Calls run(T(), focus, f) for the type of the logits, with the focus as a constant.
template <typename Run>
void with_loss(const Tensor& inputs, const Tensor& weights, double alpha, double gamma,
               const Run& run) {
  with_element_type(inputs.scalar_type(), [&](auto element) {
    using A = accumulate_t<decltype(element)>;
    const A* weight = weights.defined() ? weights.const_data_ptr<A>() : nullptr;
    const math::SoftmaxFocal<A> f{A(alpha), A(gamma), weight, inputs.size(1)};
    math::with_focus(math::focus_of(gamma), [&](auto focus) { run(element, focus, f); });
  });
}

}  // namespace

void softmax_focal_loss_forward(const Tensor& inputs, const Tensor& targets,
                                const std::optional<Tensor>& weight, double alpha, double gamma,
                                Tensor& loss) {
  const Tensor x = inputs.contiguous(), t = as_type(targets, kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type());
  with_loss(x, weights, alpha, gamma, [&](auto element, auto focus, const auto& f) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto kernel = DETOPS_IN_USE(softmax_focal_forward<decltype(focus)::value, T>);
    const T* from = static_cast<const T*>(x.const_data_ptr());
    const int64_t* target = t.const_data_ptr<int64_t>();
    A* to = loss.mutable_data_ptr<A>();
    parallel_for(0, x.size(0), rows_per_thread(f.classes), [&](int64_t begin, int64_t end) {
      kernel(f, from + begin * f.classes, target + begin, end - begin, to + begin);
    });
  });
}

void softmax_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 const std::optional<Tensor>& weight, double alpha, double gamma,
                                 Tensor& to_inputs) {
  expect_writes(to_inputs);
  const Tensor x = inputs.contiguous(), t = as_type(targets, kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type()), outer = wide(grad, x.scalar_type());
  with_loss(x, weights, alpha, gamma, [&](auto element, auto focus, const auto& f) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto kernel = DETOPS_IN_USE(softmax_focal_backward<decltype(focus)::value, T>);
    const T* from = static_cast<const T*>(x.const_data_ptr());
    const int64_t* target = t.const_data_ptr<int64_t>();
    const A* g = outer.const_data_ptr<A>();
    T* to = static_cast<T*>(to_inputs.mutable_data_ptr());
    parallel_for(0, x.size(0), rows_per_thread(f.classes), [&](int64_t begin, int64_t end) {
      kernel(f, g + begin, from + begin * f.classes, target + begin, end - begin,
             to + begin * f.classes);
    });
  });
}

}  // namespace detops::cpu
