// The ends of rows whose length is no multiple of sixteen.
#pragma once

#include "simd.h"

namespace mill {

// The first 16 of `left` floats; zeros stand for those there are not.
inline F32x16 load_part(const float *at, int64_t left) {
    if (left >= 16) {
        return load(at);
    }
    float part[16] = {};
    memcpy(part, at, static_cast<size_t>(left > 0 ? left : 0) * sizeof(float));
    return load(part);
}

inline void store_part(float *at, int64_t left, F32x16 a) {
    if (left >= 16) {
        store(at, a);
        return;
    }
    float part[16];
    store(part, a);
    memcpy(at, part, static_cast<size_t>(left > 0 ? left : 0) * sizeof(float));
}

}  // namespace mill
