// SPDX-License-Identifier: MIT
#include "../../host/last_step.h"
#include "../../products.h"
#include "../common/vector.cuh"

#ifndef DETOPS_EMULATE_CUDA
#include <cuda/atomic>
#endif

namespace detops::math {

#include "../../math/gates.inl"

}  // namespace detops::math

// One kernel runs all steps of a sequence. A block owns some of the states and some rows of the
// batch. The weights of its states stay in shared memory from the first step to the last. In each
// step it multiplies the output of the previous step, written by all blocks with the same rows, by
// these weights. Then these blocks synchronise. A launch and a library's matrix product per step
// would cost more time on the host than a small step takes on the device. The op runs
// asynchronously, and a CUDA graph can capture it.
namespace detops::cuda {
namespace {

using math::gates::Lltm;

constexpr int kStepThreads = 512, kStepWarps = kStepThreads / kWarp;
constexpr int kTile = 4;            // rows and columns of the sums that a warp computes at a time
constexpr int kCounterStride = 32;  // in int: one cache line per counter

// A block's part of the sequence. Columns of weights have a stride of `pitch` elements and are
// padded with zeros after the first `depth`, so that they are read as vectors for any depth.
struct Split {
  int rows, states, depth, pitch;
  bool in_shared;  // whether a block's weights fit in shared memory
};

// The forward pass: per state, the sums of three gates over the previous states.
template <typename T>
struct Forward {
  static constexpr int kColumns = 3, kDepth = 1;  // of a product, per state
  int64_t rows, states, weight_stride;
  const T *weights, *first_state, *first_cell;
  T* gates;  // [T, B, 3H] in: the input's part of the sums; out: activated gates
  T *cells, *output;

  // The values that a thread needs for a state, in addition to the product.
  struct Operands {
    Lltm<T> sums;
    T cell;
  };

  __device__ T weight(int64_t state, int gate, int64_t k) const {
    return weights[(gate * states + state) * weight_stride + k];
  }
  // Left operand of the product: the states before this step, [B, H].
  __device__ const T* left(int64_t step) const {
    return step == 0 ? first_state : output + (step - 1) * rows * states;
  }
  __device__ Operands load(int64_t step, int64_t row, int64_t state) const {
    const T* gate = gates + (step * rows + row) * 3 * states + state;
    const int64_t i = row * states + state;
    return {{gate[0], gate[states], gate[2 * states]},
            step == 0 ? first_cell[i] : cells[(step - 1) * rows * states + i]};
  }
  __device__ void finish(int64_t step, int64_t row, int64_t state, const Operands& operands,
                         const T* product) const {
    const Lltm<T> gate = math::gates::activate<T, T>({operands.sums.input + product[0],
                                                      operands.sums.output + product[1],
                                                      operands.sums.candidate + product[2]});
    const T cell = math::gates::next_cell(gate, operands.cell);
    const int64_t i = (step * rows + row) * states + state;
    T* to = gates + (step * rows + row) * 3 * states + state;
    to[0] = gate.input;
    to[states] = gate.output;
    to[2 * states] = gate.candidate;
    cells[i] = cell;
    output[i] = math::gates::next_state(gate, cell);
  }
};

// The backward pass: per state, the gradient from the gates of the next step. Steps are counted
// from the end of the sequence. One more step computes the gradient of the initial states.
template <typename T>
struct Backward {
  static constexpr int kColumns = 1, kDepth = 3;
  int64_t rows, states, weight_stride, steps;
  const T *weights, *gates, *cells, *grad_output, *grad_state, *grad_cell;  // grad_state or null
  T *to_gates, *to_state, *to_cell;                                         // to_state or null

  struct Operands {
    Lltm<T> gate;
    T cell, grad_state, grad_cell;
  };

  __device__ T weight(int64_t state, int, int64_t k) const {
    return weights[k * weight_stride + state];
  }
  __device__ const T* left(int64_t step) const {
    return step == 0 ? nullptr : to_gates + (steps - step) * rows * 3 * states;
  }
  __device__ Operands load(int64_t step, int64_t row, int64_t state) const {
    const int64_t i = row * states + state;
    Operands operands{};
    if (step == 0 && grad_state != nullptr) operands.grad_state = grad_state[i];
    operands.grad_cell = step == 0 ? grad_cell[i] : to_cell[i];
    if (step < steps) {
      const int64_t at = (steps - 1 - step) * rows + row;
      const T* gate = gates + at * 3 * states + state;
      operands.gate = {gate[0], gate[states], gate[2 * states]};
      operands.cell = cells[at * states + state];
      operands.grad_state += grad_output[at * states + state];
    }
    return operands;
  }
  __device__ void finish(int64_t step, int64_t row, int64_t state, Operands operands,
                         const T* product) const {
    const int64_t i = row * states + state;
    operands.grad_state += product[0];
    if (step < steps) {
      const Lltm<T> grad = math::gates::gradient<T>(operands.gate, operands.cell,
                                                    operands.grad_state, operands.grad_cell);
      T* to = to_gates + ((steps - 1 - step) * rows + row) * 3 * states + state;
      to[0] = grad.input;
      to[states] = grad.output;
      to[2 * states] = grad.candidate;
    } else if (to_state != nullptr) {
      to_state[i] = operands.grad_state;
    }
    to_cell[i] = operands.grad_cell;
  }
};

// An element of the packed weights, [H, columns of a state, pitch].
template <typename Pass>
__device__ auto packed_weight(const Pass& pass, int64_t depth, int64_t column, int64_t k) {
  const auto zero = decltype(pass.weight(0, 0, 0))(0);
  return k < depth ? pass.weight(column / pass.kColumns, column % pass.kColumns, k) : zero;
}

// Sums values[i] over the lanes of a warp, for all i at once: lane l gets the sum of i = l / 2.
// Each exchange halves the values that a lane has left, so there is about one shuffle per value.
template <int half = kTile * kTile / 2, typename T>
__device__ T sum_tile(T* values) {
  constexpr unsigned kAll = 0xffffffffu;
  if constexpr (half == 0) {
    return values[0] + __shfl_xor_sync(kAll, values[0], 1);
  } else {
    constexpr int kStep = half * kWarp / (kTile * kTile);
    const bool upper = threadIdx.x & kStep;
    for (int i = 0; i < half; ++i) {
      const T kept = upper ? values[i + half] : values[i];
      const T other = upper ? values[i] : values[i + half];
      values[i] = kept + __shfl_xor_sync(kAll, other, kStep);
    }
    return sum_tile<half / 2>(values);
  }
}

// Multiplies rows, of which n elements can be loaded at a time, by columns of weights. The lanes of
// a warp split the depth of a tile. If there are fewer tiles than warps, a power of two of warps
// split it too. Each sum then has that many parts in `sums`, [parts, rows, columns]. Returns the
// number of parts. Which thread adds what depends only on the sizes. A tile that extends past the
// last row or column repeats it, and these sums are not stored.
template <int n, typename T>
__device__ int multiply(const Split& split, const T* left, int rows, const T* weights, int columns,
                        T* sums) {
  constexpr int kVectorSize = 16 / int(sizeof(T));  // that one instruction loads
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int across = ceil_div(columns, kTile), tiles = ceil_div(rows, kTile) * across;
  int parts = 1;
  while (2 * parts * tiles <= kStepWarps && parts * kWarp * kVectorSize < split.depth) parts *= 2;
  for (int item = warp; item < tiles * parts; item += kStepWarps) {
    const int part = item & (parts - 1), tile = item / parts;
    const int row = tile / across * kTile, column = tile % across * kTile;
    int a[kTile], b[kTile];
    for (int i = 0; i < kTile; ++i) {
      a[i] = min(row + i, rows - 1) * split.depth;
      b[i] = min(column + i, columns - 1) * split.pitch;
    }
    T tile_sums[kTile * kTile] = {};
    const int stride = parts * kWarp * kVectorSize;
    for (int k = (part * kWarp + lane) * kVectorSize; k < split.depth; k += stride) {
      Vector<T, kVectorSize> x[kTile], y[kTile];
      for (int i = 0; i < kTile; ++i) {
        if constexpr (n == kVectorSize) {
          x[i] = load<n>(left + a[i] + k);
        } else {
          for (int j = 0; j < kVectorSize; ++j)
            x[i].at[j] = k + j < split.depth ? left[a[i] + k + j] : 0;
        }
      }
      for (int i = 0; i < kTile; ++i) y[i] = load<kVectorSize>(weights + b[i] + k);
      for (int j = 0; j < kVectorSize; ++j) {
        for (int i = 0; i < kTile * kTile; ++i) {
          tile_sums[i] = multiply_add(x[i / kTile].at[j], y[i % kTile].at[j], tile_sums[i]);
        }
      }
    }
    const T sum = sum_tile(tile_sums);
    const int i = row + lane / 2 / kTile, j = column + lane / 2 % kTile;
    if (lane % 2 == 0 && i < rows && j < columns) sums[(part * rows + i) * columns + j] = sum;
  }
  return parts;
}

// A barrier for the blocks that have the same rows: all of them see what any of them wrote before.
// Blocks with other rows do not take part. The counter of the rows starts at 0, grows over all
// barriers and may wrap around. A single block needs no counters: they may be null.
__device__ void sync_blocks(int* counters, unsigned barriers) {
  __syncthreads();
#ifndef DETOPS_EMULATE_CUDA
  if (threadIdx.x == 0 && counters != nullptr) {
    const ::cuda::atomic_ref<int, ::cuda::thread_scope_device> arrived(
        counters[blockIdx.y * kCounterStride]);
    const unsigned expected = barriers * gridDim.x;
    arrived.fetch_add(1, ::cuda::memory_order_release);
    while (static_cast<int>(arrived.load(::cuda::memory_order_acquire) - expected) < 0) {
    }
  }
  __syncthreads();
#endif
}

// Runs steps [first, last): all steps if blocks can synchronise, else one. `packed` holds the
// weights if they do not fit in shared memory.
template <int n, template <typename> class Pass, typename T>
__global__ void __launch_bounds__(kStepThreads)
    lltm_kernel(Pass<T> pass, Split split, const T* packed, int* counters, int64_t first,
                int64_t last) {
  constexpr int kColumns = Pass<T>::kColumns;
  DETOPS_DYNAMIC_SHARED(memory);
  T* const sums = reinterpret_cast<T*>(memory);
  T* const shared_weights = sums + kStepThreads * kColumns;
  const int self = static_cast<int>(threadIdx.x), all_states = static_cast<int>(pass.states);
  const int first_state = static_cast<int>(blockIdx.x) * split.states;
  const int first_row = static_cast<int>(blockIdx.y) * split.rows;
  const int end_row = min(first_row + split.rows, static_cast<int>(pass.rows));
  // A thread handles one state of one row at a time.
  const int max_rows = kStepThreads / split.states;
  const int row = self / split.states, state = self % split.states;
  if (split.in_shared) {
    const int columns = min(split.states, all_states - first_state) * kColumns;
    for (int j = self / kWarp; j < columns; j += kStepWarps) {
      for (int k = self % kWarp; k < split.pitch; k += kWarp) {
        shared_weights[j * split.pitch + k] =
            packed_weight(pass, split.depth, int64_t(first_state) * kColumns + j, k);
      }
    }
  }
  for (int64_t step = first; step < last; ++step) {
    const T* const left = pass.left(step);
    for (int from = first_state; from < all_states; from += split.states * gridDim.x) {
      const int states = min(split.states, all_states - from), columns = states * kColumns;
      for (int at = first_row; at < end_row; at += max_rows) {
        const int rows = min(max_rows, end_row - at);
        // Loaded early, so that the loads are in flight while the products are computed.
        typename Pass<T>::Operands operands;
        const bool active = row < rows && state < states;
        if (active) operands = pass.load(step, at + row, from + state);
        const auto multiply_by = [&](const T* weights) {
          return multiply<n>(split, left + int64_t(at) * split.depth, rows, weights, columns, sums);
        };
        __syncthreads();  // the previous sums have been read, the weights are written
        const T* const global_weights = packed + int64_t(from) * kColumns * split.pitch;
        const int parts = left == nullptr   ? 0
                          : split.in_shared ? multiply_by(shared_weights)
                                            : multiply_by(global_weights);
        __syncthreads();
        if (active) {
          T product[kColumns] = {};
          for (int part = 0; part < parts; ++part) {
            const T* sum = sums + (part * rows + row) * columns + state * kColumns;
            for (int j = 0; j < kColumns; ++j) product[j] += sum[j];
          }
          pass.finish(step, at + row, from + state, operands, product);
        }
      }
    }
    if (step + 1 < last) sync_blocks(counters, static_cast<unsigned>(step + 1 - first));
  }
}

// Splits the work into one block per multiprocessor. The more states a block has, the fewer blocks
// read a row of the batch, so blocks get more states and fewer rows as shared memory allows.
Split choose_split(const Device& device, int64_t rows, int64_t states, int64_t depth,
                   int64_t column_bytes) {
  constexpr int kFewRows = 16, kMaxStates = 16, kAlignment = 4;
  Split split{0, 0, narrow(depth), narrow(ceil_div(depth, kAlignment) * kAlignment), true};
  narrow(kStepThreads * depth);  // offsets of a block's rows
  const auto set_states = [&](int64_t n) {
    const int64_t blocks = std::max<int64_t>(device.multiprocessors / ceil_div(states, n), 1);
    split.states = narrow(n);
    split.rows = narrow(ceil_div(ceil_div(rows, kTile), blocks) * kTile);
  };
  const auto fits = [&](int64_t n) {
    return (n * split.pitch + kStepThreads) * column_bytes <= device.max_shared_bytes;
  };
  set_states(std::max<int64_t>(ceil_div(states, device.multiprocessors), kTile));
  split.in_shared = fits(split.states);
  if (!split.in_shared) set_states(std::min(split.states, kMaxStates));
  while (split.in_shared && split.rows > kFewRows && split.states < states &&
         fits(2 * split.states)) {
    set_states(2 * split.states);
  }
  return split;
}

// Runs all steps of a pass. `left` are the pointers to the left operands of its products.
template <template <typename> class Pass, typename T>
void run(const Pass<T>& pass, int64_t steps, const Options& options, ArrayRef<const void*> left) {
  constexpr int64_t kColumns = Pass<T>::kColumns;
  const Device device;
  const int64_t depth = pass.states * Pass<T>::kDepth;
  const Split split = choose_split(device, pass.rows, pass.states, depth, kColumns * sizeof(T));
  const int64_t pitch = split.pitch, shared_size = split.in_shared ? split.states * pitch : 0;
  const int64_t across =
      std::min<int64_t>(ceil_div(pass.states, split.states), device.multiprocessors);
  LaunchConfig config(dim3(unsigned(across), unsigned(ceil_div(pass.rows, split.rows))),
                      kStepThreads, (shared_size + kStepThreads) * kColumns * sizeof(T));
  const bool single_block = config.blocks.x * config.blocks.y == 1;
  config.cooperative =
      device.cooperative && !single_block && steps > 2;  // counters cost more than a launch
  Tensor packed, counters;
  if (config.cooperative) counters = zeros({config.blocks.y * kCounterStride}, options.dtype(kInt));
  if (!split.in_shared) {
    packed = empty({pass.states * kColumns * pitch}, options);
    T* to = elements(packed);
    for_each(packed.numel(), [=] __device__(int64_t i) {
      to[i] = packed_weight(pass, depth, i / pitch, i % pitch);
    });
  }
  with_vector<T>(depth, left, [&](auto n) {
    constexpr int kVectorSize = decltype(n)::value;
    const int64_t steps_per_launch = single_block || config.cooperative ? steps : 1;
    for (int64_t step = 0; step < steps; step += steps_per_launch) {
      launch(lltm_kernel<kVectorSize, Pass, T>, config, pass, split, packed, counters, step,
             step + steps_per_launch);
    }
  });
}

}  // namespace

void lltm_forward(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& h,
                  const Tensor& c, Tensor& output, Tensor& cells, Tensor& gates) {
  const int64_t rows = h.size(0), state = h.size(1), inputs = input.size(-1);
  const int64_t steps = input.dim() == 2 ? 1 : input.size(0);
  const Tensor x = wide(input), w = wide(weights), b = wide(bias), h0 = wide(h), c0 = wide(c);
  addmm_out(gates.view({steps * rows, 3 * state}), b, x.view({steps * rows, inputs}),
            w.narrow(1, state, inputs).t());
  DETOPS_WIDE_SWITCH(x.scalar_type(), [&] {
    const Forward<scalar_t> pass{
        rows,         state,           w.stride(0),     elements(w),     elements(h0),
        elements(c0), elements(gates), elements(cells), elements(output)};
    run(pass, steps, w.options(), {pass.first_state, pass.output});
  });
}

void lltm(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& h,
          const Tensor& c, Tensor& output, Tensor& last_h, Tensor& last_c, Tensor& cells,
          Tensor& gates) {
  if (input.size(0) > 0) lltm_forward(input, weights, bias, h, c, output, cells, gates);
  copy_last(output, h, last_h);
  copy_last(cells, c, last_c);
}

void lltm_backward(const Tensor& grad_output, const std::optional<Tensor>& grad_h,
                   const Tensor& grad_c, const Tensor& input, const Tensor& weights,
                   const Tensor& h, const Tensor& c, const Tensor& output, const Tensor& cells,
                   const Tensor& gates, bool input_wanted, bool h_wanted, Tensor& to_input,
                   Tensor& to_weights, Tensor& to_bias, Tensor& to_h, Tensor& to_c) {
  const int64_t rows = h.size(0), state = h.size(1), inputs = input.size(-1);
  const int64_t steps = input.dim() == 2 ? 1 : input.size(0), total_rows = steps * rows;
  const Tensor g = wide(grad_output), x = wide(input), w = wide(weights), h0 = wide(h);
  const Tensor states = wide(output), cell_values = wide(cells), gate_values = wide(gates);
  const Tensor from_h = wide(grad_h, h.scalar_type()), from_c = wide(grad_c, h.scalar_type());
  const Tensor none, grads = empty({total_rows, 3 * state}, gate_values.options());
  if (rows * state > 0) {
    DETOPS_WIDE_SWITCH(x.scalar_type(), [&] {
      const Backward<scalar_t> pass{rows,
                                    state,
                                    w.stride(0),
                                    steps,
                                    elements(w),
                                    elements(gate_values),
                                    elements(cell_values),
                                    elements(g),
                                    elements(from_h),
                                    elements(from_c),
                                    elements(grads),
                                    elements(h_wanted ? to_h : none),
                                    elements(to_c)};
      const int64_t extra_steps = h_wanted || steps == 0 ? 1 : 0;
      run(pass, steps + extra_steps, w.options(), {pass.to_gates});
    });
  }
  // One product over all steps; the state before step t is that after step t - 1.
  const Tensor state_weights_grad = to_weights.narrow(1, 0, state);
  const int64_t first = std::min(total_rows, rows), later = total_rows - first;
  mm_out(to_weights.narrow(1, state, inputs), grads.t(), x.view({total_rows, inputs}));
  mm_out(state_weights_grad, grads.narrow(0, 0, first).t(), h0.narrow(0, 0, first));
  if (later > 0) {
    addmm_out(state_weights_grad, state_weights_grad, grads.narrow(0, first, later).t(),
              states.view({total_rows, state}).narrow(0, 0, later));
  }
  if (input_wanted) mm_out(to_input.view({total_rows, inputs}), grads, w.narrow(1, state, inputs));
  sum_of_rows_out(to_bias.view({1, 3 * state}), grads);
}

}  // namespace detops::cuda
