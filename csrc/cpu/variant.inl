// SPDX-License-Identifier: MIT
// All that is compiled once per instruction set, in the order of use.
#include "simd.inl"
#include "transpose.inl"
//
#include "exponential.inl"
//
#include "../math/gates.inl"
#include "product.inl"
//
#include "box_iou.inl"
#include "lltm.inl"
#include "mlp.inl"
#include "nms.inl"
#include "roi_align.inl"
