// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. log and log1p of vectors, within 2 units in
// the last place; the polynomial is that of the Cephes library (logf.c).

// log(1 + r) for r between sqrt(1/2) - 1 and sqrt(2) - 1: r - r^2 / 2 + r^3 P(r).
DETOPS_INLINE Vector<float> small_log1p(Vector<float> r) {
  const Vector<float> square = r * r;
  Vector<float> p = splat(7.0376836292e-2f);
  p = fused(p, r, splat(-1.1514610310e-1f));
  p = fused(p, r, splat(1.1676998740e-1f));
  p = fused(p, r, splat(-1.2420140846e-1f));
  p = fused(p, r, splat(1.4249322787e-1f));
  p = fused(p, r, splat(-1.6668057665e-1f));
  p = fused(p, r, splat(2.0000714765e-1f));
  p = fused(p, r, splat(-2.4999993993e-1f));
  p = fused(p, r, splat(3.3333331174e-1f));
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

// For numbers in [0, 1] or NaN. 1 + x would round: instead, log(2) + log(1 + (x - 1) / 2).
DETOPS_INLINE Vector<float> log1p(Vector<float> x) {
  const Vector<float> half = splat(0.69314718f), none{};
  return small_log1p(x > 0.41421356f ? 0.5f * (x - 1.0f) : x) + (x > 0.41421356f ? half : none);
}

// For double, one number at a time: a mode for checking gradients.
DETOPS_INLINE Vector<double> log(Vector<double> x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = __builtin_log(x[i]);
  return x;
}
DETOPS_INLINE Vector<double> log1p(Vector<double> x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = __builtin_log1p(x[i]);
  return x;
}
