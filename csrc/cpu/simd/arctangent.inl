// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h.

// Within 2 units in the last place: an odd polynomial of least relative error up to 1, and beyond
// it pi / 2 - atan(1 / x).
DETOPS_INLINE Vector<float> arctangent(Vector<float> x) {
  const Vector<uint32_t> sign = (Vector<uint32_t>)x & 0x80000000u;
  const Vector<float> size = (Vector<float>)((Vector<uint32_t>)x ^ sign);
  const Vector<float> t = size > 1.0f ? 1.0f / size : size, z = t * t;
  Vector<float> p = splat(-0.0017539299f);
  p = fused(p, z, splat(0.010726945f));
  p = fused(p, z, splat(-0.0308046f));
  p = fused(p, z, splat(0.05755211f));
  p = fused(p, z, splat(-0.083773158f));
  p = fused(p, z, splat(0.10942031f));
  p = fused(p, z, splat(-0.14261933f));
  p = fused(p, z, splat(0.19998266f));
  p = fused(p, z, splat(-0.33333284f));
  const Vector<float> inner = fused(p * z, t, t);
  const Vector<float> angle = size > 1.0f ? 1.57079633f - inner : inner;
  return (Vector<float>)((Vector<uint32_t>)angle | sign);
}

// One number at a time: double is a mode for checking gradients.
DETOPS_INLINE Vector<double> arctangent(Vector<double> x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) x[i] = __builtin_atan(x[i]);
  return x;
}
