// SPDX-License-Identifier: MIT
#include "../../math/focal_loss.h"
#include "../common/host.h"

#define DETOPS_KERNELS "../boxes/focal_loss.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Minimum number of elements per thread. The losses of a chunk are also summed before they are
// added to those of other chunks, so sums do not depend on the number of threads.
constexpr int64_t kChunk = 8192;

// Calls run(T(), focus) with T the type of the elements and the focus as a constant.
template <typename Run>
void with_types(ScalarType type, double gamma, const Run& run) {
  with_element_type(type, [&](auto element) {
    math::with_focus(gamma, [&](auto focus) { run(element, focus); });
  });
}

// Calls run(T(), focus, f) with T the type of the logits and `f` the softmax loss.
template <typename Run>
void with_softmax(const Tensor& inputs, const Tensor& weights, double alpha, double gamma,
                  const Run& run) {
  with_types(inputs.scalar_type(), gamma, [&](auto element, auto focus) {
    using A = accumulate_t<decltype(element)>;
    const A* weight = weights.defined() ? weights.const_data_ptr<A>() : nullptr;
    run(element, focus, math::SoftmaxFocal<A>{A(alpha), A(gamma), weight, inputs.size(1)});
  });
}

}  // namespace

void sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                double gamma, Tensor& loss) {
  const ScalarType type = loss.scalar_type();
  const Tensor x = inputs.to(type).contiguous(), t = targets.to(type).contiguous();
  with_types(type, gamma, [&](auto element, auto focus) {
    using T = decltype(element);
    const auto f = math::focal_params<accumulate_t<T>>(alpha, gamma);
    const auto kernel = DETOPS_IN_USE(focal_forward<decltype(focus)::value, T>);
    T* out = mutable_elements<T>(loss);
    parallel_for(loss.numel(), kChunk, [&](int64_t begin, int64_t end) {
      kernel(f, elements<T>(x) + begin, elements<T>(t) + begin, end - begin, out + begin);
    });
  });
}

void sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha, double gamma,
                            Tensor& sum) {
  const ScalarType type = promote_types(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = inputs.to(type).contiguous(), t = targets.to(type).contiguous();
  const int64_t count = x.numel(), chunks = divide_up(count, kChunk);
  with_types(type, gamma, [&](auto element, auto focus) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto f = math::focal_params<A>(alpha, gamma);
    const auto kernel = DETOPS_IN_USE(focal_sum<decltype(focus)::value, T>);
    Buffer<A> sums(chunks);
    parallel_each(chunks, 1, [&](int64_t chunk) {
      const int64_t first = chunk * kChunk, n = std::min(kChunk, count - first);
      sums[chunk] = kernel(f, elements<T>(x) + first, elements<T>(t) + first, n);
    });
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[chunk];
    *sum.mutable_data_ptr<A>() = static_cast<A>(total);
  });
}

void sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 double alpha, double gamma, Tensor& to_inputs) {
  const ScalarType type = promote_types(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = inputs.to(type).contiguous(), t = targets.to(type).contiguous();
  const bool constant = is_constant(grad);
  const Tensor outer = constant ? grad : grad.to(type).contiguous();
  with_types(type, gamma, [&](auto element, auto focus) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto f = math::focal_params<A>(alpha, gamma);
    const auto kernel = DETOPS_IN_USE(focal_backward<decltype(focus)::value, T>);
    const A constant_grad =
        constant ? grad.as_strided({1}, {1}).to(compute_type(type)).template item<A>() : A(0);
    T* out = mutable_elements<T>(to_inputs);
    parallel_for(to_inputs.numel(), kChunk, [&](int64_t begin, int64_t end) {
      kernel(f, constant ? nullptr : elements<T>(outer) + begin, constant_grad,
             elements<T>(x) + begin, elements<T>(t) + begin, end - begin, out + begin);
    });
  });
}

void softmax_focal_loss_forward(const Tensor& inputs, const Tensor& targets,
                                const std::optional<Tensor>& weight, double alpha, double gamma,
                                Tensor& loss) {
  const Tensor x = inputs.contiguous(), t = targets.to(kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type());
  with_softmax(x, weights, alpha, gamma, [&](auto element, auto focus, const auto& f) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto kernel = DETOPS_IN_USE(softmax_focal_forward<decltype(focus)::value, T>);
    const T* from = elements<T>(x);
    const int64_t* target = elements<int64_t>(t);
    A* to = mutable_elements<A>(loss);
    parallel_for(x.size(0), grain_for(kChunk, f.classes), [&](int64_t begin, int64_t end) {
      kernel(f, from + begin * f.classes, target + begin, end - begin, to + begin);
    });
  });
}

void softmax_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 const std::optional<Tensor>& weight, double alpha, double gamma,
                                 Tensor& to_inputs) {
  const Tensor x = inputs.contiguous(), t = targets.to(kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type()), outer = wide(grad, x.scalar_type());
  with_softmax(x, weights, alpha, gamma, [&](auto element, auto focus, const auto& f) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto kernel = DETOPS_IN_USE(softmax_focal_backward<decltype(focus)::value, T>);
    const T* from = elements<T>(x);
    const int64_t* target = t.const_data_ptr<int64_t>();
    const A* g = outer.const_data_ptr<A>();
    T* to = mutable_elements<T>(to_inputs);
    parallel_for(x.size(0), grain_for(kChunk, f.classes), [&](int64_t begin, int64_t end) {
      kernel(f, g + begin, from + begin * f.classes, target + begin, end - begin,
             to + begin * f.classes);
    });
  });
}

}  // namespace detops::cpu
