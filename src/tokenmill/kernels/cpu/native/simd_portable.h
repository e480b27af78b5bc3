// Plain C++, left to the compiler to vectorize. See simd.h.
#pragma once

#include <math.h>

namespace mill {

struct F32x16 {
    float v[16];
};
struct I32x16 {
    int32_t v[16];
};
struct Codes {
    uint8_t v[64];
};
struct Nibbles {
    uint8_t v[64];
};
struct Pairs {
    uint16_t v[32];
};

#define TM_LANES(result, expression)      \
    do {                                  \
        for (int i = 0; i < 16; ++i) {    \
            (result).v[i] = (expression); \
        }                                 \
    } while (0)

inline F32x16 operator+(F32x16 a, F32x16 b) { TM_LANES(a, a.v[i] + b.v[i]); return a; }
inline F32x16 operator-(F32x16 a, F32x16 b) { TM_LANES(a, a.v[i] - b.v[i]); return a; }
inline F32x16 operator*(F32x16 a, F32x16 b) { TM_LANES(a, a.v[i] * b.v[i]); return a; }
inline F32x16 operator/(F32x16 a, F32x16 b) { TM_LANES(a, a.v[i] / b.v[i]); return a; }
// Integers wrap as they do in registers: rows of numbers that are none reach the largest.
inline int32_t add(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
inline I32x16 operator+(I32x16 a, I32x16 b) { TM_LANES(a, add(a.v[i], b.v[i])); return a; }

inline F32x16 load(const float *at) { F32x16 a; memcpy(a.v, at, sizeof a.v); return a; }
inline void store(float *at, F32x16 a) { memcpy(at, a.v, sizeof a.v); }
inline F32x16 splat(float a) { F32x16 r; TM_LANES(r, a); return r; }
inline I32x16 splat(int32_t a) { I32x16 r; TM_LANES(r, a); return r; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { TM_LANES(a, a.v[i] * b.v[i] + c.v[i]); return a; }
inline F32x16 to_float(I32x16 a) { F32x16 r; TM_LANES(r, static_cast<float>(a.v[i])); return r; }
inline I32x16 to_int(F32x16 a) { I32x16 r; TM_LANES(r, static_cast<int32_t>(nearbyintf(a.v[i]))); return r; }
inline F32x16 maximum(F32x16 a, F32x16 b) { TM_LANES(a, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); return a; }
inline F32x16 minimum(F32x16 a, F32x16 b) { TM_LANES(a, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); return a; }

inline float sum(F32x16 a) {
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) {
            a.v[i] += a.v[i + width];
        }
    }
    return a.v[0];
}

inline float largest(F32x16 a) {
    float best = a.v[0];
    for (int i = 1; i < 16; ++i) {
        best = a.v[i] > best ? a.v[i] : best;
    }
    return best;
}

inline float from_bits(uint32_t bits) { float a; memcpy(&a, &bits, sizeof a); return a; }
inline F32x16 power_of_two(I32x16 n) { F32x16 r; TM_LANES(r, from_bits(static_cast<uint32_t>(n.v[i] + 127) << 23)); return r; }

inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        return from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    }
    // Below the smallest normal number the exponent is that of a float that counts in units of 2^-24.
    const float value = magnitude < 0x400u ? static_cast<float>(magnitude) * 0x1p-24f
                                           : from_bits((magnitude << 13) + (112u << 23));
    return sign != 0 ? -value : value;
}
inline F32x16 load_half(const uint16_t *at) { F32x16 r; TM_LANES(r, half_to_float(at[i])); return r; }

inline int32_t sum(I32x16 a) {
    int32_t total = 0;
    for (const int32_t lane : a.v) {
        total = add(total, lane);
    }
    return total;
}
inline I32x16 shift_left(I32x16 a, int bits) { TM_LANES(a, a.v[i] * (1 << bits)); return a; }
inline F32x16 magnitude(F32x16 a) { TM_LANES(a, fabsf(a.v[i])); return a; }
inline void store_bytes(int8_t *at, I32x16 a) {
    for (int i = 0; i < 16; ++i) {
        at[i] = static_cast<int8_t>(a.v[i]);
    }
}

inline F32x16 nearest(F32x16 a) { TM_LANES(a, nearbyintf(a.v[i])); return a; }
inline F32x16 times_power_of_two(F32x16 a, F32x16 n) { return a * power_of_two(to_int(n)); }

inline Codes load_codes(const uint8_t *at) { Codes a; memcpy(a.v, at, sizeof a.v); return a; }
inline Nibbles low_nibbles(Codes a) {
    Nibbles r;
    for (int i = 0; i < 64; ++i) {
        r.v[i] = a.v[i] & 15;
    }
    return r;
}
inline Nibbles high_nibbles(Codes a) {
    Nibbles r;
    for (int i = 0; i < 64; ++i) {
        r.v[i] = a.v[i] >> 4;
    }
    return r;
}
inline I32x16 dot4(I32x16 sum, const uint8_t (&codes)[64], int32_t four) {
    int8_t signed_bytes[4];
    memcpy(signed_bytes, &four, sizeof four);
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 4; ++j) {
            sum.v[i] += static_cast<int32_t>(codes[4 * i + j]) * signed_bytes[j];
        }
    }
    return sum;
}
inline I32x16 dot4(I32x16 sum, Codes codes, int32_t four) { return dot4(sum, codes.v, four); }
inline I32x16 dot4(I32x16 sum, Nibbles codes, int32_t four) { return dot4(sum, codes.v, four); }

inline I32x16 dot4_by(I32x16 sum, Codes bytes, int32_t four) {
    uint8_t unsigned_bytes[4];
    memcpy(unsigned_bytes, &four, sizeof four);
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 4; ++j) {
            sum.v[i] += static_cast<int32_t>(static_cast<int8_t>(bytes.v[4 * i + j])) * unsigned_bytes[j];
        }
    }
    return sum;
}
inline void store_unsigned_bytes(uint8_t *at, I32x16 a) {
    for (int i = 0; i < 16; ++i) {
        at[i] = static_cast<uint8_t>(a.v[i]);
    }
}
inline F32x16 keep(F32x16 a, int from, int to, F32x16 other) {
    TM_LANES(a, i >= from && i < to ? a.v[i] : other.v[i]);
    return a;
}

inline Pairs first_of(Pairs a) {
    for (int i = 1; i < 32; i += 2) {
        a.v[i] = 0;
    }
    return a;
}
// Ties to even; what is no number stays none.
inline void store_bf16(uint16_t *at, F32x16 a) {
    for (int i = 0; i < 16; ++i) {
        uint32_t bits;
        memcpy(&bits, &a.v[i], sizeof bits);
        const bool none = (bits & 0x7fffffffu) > 0x7f800000u;
        at[i] = static_cast<uint16_t>(none ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
}
inline Pairs load_pairs(const uint8_t *at) { Pairs a; memcpy(a.v, at, sizeof a.v); return a; }
inline F32x16 dot2(F32x16 sum, Pairs pairs, int32_t two) {
    const uint32_t bits = static_cast<uint32_t>(two);
    const float first = from_bits(bits << 16);
    const float second = from_bits(bits & 0xffff0000u);
    for (int i = 0; i < 16; ++i) {
        sum.v[i] += from_bits(static_cast<uint32_t>(pairs.v[2 * i]) << 16) * first;
        sum.v[i] += from_bits(static_cast<uint32_t>(pairs.v[2 * i + 1]) << 16) * second;
    }
    return sum;
}

}  // namespace mill
