// Activations of a gated product, sixteen at a time.
#pragma once

#include "abi.h"
#include "exp.h"

namespace mill {

// x * sigmoid(x).
inline F32x16 silu(F32x16 x) { return x / (splat(1.0f) + exp(splat(0.0f) - x)); }

// GELU by its tanh formula (Hendrycks & Gimpel 2016): x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
inline F32x16 gelu_tanh(F32x16 x) {
    const F32x16 inner = x * fma(x * x, splat(0.044715f), splat(1.0f));
    return x / (splat(1.0f) + exp(inner * splat(-1.5957691216057308f)));
}

inline F32x16 activate(int32_t activation, F32x16 x) {
    return activation == TM_SILU ? silu(x) : gelu_tanh(x);
}

}  // namespace tm
