// SPDX-License-Identifier: MIT
#include "../../math/focal_loss.h"
#include "../../ops.h"
#include "../common/launch.cuh"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

using math::Focus;

template <Focus focus, int n, typename T, typename A>
__global__ void focal_loss_kernel(math::Focal<A> f, const T* inputs, const T* targets,
                                  int64_t count, T* losses) {
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto x = load<k>(inputs + i), t = load<k>(targets + i);
    Vector<T, k> loss;
    for (int j = 0; j < k; ++j) {
      loss.at[j] = T(math::focal::loss<focus>(f, A(x.at[j]), A(t.at[j])));
    }
    store(losses + i, loss);
  });
}

// The sum of all threads' numbers, in thread 0.
template <typename A>
__device__ A sum_of_block(A mine) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ A sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  Vector<A, 1> sum{{mine}};
  sum_over_lanes(sum, kWarp);
  if (lane == 0) sums[warp] = sum.at[0];
  __syncthreads();
  A total = 0;
  for (int i = 0; i < kWarps; ++i) total += sums[i];
  return total;
}

// A sum for each block. The number of blocks follows from `count` alone, and so does the order.
template <Focus focus, int n, typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    focal_loss_sums_kernel(math::Focal<A> f, const T* inputs, const T* targets, int64_t count,
                           A* sums) {
  A sum = 0;
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto x = load<k>(inputs + i), t = load<k>(targets + i);
    for (int j = 0; j < k; ++j) sum += math::focal::loss<focus>(f, A(x.at[j]), A(t.at[j]));
  });
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// One block.
template <typename A>
__global__ void __launch_bounds__(kThreads) sum_kernel(const A* sums, int count, A* total) {
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *total = static_cast<A>(sum);
}

// A gradient for each loss, or one for all.
template <Focus focus, int n, typename T, typename A>
__global__ void focal_loss_backward_kernel(math::Focal<A> f, const T* grad, const A* grad_of_all,
                                           const T* inputs, const T* targets, int64_t count,
                                           T* to_inputs) {
  const A of_all = grad_of_all == nullptr ? A(0) : *grad_of_all;
  for_each_vector<n>(count, [&](int64_t i, auto k) {
    const auto x = load<k>(inputs + i), t = load<k>(targets + i);
    Vector<T, k> each{}, to;
    if (grad != nullptr) each = load<k>(grad + i);
    for (int j = 0; j < k; ++j) {
      const A outer = grad != nullptr ? A(each.at[j]) : of_all;
      to.at[j] = T(outer * math::focal::slope<focus>(f, A(x.at[j]), A(t.at[j])));
    }
    store(to_inputs + i, to);
  });
}

// Calls run(focus, n, f, x, t): two constants, the parameters, and the data as pointers. They and
// the two others, which may be null, are such that n numbers may be taken at a time.
template <typename T, typename Run>
void with_arguments(const Tensor& x, const Tensor& t, double alpha, double gamma, const void* other,
                    const void* another, const Run& run) {
  const T *inputs = x.const_data_ptr<T>(), *targets = t.const_data_ptr<T>();
  const auto f = math::focal_of<accumulate_t<T>>(alpha, gamma);
  math::with_focus(math::focus_of(gamma), [&](auto focus) {
    with_vector<T>(0, {inputs, targets, other, another},
                   [&](auto n) { run(focus, n, f, inputs, targets); });
  });
}

}  // namespace

void sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                double gamma, Tensor& loss) {
  const int64_t count = loss.numel();
  const ScalarType type = loss.scalar_type();
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    scalar_t* out = loss.mutable_data_ptr<scalar_t>();
    with_arguments<scalar_t>(x, t, alpha, gamma, out, nullptr,
                             [&](auto focus, auto n, auto f, auto* inputs, auto* targets) {
                               launch(
                                   "sigmoid_focal_loss", focal_loss_kernel<focus, n, scalar_t, A>,
                                   blocks_for(count, kThreads * n), f, inputs, targets, count, out);
                             });
  });
}

void sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha, double gamma,
                            Tensor& sum) {
  const int64_t count = inputs.numel();
  if (count == 0) {
    sum.zero_();
    return;
  }
  const ScalarType type = promoted_type(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  constexpr unsigned kMost = 1024;  // blocks: enough for any GPU, and a second pass of no weight
  const unsigned blocks = std::min(blocks_for(count, 16 * kThreads), kMost);
  const Tensor sums = empty({blocks}, sum.options());
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    A* to = sums.mutable_data_ptr<A>();
    with_arguments<scalar_t>(x, t, alpha, gamma, nullptr, nullptr,
                             [&](auto focus, auto n, auto f, auto* inputs, auto* targets) {
                               launch("sigmoid_focal_loss",
                                      focal_loss_sums_kernel<focus, n, scalar_t, A>, blocks, f,
                                      inputs, targets, count, to);
                             });
    launch("sigmoid_focal_loss", sum_kernel<A>, 1, to, blocks, sum.mutable_data_ptr<A>());
  });
}

void sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 double alpha, double gamma, Tensor& to_inputs) {
  const int64_t count = to_inputs.numel();
  const ScalarType type = promoted_type(inputs.scalar_type(), targets.scalar_type());
  const Tensor x = as_type(inputs, type).contiguous(), t = as_type(targets, type).contiguous();
  const Tensor slopes = as_type(to_inputs, type);  // itself, unless of another dtype
  // One for all is never rounded to half precision: a mean's may be as small as 1 / count.
  const bool constant = is_constant(grad);
  const Tensor outer =
      constant ? wide(grad.as_strided({1}, {1}), type) : as_type(grad, type).contiguous();
  DETOPS_FLOAT_SWITCH(type, [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t* each = constant ? nullptr : outer.const_data_ptr<scalar_t>();
    const A* of_all = constant ? outer.const_data_ptr<A>() : nullptr;
    scalar_t* out = slopes.mutable_data_ptr<scalar_t>();
    with_arguments<scalar_t>(
        x, t, alpha, gamma, each, out,
        [&](auto focus, auto n, auto f, auto* inputs, auto* targets) {
          launch("sigmoid_focal_loss_backward", focal_loss_backward_kernel<focus, n, scalar_t, A>,
                 blocks_for(count, kThreads * n), f, each, of_all, inputs, targets, count, out);
        });
  });
  to_inputs = as_type(slopes, to_inputs.scalar_type());
}

}  // namespace detops::cuda
