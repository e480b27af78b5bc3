// Powers of two, sixteen at a time: what a softmax takes after its scores are in units of ln 2.
#pragma once

#include "simd.h"

namespace mill {

// 2^x = 2^n 2^r with n the nearest integer to x; 2^r by the polynomial of least relative error on |r| <= 1/2 (Remez),
// 2.6e-6. For x <= 127; below -126 the result is that of -126. What is no number stays none.
inline F32x16 exp2(F32x16 x) {
    const F32x16 bounded = maximum(splat(-126.0f), x);
    const F32x16 n = nearest(bounded);
    const F32x16 r = bounded - n;
    F32x16 p = splat(0.009570102207f);
    p = fma(p, r, splat(0.055917859077f));
    p = fma(p, r, splat(0.240247443318f));
    p = fma(p, r, splat(0.693121790886f));
    p = fma(p, r, splat(0.999999284744f));
    return times_power_of_two(p, n);
}

}  // namespace mill
