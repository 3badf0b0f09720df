// SPDX-License-Identifier: MIT
#include "../../math/focal_loss.h"
#include "../../ops.h"
#include "../common/buffer.h"
#include "../common/element_type.h"
#include "../common/memory.h"

#define DETOPS_KERNELS "../boxes/focal_loss.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// Also the numbers whose losses are summed before they meet those of others: sums do not depend on
// the number of threads.
constexpr int64_t kChunk = 8192;

// Calls run(T(), focus) for the type of the elements, with the focus as a constant.
template <typename Run>
void with_types(ScalarType type, double gamma, const Run& run) {
  with_element_type(type, [&](auto element) {
    math::with_focus(math::focus_of(gamma), [&](auto focus) { run(element, focus); });
  });
}

template <typename T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

}  // namespace

void sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                double gamma, Tensor& loss) {
  expect_writes(loss);
  const ScalarType type = loss.scalar_type();
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  with_types(type, gamma, [&](auto element, auto focus) {
    using T = decltype(element);
    const auto f = math::focal_of<accumulate_t<T>>(alpha, gamma);
    const auto kernel = DETOPS_IN_USE(focal_forward<decltype(focus)::value, T>);
    T* out = static_cast<T*>(loss.mutable_data_ptr());
    parallel_for(0, loss.numel(), kChunk, [&](int64_t begin, int64_t end) {
      kernel(f, data<T>(x) + begin, data<T>(t) + begin, end - begin, out + begin);
    });
  });
}

void sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha, double gamma,
                            Tensor& sum) {
  const ScalarType type = promoted_type(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  const int64_t count = x.numel(), chunks = (count + kChunk - 1) / kChunk;
  with_types(type, gamma, [&](auto element, auto focus) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto f = math::focal_of<A>(alpha, gamma);
    const auto kernel = DETOPS_IN_USE(focal_sum<decltype(focus)::value, T>);
    Buffer<A> sums(chunks);
    parallel_for(0, chunks, 1, [&](int64_t chunk, int64_t end) {
      for (; chunk < end; ++chunk) {
        const int64_t first = chunk * kChunk;
        sums[chunk] =
            kernel(f, data<T>(x) + first, data<T>(t) + first, std::min(kChunk, count - first));
      }
    });
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[chunk];
    *sum.mutable_data_ptr<A>() = static_cast<A>(total);
  });
}

void sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 double alpha, double gamma, Tensor& to_inputs) {
  expect_writes(to_inputs);
  const ScalarType type = promoted_type(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  const Tensor result = as_type(to_inputs, type);  // itself, unless of another dtype
  const bool constant = is_constant(grad);
  const Tensor outer = constant ? grad : as_type(grad, type).contiguous();
  with_types(type, gamma, [&](auto element, auto focus) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const auto f = math::focal_of<A>(alpha, gamma);
    const auto kernel = DETOPS_IN_USE(focal_backward<decltype(focus)::value, T>);
    const A same =
        constant ? as_type(grad.as_strided({1}, {1}), compute_type(type)).template item<A>() : A(0);
    T* out = static_cast<T*>(result.mutable_data_ptr());
    parallel_for(0, result.numel(), kChunk, [&](int64_t begin, int64_t end) {
      kernel(f, constant ? nullptr : data<T>(outer) + begin, same, data<T>(x) + begin,
             data<T>(t) + begin, end - begin, out + begin);
    });
  });
  to_inputs = as_type(result, to_inputs.scalar_type());
}

}  // namespace detops::cpu
