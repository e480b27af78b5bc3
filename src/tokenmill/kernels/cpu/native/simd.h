// Sixteen numbers at a time, whatever the processor: the one place that knows instruction sets.
//
// Each header defines the same types and functions:
//   F32x16, I32x16        sixteen floats, sixteen 32-bit integers; + - * work on both
//   load, store           of 16 floats, any alignment
//   load_half             16 float16 numbers as floats
//   splat                 one number in all lanes
//   fma(a, b, c)          a * b + c
//   to_float, to_int      conversion, to the nearest
//   maximum, minimum      of two vectors, by lane
//   nearest               whole number, as a float
//   sum, largest          over the lanes, in one fixed order
//   magnitude             absolute value
//   shift_left            of integers, by 0 to 31 bits
//   store_bytes           16 integers of -128 to 127 as bytes
//   power_of_two(n)       2^n for integers n of -126 to 127
//   times_power_of_two(a, n)  a * 2^n for whole floats n of -126 to 127
//   Codes, load_codes     64 unsigned bytes: [16 lanes][4]
//   Nibbles               the same, of 0 to 15
//   low_nibbles, high_nibbles   of 64 bytes
//   dot4(sum, codes, four)      sum[lane] += codes or nibbles [lane][0..3] . four signed bytes, exactly
//   dot4_by(sum, bytes, four)   the same with the signs swapped: signed bytes, four unsigned ones
//   store_unsigned_bytes        16 integers of 0 to 255 as bytes
//   keep(a, from, to, other)    lanes from `from` to before `to` are a's, the others other's
//   Pairs, load_pairs, dot2(sum, pairs, two)   the same for two bfloat16 numbers, summed in float
//   first_of(pairs)       with the second of each made zero
//   store_bf16            16 floats as the nearest bfloat16
#pragma once

#include <stdint.h>
#include <string.h>

namespace mill {

// Four signed bytes, or two bfloat16 numbers, as they lie in memory.
inline int32_t load_word(const void *at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

}  // namespace tm

#if defined(TM_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(TM_ISA_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif
