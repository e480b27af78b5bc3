// AVX-512 with VNNI, and with BF16 where TM_ISA_BF16 is set. See simd.h.
#pragma once

#include <immintrin.h>

namespace mill {

struct F32x16 {
    __m512 v;
};
struct I32x16 {
    __m512i v;
};
struct Codes {
    __m512i v;
};
struct Nibbles {
    __m512i v;
};
struct Pairs {
    __m512i v;
};

inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }

inline F32x16 load(const float *at) { return {_mm512_loadu_ps(at)}; }
inline void store(float *at, F32x16 a) { _mm512_storeu_ps(at, a.v); }
inline F32x16 load_half(const uint16_t *at) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)))};
}
inline F32x16 splat(float a) { return {_mm512_set1_ps(a)}; }
inline I32x16 splat(int32_t a) { return {_mm512_set1_epi32(a)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I32x16 to_int(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline F32x16 maximum(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 minimum(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float sum(F32x16 a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(F32x16 a) { return _mm512_reduce_max_ps(a.v); }
inline F32x16 power_of_two(I32x16 n) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}

inline int32_t sum(I32x16 a) { return _mm512_reduce_add_epi32(a.v); }
inline I32x16 shift_left(I32x16 a, int bits) { return {_mm512_maskz_slli_epi32(0xffff, a.v, static_cast<unsigned>(bits))}; }
inline F32x16 magnitude(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
inline void store_bytes(int8_t *at, I32x16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(at), _mm512_cvtsepi32_epi8(a.v));
}

inline F32x16 nearest(F32x16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F32x16 times_power_of_two(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

inline Codes load_codes(const uint8_t *at) { return {_mm512_load_si512(at)}; }
inline Nibbles low_nibbles(Codes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Nibbles high_nibbles(Codes a) {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
inline I32x16 dot4(I32x16 sum, Codes codes, int32_t four) {
    return {_mm512_dpbusd_epi32(sum.v, codes.v, _mm512_set1_epi32(four))};
}
inline I32x16 dot4(I32x16 sum, Nibbles codes, int32_t four) { return dot4(sum, Codes{codes.v}, four); }

inline I32x16 dot4_by(I32x16 sum, Codes bytes, int32_t four) {
    // As a builtin GCC 12 copies every sum to another register, and runs out of them.
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(_mm512_set1_epi32(four)), "vm"(bytes.v));
    return sum;
}
inline void store_unsigned_bytes(uint8_t *at, I32x16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(at), _mm512_cvtusepi32_epi8(a.v));
}
inline F32x16 keep(F32x16 a, int from, int to, F32x16 other) {
    const uint32_t mask = ((1u << to) - 1u) & ~((1u << from) - 1u);
    return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(mask), a.v)};
}

inline Pairs first_of(Pairs a) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(0xffff))}; }
inline void store_bf16(uint16_t *at, F32x16 a) {
#if defined(TM_ISA_BF16)
    const __m256i halves = (__m256i)_mm512_cvtneps_pbh(a.v);
#else
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), quiet);
    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
#endif
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), halves);
}
inline Pairs load_pairs(const uint8_t *at) { return {_mm512_load_si512(at)}; }
inline F32x16 dot2(F32x16 sum, Pairs pairs, int32_t two) {
#if defined(TM_ISA_BF16)
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)pairs.v, (__m512bh)_mm512_set1_epi32(two))};
#else
    const __m512i top = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
    const __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(pairs.v, 16));
    const __m512 high = _mm512_castsi512_ps(_mm512_and_si512(pairs.v, top));
    const __m512 first = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(two) << 16)));
    const __m512 second = _mm512_castsi512_ps(_mm512_set1_epi32(two & static_cast<int32_t>(0xffff0000)));
    return {_mm512_fmadd_ps(high, second, _mm512_fmadd_ps(low, first, sum.v))};
#endif
}

}  // namespace mill
