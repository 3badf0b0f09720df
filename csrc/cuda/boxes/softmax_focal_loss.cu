// SPDX-License-Identifier: MIT
#include "../../math/focal_loss.h"
#include "../../ops.h"
#include "../common/launch.cuh"
#include "../common/vector.cuh"

namespace detops::cuda {
namespace {

constexpr int kRows = kThreads / kWarp;  // of a block: a warp takes a row

// Calls visit(row, lane) for each row, in all threads of a warp.
template <typename Visit>
__device__ void for_each_row(int64_t rows, const Visit& visit) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t row = int64_t(blockIdx.x) * kRows + warp; row < rows;
       row += int64_t(gridDim.x) * kRows) {
    visit(row, lane);
  }
}

// What the loss needs of a row, in all lanes; and its maximum.
template <typename T, typename A>
__device__ math::softmax_focal::Row<A> softmax_row(const T* x, int64_t classes, int64_t target,
                                                   int lane, A& m) {
  m = -std::numeric_limits<A>::infinity();
  for (int64_t j = lane; j < classes; j += kWarp) m = math::max(m, A(x[j]));
  for (int step = kWarp / 2; step > 0; step /= 2) {
    m = math::max(m, __shfl_xor_sync(0xffffffffu, m, step));
  }
  Vector<A, 1> rest{};
  for (int64_t j = lane; j < classes; j += kWarp) {
    if (j != target) rest.at[0] += math::exp(A(x[j]) - m);
  }
  sum_over_lanes(rest, kWarp);
  const A shift = A(x[target]) - m;
  return {shift, math::exp(shift), rest.at[0]};
}

template <math::Focus focus, typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    softmax_focal_kernel(math::SoftmaxFocal<A> f, const T* inputs, const int64_t* targets,
                         int64_t rows, A* losses) {
  for_each_row(rows, [&](int64_t i, int lane) {
    const int64_t target = targets[i];
    A loss = 0;
    if (f.counts(target)) {
      A m;
      const auto row = softmax_row(inputs + i * f.classes, f.classes, target, lane, m);
      loss = math::softmax_focal::loss<focus>(row, f.scale(target), f.gamma);
    }
    if (lane == 0) losses[i] = loss;
  });
}

template <math::Focus focus, typename T, typename A>
__global__ void __launch_bounds__(kThreads)
    softmax_focal_backward_kernel(math::SoftmaxFocal<A> f, const A* grad, const T* inputs,
                                  const int64_t* targets, int64_t rows, T* to_inputs) {
  for_each_row(rows, [&](int64_t i, int lane) {
    const int64_t target = targets[i];
    const T* x = inputs + i * f.classes;
    const bool counts = f.counts(target);
    math::softmax_focal::Row<A> row{};
    A m = 0, factor = 0;
    if (counts) {
      row = softmax_row(x, f.classes, target, lane, m);
      factor = -grad[i] * math::softmax_focal::slope<focus>(row, f.scale(target), f.gamma);
    }
    for (int64_t j = lane; j < f.classes; j += kWarp) {
      const A power = !counts ? A(0) : j == target ? -row.rest : math::exp(A(x[j]) - m);
      to_inputs[i * f.classes + j] = T(factor * power);
    }
  });
}

// Calls run(focus, f) with the focus as a constant.
template <typename A, typename Run>
void with_loss(const Tensor& weights, int64_t classes, double alpha, double gamma, const Run& run) {
  const A* weight = weights.defined() ? weights.const_data_ptr<A>() : nullptr;
  const math::SoftmaxFocal<A> f{A(alpha), A(gamma), weight, classes};
  math::with_focus(math::focus_of(gamma), [&](auto focus) { run(focus, f); });
}

}  // namespace

void softmax_focal_loss_forward(const Tensor& inputs, const Tensor& targets,
                                const std::optional<Tensor>& weight, double alpha, double gamma,
                                Tensor& loss) {
  const Tensor x = inputs.contiguous(), t = as_type(targets, kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type());
  DETOPS_FLOAT_SWITCH(x.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    with_loss<A>(weights, x.size(1), alpha, gamma, [&](auto focus, const auto& f) {
      launch("softmax_focal_loss", softmax_focal_kernel<focus, scalar_t, A>,
             blocks_for(x.size(0), kRows), f, x.const_data_ptr<scalar_t>(),
             t.const_data_ptr<int64_t>(), x.size(0), loss.mutable_data_ptr<A>());
    });
  });
}

void softmax_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 const std::optional<Tensor>& weight, double alpha, double gamma,
                                 Tensor& to_inputs) {
  const Tensor x = inputs.contiguous(), t = as_type(targets, kLong).contiguous();
  const Tensor weights = wide(weight, x.scalar_type()), outer = wide(grad, x.scalar_type());
  DETOPS_FLOAT_SWITCH(x.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    with_loss<A>(weights, x.size(1), alpha, gamma, [&](auto focus, const auto& f) {
      launch("softmax_focal_loss_backward", softmax_focal_backward_kernel<focus, scalar_t, A>,
             blocks_for(x.size(0), kRows), f, outer.const_data_ptr<A>(),
             x.const_data_ptr<scalar_t>(), t.const_data_ptr<int64_t>(), x.size(0),
             to_inputs.mutable_data_ptr<scalar_t>());
    });
  });
}

}  // namespace detops::cuda
