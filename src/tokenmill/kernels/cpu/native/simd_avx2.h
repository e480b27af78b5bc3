// AVX2 with FMA and F16C, and with AVX-VNNI where TM_ISA_VNNI is set: sixteen numbers in two registers. See simd.h.
#pragma once

#include <immintrin.h>

namespace mill {

struct F32x16 {
    __m256 low, high;
};
struct I32x16 {
    __m256i low, high;
};
struct Codes {
    __m256i low, high;
};
struct Nibbles {
    __m256i low, high;
};
struct Pairs {
    __m256i low, high;
};

inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline I32x16 operator+(I32x16 a, I32x16 b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

inline F32x16 load(const float *at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
inline void store(float *at, F32x16 a) {
    _mm256_storeu_ps(at, a.low);
    _mm256_storeu_ps(at + 8, a.high);
}
inline F32x16 load_half(const uint16_t *at) {
    const __m128i *halves = reinterpret_cast<const __m128i *>(at);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline F32x16 splat(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline I32x16 splat(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32x16 to_float(I32x16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline I32x16 to_int(F32x16 a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline F32x16 maximum(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline F32x16 minimum(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

inline float sum(F32x16 a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(F32x16 a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline int32_t sum(I32x16 a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline F32x16 power_of_two(I32x16 n) {
    const I32x16 biased = n + splat(int32_t{127});
    return {_mm256_castsi256_ps(_mm256_slli_epi32(biased.low, 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(biased.high, 23))};
}
inline I32x16 shift_left(I32x16 a, int bits) {
    return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)};
}
inline F32x16 magnitude(F32x16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
// Packing takes 128 bits of each register in turn: quarters of four bytes come as 0, 2, 1, 3.
inline __m128i in_order(__m256i words) {
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0xd8));
}
inline void store_bytes(int8_t *at, I32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(at), in_order(_mm256_packs_epi16(words, words)));
}

inline void store_unsigned_bytes(uint8_t *at, I32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(at), in_order(_mm256_packus_epi16(words, words)));
}
inline F32x16 keep(F32x16 a, int from, int to, F32x16 other) {
    const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
    const __m256i first = _mm256_set1_epi32(from - 1), end = _mm256_set1_epi32(to);
    const auto inside = [&](__m256i lane) {
        return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, first), _mm256_cmpgt_epi32(end, lane)));
    };
    return {_mm256_blendv_ps(other.low, a.low, inside(low)), _mm256_blendv_ps(other.high, a.high, inside(high))};
}

inline F32x16 nearest(F32x16 a) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, kMode), _mm256_round_ps(a.high, kMode)};
}
inline F32x16 times_power_of_two(F32x16 a, F32x16 n) { return a * power_of_two(to_int(n)); }

inline Codes load_codes(const uint8_t *at) {
    const __m256i *codes = reinterpret_cast<const __m256i *>(at);
    return {_mm256_load_si256(codes), _mm256_load_si256(codes + 1)};
}
inline Nibbles low_nibbles(Codes a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
inline Nibbles high_nibbles(Codes a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(a.low, 4), mask), _mm256_and_si256(_mm256_srli_epi16(a.high, 4), mask)};
}

#if defined(TM_ISA_VNNI)
inline I32x16 dot4(I32x16 sum, Codes codes, int32_t four) {
    const __m256i bytes = _mm256_set1_epi32(four);
    return {_mm256_dpbusd_avx_epi32(sum.low, codes.low, bytes), _mm256_dpbusd_avx_epi32(sum.high, codes.high, bytes)};
}
inline I32x16 dot4(I32x16 sum, Nibbles codes, int32_t four) { return dot4(sum, Codes{codes.low, codes.high}, four); }
inline I32x16 dot4_by(I32x16 sum, Codes bytes, int32_t four) {
    const __m256i codes = _mm256_set1_epi32(four);
    return {_mm256_dpbusd_avx_epi32(sum.low, codes, bytes.low), _mm256_dpbusd_avx_epi32(sum.high, codes, bytes.high)};
}
#else
// Bytes widened to 16 bits, even and odd ones apart: products of bytes added up in 16 bits could saturate.
inline __m256i dot4_wide(__m256i sum, __m256i codes, __m256i even, __m256i odd) {
    const __m256i of_even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)), even);
    const __m256i of_odd = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), odd);
    return _mm256_add_epi32(_mm256_add_epi32(sum, of_even), of_odd);
}
inline I32x16 dot4(I32x16 sum, Codes codes, int32_t four) {
    const __m256i bytes = _mm256_set1_epi32(four);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), odd = _mm256_srai_epi16(bytes, 8);
    return {dot4_wide(sum.low, codes.low, even, odd), dot4_wide(sum.high, codes.high, even, odd)};
}
inline I32x16 dot4_by(I32x16 sum, Codes bytes, int32_t four) {
    const __m256i codes = _mm256_set1_epi32(four);
    const auto wide = [&](__m256i start, __m256i numbers) {
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(numbers, 8), 8);
        return dot4_wide(start, codes, even, _mm256_srai_epi16(numbers, 8));
    };
    return {wide(sum.low, bytes.low), wide(sum.high, bytes.high)};
}
// 2 * 15 * 128 fits 16 bits.
inline I32x16 dot4(I32x16 sum, Nibbles codes, int32_t four) {
    const __m256i bytes = _mm256_set1_epi32(four), one = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(_mm256_maddubs_epi16(codes.low, bytes), one)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(_mm256_maddubs_epi16(codes.high, bytes), one))};
}
#endif

inline Pairs first_of(Pairs a) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
// As 32-bit numbers.
inline __m256i bf16_of(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, none), 16);
}
inline void store_bf16(uint16_t *at, F32x16 a) {
    const __m256i words = _mm256_packus_epi32(bf16_of(a.low), bf16_of(a.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), _mm256_permute4x64_epi64(words, 0xd8));
}
inline Pairs load_pairs(const uint8_t *at) {
    const __m256i *pairs = reinterpret_cast<const __m256i *>(at);
    return {_mm256_load_si256(pairs), _mm256_load_si256(pairs + 1)};
}
inline __m256 dot2_half(__m256 sum, __m256i pairs, __m256 first, __m256 second) {
    const __m256i top = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
    const __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    const __m256 high = _mm256_castsi256_ps(_mm256_and_si256(pairs, top));
    return _mm256_fmadd_ps(high, second, _mm256_fmadd_ps(low, first, sum));
}
inline F32x16 dot2(F32x16 sum, Pairs pairs, int32_t two) {
    const __m256 first = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(two) << 16)));
    const __m256 second = _mm256_castsi256_ps(_mm256_set1_epi32(two & static_cast<int32_t>(0xffff0000)));
    return {dot2_half(sum.low, pairs.low, first, second), dot2_half(sum.high, pairs.high, first, second)};
}

}  // namespace mill
