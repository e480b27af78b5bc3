// The rows of a product's left side: int8 codes with a scale for every TM_GROUP numbers, or bfloat16.
#pragma once

#include "abi.h"
#include "simd.h"

namespace mill {

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Rows of `columns` numbers, padded with zeros to whole groups. `codes` holds bfloat16 where rows are that.
struct Rows {
    uint8_t *codes;   // [rows, columns] of one or two bytes
    float *scales;    // [rows, groups]
    float *sums;      // [rows, groups]: scale * sum of the codes, what an offset of a weight is multiplied by
    int32_t *less;    // [rows, groups]: - sum of the codes, what takes a zero point of the weights away again
    int64_t columns;  // a multiple of TM_GROUP
    int64_t groups;

    const int8_t *bytes(int64_t row) const { return reinterpret_cast<const int8_t *>(codes) + row * columns; }
    const uint16_t *halves(int64_t row) const { return reinterpret_cast<const uint16_t *>(codes) + row * columns; }
};

// TM_GROUP floats to codes of -127 to 127, rounded to the nearest.
inline void quantize_group(const float *in, const Rows &rows, int64_t row, int64_t group) {
    const F32x16 first = load(in), second = load(in + 16);
    const float top = largest(maximum(magnitude(first), magnitude(second)));
    const F32x16 inverse = splat(top > 0 ? 127.0f / top : 0.0f);
    const I32x16 one = to_int(first * inverse), two = to_int(second * inverse);
    int8_t *codes = reinterpret_cast<int8_t *>(rows.codes) + row * rows.columns + group * TM_GROUP;
    store_bytes(codes, one);
    store_bytes(codes + 16, two);
    const int64_t at = row * rows.groups + group;
    const int32_t total = sum(one + two);
    rows.scales[at] = top / 127.0f;
    rows.sums[at] = top / 127.0f * static_cast<float>(total);
    rows.less[at] = static_cast<int32_t>(0u - static_cast<uint32_t>(total));
}

// To the nearest bfloat16, ties to even; what is no number stays none.
inline uint16_t to_bf16(float a) {
    uint32_t bits;
    memcpy(&bits, &a, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<uint16_t>((bits >> 16) | 0x40u);
    }
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void round_group(const float *in, const Rows &rows, int64_t row, int64_t group) {
    uint16_t *out = reinterpret_cast<uint16_t *>(rows.codes) + row * rows.columns + group * TM_GROUP;
    for (int i = 0; i < TM_GROUP; ++i) {
        out[i] = to_bf16(in[i]);
    }
}

// One group as the next product wants it.
inline void write_group(int32_t rows_as, const float *in, const Rows &rows, int64_t row, int64_t group) {
    if (rows_as == TM_ROWS_INT8) {
        quantize_group(in, rows, row, group);
    } else {
        round_group(in, rows, row, group);
    }
}

// `width` floats of a row; what fills up the last group is zero.
inline void write_row(int32_t rows_as, const float *in, int64_t width, const Rows &rows, int64_t row) {
    const int64_t whole = width / TM_GROUP;
    for (int64_t group = 0; group < whole; ++group) {
        write_group(rows_as, in + group * TM_GROUP, rows, row, group);
    }
    if (whole * TM_GROUP < width) {
        float last[TM_GROUP] = {};
        memcpy(last, in + whole * TM_GROUP, static_cast<size_t>(width - whole * TM_GROUP) * sizeof(float));
        write_group(rows_as, last, rows, row, whole);
    }
}

// One row to another place; its numbers take `bytes` each.
inline void copy_row(const Rows &from, int64_t row, const Rows &to, int64_t at, int64_t bytes) {
    const size_t codes = static_cast<size_t>(from.columns * bytes);
    memcpy(to.codes + at * to.columns * bytes, from.codes + row * from.columns * bytes, codes);
    if (bytes == 1) {
        const size_t groups = static_cast<size_t>(from.groups) * sizeof(float);
        memcpy(to.scales + at * to.groups, from.scales + row * from.groups, groups);
        memcpy(to.sums + at * to.groups, from.sums + row * from.groups, groups);
        memcpy(to.less + at * to.groups, from.less + row * from.groups, groups);
    }
}

}  // namespace tm
