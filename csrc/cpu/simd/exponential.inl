// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. exp, expm1 and tanh of vectors, within 2 units
// in the last place; the polynomials are those of the Cephes library (expf.c, tanhf.c).

// x = n ln 2 + r with |r| <= ln 2 / 2, and 2^n. NaN stays in r. Below -87 and above 88 exp is taken
// as constant: about the smallest and the largest numbers.
struct Reduced {
  Vector<float> r, power;
};

DETOPS_INLINE Reduced reduce(Vector<float> x) {
  x = vector_min(vector_max(x, splat(-87.0f)), splat(88.0f));
  const Vector<float> rounder = splat(12582912.0f);  // 1.5 * 2^23: its last bit is worth 1
  const Vector<float> shifted = fused(x, splat(1.44269504f), rounder);
  const Vector<float> n = shifted - rounder;
  const Vector<int32_t> exponent = (Vector<int32_t>)shifted - (Vector<int32_t>)rounder + 127;
  const Vector<float> r = fused(n, splat(2.12194440e-4f), fused(n, splat(-0.693359375f), x));
  return {r, (Vector<float>)(exponent << 23)};
}

// e^r - 1 = r + r^2 P(r)
DETOPS_INLINE Vector<float> small_expm1(Vector<float> r) {
  Vector<float> p = splat(1.9875691500e-4f);
  p = fused(p, r, splat(1.3981999507e-3f));
  p = fused(p, r, splat(8.3334519073e-3f));
  p = fused(p, r, splat(4.1665795894e-2f));
  p = fused(p, r, splat(1.6666665459e-1f));
  p = fused(p, r, splat(5.0000001201e-1f));
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
  Vector<float> p = splat(-5.70498872745e-3f);
  p = fused(p, z, splat(2.06390887954e-2f));
  p = fused(p, z, splat(-5.37397155531e-2f));
  p = fused(p, z, splat(1.33314422036e-1f));
  p = fused(p, z, splat(-3.33332819422e-1f));
  const Vector<float> outer = (Vector<float>)((Vector<uint32_t>)tail | sign);
  return size > 0.625f ? outer : fused(p * z, x, x);
}

// For double, one number at a time: a mode for checking gradients.
DETOPS_INLINE Vector<double> exp(Vector<double> x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}
DETOPS_INLINE Vector<double> expm1(Vector<double> x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = __builtin_expm1(x[i]);
  return x;
}
DETOPS_INLINE Vector<double> tanh(Vector<double> x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = __builtin_tanh(x[i]);
  return x;
}
