// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Vector functions, accurate to 2 units in the
// last place. The polynomials of exp, expm1, tanh, log and log1p are those of the Cephes library
// (expf.c, tanhf.c, logf.c). Doubles are computed one lane at a time: float64 is for checking
// gradients.

// x = n ln 2 + r with |r| <= ln 2 / 2, and `power` is 2^n. NaN stays in r. exp is constant below
// -87 and above 88, at about the smallest and the largest float.
struct Reduced {
  Vector<float> r, power;
};

DETOPS_INLINE Reduced reduce(Vector<float> x) {
  x = min(max(x, splat(-87.0f)), splat(88.0f));
  const Vector<float> rounder = splat(12582912.0f);  // 1.5 * 2^23: its last bit is worth 1
  const Vector<float> shifted = fused(x, splat(1.44269504f), rounder);
  const Vector<float> n = shifted - rounder;
  const Vector<int32_t> exponent = (Vector<int32_t>)shifted - (Vector<int32_t>)rounder + 127;
  const Vector<float> r = fused(n, splat(2.12194440e-4f), fused(n, splat(-0.693359375f), x));
  return {r, (Vector<float>)(exponent << 23)};
}

// Returns highest x^n + ... + the last of `lower`.
template <typename... C>
DETOPS_INLINE Vector<float> polynomial(Vector<float> x, float highest, C... lower) {
  Vector<float> sum = splat(highest);
  ((sum = fused(sum, x, splat(lower))), ...);
  return sum;
}

// e^r - 1 = r + r^2 P(r)
DETOPS_INLINE Vector<float> small_expm1(Vector<float> r) {
  const Vector<float> p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                     4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  return fused(p, r * r, r);
}

DETOPS_INLINE Vector<float> exp(Vector<float> x) {
  const Reduced a = reduce(x);
  return fused(a.power, small_expm1(a.r), a.power);
}

DETOPS_INLINE Vector<float> expm1(Vector<float> x) {
  const Reduced a = reduce(x);
  return fused(a.power, small_expm1(a.r), a.power - 1.0f);
}

// An odd polynomial up to 0.625, beyond it 1 - 2 / (e^2x + 1).
DETOPS_INLINE Vector<float> tanh(Vector<float> x) {
  const Vector<uint32_t> sign = (Vector<uint32_t>)x & 0x80000000u;
  const Vector<float> size = (Vector<float>)((Vector<uint32_t>)x ^ sign), z = x * x;
  const Vector<float> tail = 1.0f - 2.0f / (exp(size + size) + 1.0f);
  const Vector<float> p = polynomial(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                     1.33314422036e-1f, -3.33332819422e-1f);
  const Vector<float> outer = (Vector<float>)((Vector<uint32_t>)tail | sign);
  return size > 0.625f ? outer : fused(p * z, x, x);
}

// log(1 + r) for r between sqrt(1/2) - 1 and sqrt(2) - 1: r - r^2 / 2 + r^3 P(r).
DETOPS_INLINE Vector<float> small_log1p(Vector<float> r) {
  const Vector<float> square = r * r;
  const Vector<float> p = polynomial(r, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f,
                                     -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                                     2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f);
  return r + fused(r * square, p, -0.5f * square);
}

// For positive numbers that are neither subnormal nor infinite: x = 2^n (1 + r).
DETOPS_INLINE Vector<float> log(Vector<float> x) {
  constexpr int32_t kRootOfHalf = 0x3f3504f3;
  const Vector<int32_t> above = (Vector<int32_t>)x - kRootOfHalf;
  const Vector<float> n = __builtin_convertvector(above >> 23, Vector<float>);
  const Vector<float> r = (Vector<float>)((above & 0x7fffff) + kRootOfHalf) - 1.0f;
  return fused(n, splat(0.693359375f), fused(n, splat(-2.12194440e-4f), small_log1p(r)));
}

// For numbers in [0, 1] or NaN. 1 + x would round, hence log(2) + log(1 + (x - 1) / 2).
DETOPS_INLINE Vector<float> log1p(Vector<float> x) {
  const Vector<float> half = splat(0.69314718f), none{};
  return small_log1p(x > 0.41421356f ? 0.5f * (x - 1.0f) : x) + (x > 0.41421356f ? half : none);
}

// An odd polynomial of least relative error up to 1, beyond it pi / 2 - atan(1 / x).
DETOPS_INLINE Vector<float> arctangent(Vector<float> x) {
  const Vector<uint32_t> sign = (Vector<uint32_t>)x & 0x80000000u;
  const Vector<float> size = (Vector<float>)((Vector<uint32_t>)x ^ sign);
  const Vector<float> t = size > 1.0f ? 1.0f / size : size, z = t * t;
  const Vector<float> p =
      polynomial(z, -0.0017539299f, 0.010726945f, -0.0308046f, 0.05755211f, -0.083773158f,
                 0.10942031f, -0.14261933f, 0.19998266f, -0.33333284f);
  const Vector<float> inner = fused(p * z, t, t);
  const Vector<float> angle = size > 1.0f ? 1.57079633f - inner : inner;
  return (Vector<float>)((Vector<uint32_t>)angle | sign);
}

DETOPS_INLINE Vector<double> by_lane(Vector<double> x, double (*function)(double)) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = function(x[i]);
  return x;
}
DETOPS_INLINE Vector<double> exp(Vector<double> x) { return by_lane(x, ::exp); }
DETOPS_INLINE Vector<double> expm1(Vector<double> x) { return by_lane(x, ::expm1); }
DETOPS_INLINE Vector<double> tanh(Vector<double> x) { return by_lane(x, ::tanh); }
DETOPS_INLINE Vector<double> log(Vector<double> x) { return by_lane(x, ::log); }
DETOPS_INLINE Vector<double> log1p(Vector<double> x) { return by_lane(x, ::log1p); }
DETOPS_INLINE Vector<double> arctangent(Vector<double> x) { return by_lane(x, ::atan); }
