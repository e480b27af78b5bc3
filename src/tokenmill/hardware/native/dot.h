// The most int8 multiply-adds an instruction set can do: its dot product of four bytes, from registers alone.
//
// Each variant defines kDotMultiplyAdds, those of one turn; kDotTurns, those of about a millisecond; and
// dot_turns(turns, seed), whose result depends on every turn.
#pragma once

#include <stdint.h>

#if defined(TM_ISA_AVX2)
#include <immintrin.h>
#endif

namespace mill {

#if defined(TM_ISA_AVX2)

#if defined(TM_ISA_AVX512)
typedef __m512i Bytes;
inline Bytes splat(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
inline Bytes dot(Bytes sum, Bytes codes, Bytes row) { return _mm512_dpbusd_epi32(sum, codes, row); }
#else
typedef __m256i Bytes;
inline Bytes splat(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
inline Bytes dot(Bytes sum, Bytes codes, Bytes row) {
#if defined(TM_ISA_VNNI)
    return _mm256_dpbusd_avx_epi32(sum, codes, row);
#else
    const Bytes pairs = _mm256_maddubs_epi16(codes, row);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
#endif

// Independent sums: more than the latency of a dot product covers, and few enough for sixteen registers.
constexpr int kSums = 12;
constexpr int64_t kDotMultiplyAdds = kSums * static_cast<int64_t>(sizeof(Bytes));
constexpr int kDotTurns = 200000;

inline int64_t dot_turns(int turns, int seed) {
    const Bytes codes = splat(seed & 127);
    Bytes row = splat(1);
    Bytes sums[kSums] = {};
    for (int turn = 0; turn < turns; ++turn) {
        for (Bytes &sum : sums) {
            // For all the compiler knows the row is another one each time, so that no product is reused.
            __asm__("" : "+x"(row));
            sum = dot(sum, codes, row);
        }
    }
    Bytes folded = {};
    for (const Bytes &sum : sums) {
        folded ^= sum;
    }
    return folded[0];
}

#else

// What the compiler makes of plain code.
constexpr int64_t kDotMultiplyAdds = 256;
constexpr int kDotTurns = 50000;

inline int64_t dot_turns(int turns, int seed) {
    int8_t codes[kDotMultiplyAdds];
    int8_t row[kDotMultiplyAdds];
    for (int i = 0; i < kDotMultiplyAdds; ++i) {
        codes[i] = static_cast<int8_t>(seed + i);
        row[i] = static_cast<int8_t>(seed - i);
    }
    int32_t folded = 0;
    for (int turn = 0; turn < turns; ++turn) {
        // For all the compiler knows the bytes are others each time.
        __asm__ volatile("" : : "r"(codes), "r"(row) : "memory");
        int32_t sum = 0;
        for (int i = 0; i < kDotMultiplyAdds; ++i) {
            sum += static_cast<int32_t>(codes[i]) * row[i];
        }
        folded ^= sum;
    }
    return folded;
}

#endif

}  // namespace mill
