// The exponential function, sixteen at a time.
#pragma once

#include "simd.h"

namespace mill {

// e^x = 2^n e^r with n the nearest integer to x / ln 2; e^r by its Taylor series, whose rest is below 2e-7 for
// |r| <= ln 2 / 2. Below -87 the result is that of -87 (1.6e-38), above 88 that of 88.
inline F32x16 exp(F32x16 x) {
    const F32x16 bounded = minimum(maximum(x, splat(-87.0f)), splat(88.0f));
    const I32x16 n = to_int(bounded * splat(1.4426950408889634f));
    const F32x16 whole = to_float(n);
    const F32x16 r = fma(whole, splat(2.12194440e-4f), fma(whole, splat(-0.693359375f), bounded));
    F32x16 p = splat(1.0f / 720.0f);
    p = fma(p, r, splat(1.0f / 120.0f));
    p = fma(p, r, splat(1.0f / 24.0f));
    p = fma(p, r, splat(1.0f / 6.0f));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    return p * power_of_two(n);
}

}  // namespace tm
