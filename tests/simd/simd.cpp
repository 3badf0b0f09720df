// SPDX-License-Identifier: MIT
// Compares each primitive of csrc/cpu/simd with a plain loop, for every type and instruction set
// that this processor has. `test_simd.py` runs it, also for aarch64 in an emulator.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "../../csrc/math/half.h"

namespace detops::cpu {

constexpr int64_t kInputs = 1024, kRows = 21, kColumns = 37;

}  // namespace detops::cpu

#define DETOPS_KERNELS "../../../tests/simd/simd.inl"
#include "../../csrc/cpu/simd/variants.h"

namespace detops::cpu {
namespace {

int rows = 0, failures = 0;

template <typename T>
double number(T x) {
  return double(math::to_float(x));
}

template <typename T>
T converted(double x) {
  T to;
  math::from_float(accumulate_t<T>(x), to);
  return to;
}

// Inputs of a row, by index.
template <typename T>
T any_bits(std::mt19937_64& random, int64_t i) {
  using A = accumulate_t<T>;
  using Limits = std::numeric_limits<A>;
  const A special[] = {A(0),           -A(0),         Limits::infinity(),  -Limits::infinity(),
                       Limits::max(),  Limits::min(), Limits::quiet_NaN(), Limits::denorm_min(),
                       A(65519),       A(65520),      A(1.00390625),       A(1.01171875),
                       A(1.000488281), A(-5.96e-8),   A(2.98e-8),          A(6.1e-5)};
  if (i % 4 == 0) return converted<T>(special[i / 4 % 16]);
  const uint64_t bits = random();
  T x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Quarters, whose sums and products are exact in every type.
template <typename T>
T quarters(std::mt19937_64& random, int64_t) {
  return converted<T>(double(int64_t(random() % 65) - 32) / 4);
}

// Returns numbers between `low` and `high`.
template <typename T>
auto between(double low, double high) {
  return [=](std::mt19937_64& random, int64_t) {
    return converted<T>(std::uniform_real_distribution<double>(low, high)(random));
  };
}

template <typename T>
bool same(T ours, T expected, double units) {
  const double a = number(ours), b = number(expected);
  if (a != a || b != b) return a != a && b != b;
  if (units == 0) return a == b && std::signbit(a) == std::signbit(b);
  const double unit =
      std::abs(double(std::nextafter(accumulate_t<T>(b), accumulate_t<T>(HUGE_VAL))) - b);
  return std::abs(a - b) <= units * unit;
}

template <typename T>
constexpr const char* kName = sizeof(T) == 8                ? "double"
                              : std::is_same_v<T, Half>     ? "float16"
                              : std::is_same_v<T, BFloat16> ? "bfloat16"
                                                            : "float";

// One row of the table: the primitive, its inputs, and the loop that says what it returns.
template <typename In, typename Out, typename Input, typename Expected>
void row(const char* name, void (*primitive)(const In*, const In*, Out*), const Input& input,
         const Expected& expect, double units = 0) {
  std::mt19937_64 random(rows++);
  std::vector<In> a(kInputs), b(kInputs);
  for (int64_t i = 0; i < kInputs; ++i) a[i] = input(random, i);
  for (int64_t i = 0; i < kInputs; ++i) b[i] = input(random, i + 4);
  const Out untouched = converted<Out>(-77);
  std::vector<Out> ours(kInputs, untouched), expected = ours;
  primitive(a.data(), b.data(), ours.data());
  expect(a.data(), b.data(), expected.data());
  for (int64_t i = 0; i < kInputs; ++i) {
    if (same(ours[i], expected[i], units)) continue;
    std::printf("FAILED: %s of %s to %s, %s: output %ld is %.9g, expected %.9g\n", name, kName<In>,
                kName<Out>, cpu_isa(), long(i), number(ours[i]), number(expected[i]));
    ++failures;
    return;
  }
}

// Loads and stores of T, which is computed in as A.
template <typename T, typename A = accumulate_t<T>>
void check_memory() {
  const int64_t lanes = DETOPS_IN_USE(lanes_of<A>)();
  const auto widen = [](T x) { return math::to_float(x); };
  row("load", DETOPS_IN_USE(run_load<T, A>), any_bits<T>, [&](const T* a, const T*, A* out) {
    for (int64_t i = 0; i < lanes; ++i) out[i] = widen(a[i]);
  });
  const auto first = [&](int64_t most) {
    return [=](const T* a, const T*, A* out) {
      for (int64_t n = 0; n < most; ++n) {
        for (int64_t i = 0; i < lanes; ++i) *out++ = i < n ? widen(a[i]) : A(0);
      }
    };
  };
  row("load_part", DETOPS_IN_USE(run_load_part<T, A>), any_bits<T>, first(lanes));
  row("load_first", DETOPS_IN_USE(run_load_first<T, A>), any_bits<T>, first(lanes + 3));
  row("load_unzipped", DETOPS_IN_USE(run_load_unzipped<T, A>), any_bits<T>,
      [&](const T* a, const T*, A* out) {
        for (int64_t n = 0; n <= lanes; ++n) {
          for (int64_t half = 0; half < 2; ++half) {
            for (int64_t i = 0; i < lanes; ++i) *out++ = i < n ? widen(a[2 * i + half]) : A(0);
          }
        }
      });
  row("load_transposed", DETOPS_IN_USE(run_load_transposed<T, A>), any_bits<T>,
      [&](const T* a, const T*, A* out) {
        for (int64_t side : {int64_t(1), lanes - 1, lanes}) {
          for (int64_t c = 0; c < lanes; ++c) {
            for (int64_t r = 0; r < lanes; ++r) {
              *out++ = r < side && c < side ? widen(a[r * (lanes + 3) + c]) : A(0);
            }
          }
        }
      });
  row("store", DETOPS_IN_USE(run_store<A, T>), any_bits<A>, [](const A* a, const A*, T* out) {
    for (int64_t i = 0; i < kInputs; ++i) math::from_float(a[i], out[i]);
  });
  const auto store_some = [&](int64_t most) {
    return [=](const A* a, const A*, T* out) {
      for (int64_t n = 0; n < most; ++n) {
        for (int64_t i = 0; i < std::min(n, lanes); ++i) math::from_float(a[i], out[n * lanes + i]);
      }
    };
  };
  row("store_part", DETOPS_IN_USE(run_store_part<A, T>), any_bits<A>, store_some(lanes));
  row("store_first", DETOPS_IN_USE(run_store_first<A, T>), any_bits<A>, store_some(lanes + 3));
  row("store_zipped", DETOPS_IN_USE(run_store_zipped<A, T>), any_bits<A>,
      [&](const A* a, const A* b, T* out) {
        for (int64_t n = 0; n <= lanes; ++n, out += 2 * lanes) {
          for (int64_t i = 0; i < n; ++i) {
            math::from_float(a[i], out[2 * i]);
            math::from_float(b[i], out[2 * i + 1]);
          }
        }
      });
  row("store_transposed", DETOPS_IN_USE(run_store_transposed<A, T>), any_bits<A>,
      [&](const A* a, const A*, T* out) {
        for (int64_t r = 0; r < lanes - 1; ++r) {
          for (int64_t c = 0; c < lanes - 1; ++c) {
            math::from_float(a[c * lanes + r], out[r * (lanes + 3) + c]);
          }
        }
      });
  row("load_pair and store_pair", DETOPS_IN_USE(run_pair<T>), any_bits<T>,
      [&](const T* a, const T*, T* out) { std::copy(a, a + kInputs, out); });
  row("transpose_matrix", DETOPS_IN_USE(run_transpose_matrix<T>), any_bits<T>,
      [](const T* a, const T*, T* out) {
        for (int64_t h = 0; h < kRows; ++h) {
          for (int64_t w = 0; w < kColumns; ++w) {
            out[w * (kRows + 2) + h] = a[h * (kColumns + 1) + w];
          }
        }
      });
}

// Arithmetic on vectors of A.
template <typename A>
void check_arithmetic() {
  const int64_t lanes = DETOPS_IN_USE(lanes_of<A>)();
  const auto each = [&](const auto& of_lane) {
    return [=](const A* a, const A* b, A* out) {
      for (int64_t i = 0; i < lanes; ++i) out[i] = of_lane(a, b, i);
    };
  };
  row("splat", DETOPS_IN_USE(run_splat<A>), any_bits<A>, [&](const A* a, const A*, A* out) {
    for (int64_t i = 0; i < 16 * lanes; ++i) out[i] = a[i / lanes];
  });
  row("lane_indices", DETOPS_IN_USE(run_lane_indices<A>), quarters<A>,
      each([](const A*, const A*, int64_t i) { return A(i); }));
  row("fused", DETOPS_IN_USE(run_fused<A>), quarters<A>,
      each([=](const A* a, const A* b, int64_t i) { return a[i] * b[i] + a[i + lanes]; }));
  row("max", DETOPS_IN_USE(run_max<A>), any_bits<A>,
      each([](const A* a, const A* b, int64_t i) { return a[i] < b[i] ? b[i] : a[i]; }));
  row("min", DETOPS_IN_USE(run_min<A>), any_bits<A>,
      each([](const A* a, const A* b, int64_t i) { return b[i] < a[i] ? b[i] : a[i]; }));
  row("greater_bits", DETOPS_IN_USE(run_greater_bits<A>), any_bits<A>,
      [&](const A* a, const A* b, A* out) {
        uint32_t bits = 0;
        for (int64_t i = 0; i < lanes; ++i) bits |= uint32_t(a[i] > b[i]) << i;
        out[0] = A(bits);
      });
  row("floor", DETOPS_IN_USE(run_floor<A>), between<A>(-1e9, 1e9),
      each([](const A* a, const A*, int64_t i) { return std::floor(a[i]); }));
  row("reduce_lanes", DETOPS_IN_USE(run_reduce_lanes<A>), quarters<A>,
      each([=](const A* a, const A*, int64_t) { return *std::max_element(a, a + lanes); }));
  row("unzip", DETOPS_IN_USE(run_unzip<A>), any_bits<A>, [&](const A* a, const A* b, A* out) {
    for (int64_t i = 0; i < 2 * lanes; ++i) {
      const int64_t from = i < lanes ? 2 * i : 2 * (i - lanes) + 1;
      out[i] = from < lanes ? a[from] : b[from - lanes];
    }
  });
  row("zip", DETOPS_IN_USE(run_zip<A>), any_bits<A>, [&](const A* a, const A* b, A* out) {
    for (int64_t i = 0; i < 2 * lanes; ++i) out[i] = (i % 2 == 0 ? a : b)[i / 2];
  });
  row("transpose", DETOPS_IN_USE(run_transpose<A>), any_bits<A>, [&](const A* a, const A*, A* out) {
    for (int64_t i = 0; i < lanes * lanes; ++i) out[i] = a[i % lanes * lanes + i / lanes];
  });
  const auto sum = [=](const A* a, int64_t vector) {
    A total = 0;
    for (int64_t i = 0; i < lanes; ++i) total += a[vector * lanes + i];
    return total;
  };
  row("sum_lanes", DETOPS_IN_USE(run_sum_lanes<A>), quarters<A>,
      [&](const A* a, const A*, A* out) { out[0] = sum(a, 0); });
  row("sum_each", DETOPS_IN_USE(run_sum_each<A>), quarters<A>,
      each([=](const A* a, const A*, int64_t i) { return sum(a, i); }));
  row("sum_lanes_of_four", DETOPS_IN_USE(run_sum_lanes_of_four<A>), quarters<A>,
      [&](const A* a, const A*, A* out) {
        for (int64_t i = 0; i < 4; ++i) out[i] = sum(a, i);
      });
  row("multiply", DETOPS_IN_USE(run_multiply<A>), quarters<A>, [&](const A* a, const A* b, A* out) {
    const auto product = [&](int64_t r, int64_t c) {
      A total = 0;
      for (int64_t k = 0; k < 5; ++k) total += a[r * 5 + k] * b[k * 2 * lanes + c];
      return total;
    };
    for (int64_t i = 0; i < 6 * lanes; ++i) *out++ = product(i / (2 * lanes), i % (2 * lanes));
    for (int64_t n = 1; n <= lanes; ++n) {
      for (int64_t i = 0; i < 3 * lanes; ++i) {
        *out++ = i % lanes < n ? product(i / lanes, i % lanes) : A(0);
      }
    }
  });
  const auto function = [](const char* name, auto primitive, double low, double high,
                           double (*expected)(double)) {
    const auto all = [=](const A* a, const A*, A* out) {
      for (int64_t i = 0; i < kInputs; ++i) out[i] = A(expected(double(a[i])));
    };
    row(name, primitive, between<A>(low, high), all, sizeof(A) == 8 ? 0 : 2);
  };
  function("exp", DETOPS_IN_USE(run_exp<A>), -87, 88, std::exp);
  function("expm1", DETOPS_IN_USE(run_expm1<A>), -20, 60, std::expm1);
  function("expm1, near 0", DETOPS_IN_USE(run_expm1<A>), -1e-3, 1e-3, std::expm1);
  function("tanh", DETOPS_IN_USE(run_tanh<A>), -12, 12, std::tanh);
  function("tanh, near 0", DETOPS_IN_USE(run_tanh<A>), -1, 1, std::tanh);
  function("log", DETOPS_IN_USE(run_log<A>), 1e-30, 8, std::log);
  function("log1p", DETOPS_IN_USE(run_log1p<A>), 0, 1, std::log1p);
  function("arctangent", DETOPS_IN_USE(run_arctangent<A>), -50, 50, std::atan);
  function("arctangent, near 0", DETOPS_IN_USE(run_arctangent<A>), -1, 1, std::atan);
}

}  // namespace
}  // namespace detops::cpu

int main() {
  using namespace detops;
  for (const char* name : {"baseline", "avx2", "avx512"}) {
    try {
      cpu::set_cpu_isa(name);
    } catch (const std::invalid_argument&) {
      continue;  // not supported by this processor
    }
    cpu::rows = 0;
    cpu::check_memory<float>();
    cpu::check_memory<double>();
    cpu::check_memory<Half>();
    cpu::check_memory<BFloat16>();
    cpu::check_arithmetic<float>();
    cpu::check_arithmetic<double>();
    std::printf("%s: %d rows\n", name, cpu::rows);
  }
  return cpu::failures != 0;
}
