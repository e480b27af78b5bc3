// A few rows by one panel of a matrix.
//
// One order of summation whatever the number of rows: groups of columns follow one another, and within a group
// integers are exact. So a row's result does not depend on its neighbours, and one row is computed as many are.
#pragma once

#include "rows.h"

namespace mill {

// Rows computed together: as many as registers hold sums of. The last of many may be up to kLastRows, which is
// faster than another pass over the panel.
constexpr int kTileRows = 6;
constexpr int kLastRows = 8;

// Bytes that will be wanted soon, brought to the second-level cache a part with each group of columns.
struct NextPanel {
    const uint8_t *at;
    int64_t part;

    void fetch(int64_t group) const {
        for (const uint8_t *line = at + group * part, *end = line + part; line < end; line += 64) {
            __builtin_prefetch(line, 0, 2);
        }
    }
};

// Sixteen scales or offsets of a panel.
inline F32x16 load_scales(const uint8_t *at, int32_t bytes, int64_t index) {
    return bytes == 2 ? load_half(reinterpret_cast<const uint16_t *>(at) + index)
                      : load(reinterpret_cast<const float *>(at) + index);
}

// Integer sums of one group of columns, for R rows and both halves of a panel.
template <int Format, int R>
inline void add_group(const uint8_t *codes, const Rows &rows, int64_t row, int64_t group, I32x16 (&sums)[R][2]) {
    for (int r = 0; r < R; ++r) {
        I32x16 start = splat(int32_t{0});
        if (Format == TM_INT8) {
            start = shift_left(splat(rows.less[(row + r) * rows.groups + group]), 7);
        } else if (Format == TM_INT4) {
            start = shift_left(splat(rows.less[(row + r) * rows.groups + group]), 3);
        }
        sums[r][0] = sums[r][1] = start;
    }
    const int8_t *left[R];
    for (int r = 0; r < R; ++r) {
        left[r] = rows.bytes(row + r) + group * TM_GROUP;
    }
    if (Format == TM_INT8 || Format == TM_INT8_OFFSET) {
        for (int four = 0; four < 8; ++four) {
            const Codes first = load_codes(codes + four * 128), second = load_codes(codes + four * 128 + 64);
            for (int r = 0; r < R; ++r) {
                const int32_t word = load_word(left[r] + four * 4);
                sums[r][0] = dot4(sums[r][0], first, word);
                sums[r][1] = dot4(sums[r][1], second, word);
            }
        }
    } else {
        for (int four = 0; four < 4; ++four) {
            const Codes first = load_codes(codes + four * 128), second = load_codes(codes + four * 128 + 64);
            const Nibbles low[2] = {low_nibbles(first), low_nibbles(second)};
            const Nibbles high[2] = {high_nibbles(first), high_nibbles(second)};
            for (int r = 0; r < R; ++r) {
                const int32_t near = load_word(left[r] + four * 4), far = load_word(left[r] + 16 + four * 4);
                sums[r][0] = dot4(dot4(sums[r][0], low[0], near), high[0], far);
                sums[r][1] = dot4(dot4(sums[r][1], low[1], near), high[1], far);
            }
        }
    }
}

// Sums are kept in variables of the function's own, and stored once: the compiler could not tell that a store
// leaves scales and rows as they are, and would repeat it with every group.
template <int R>
inline void store_sums(const F32x16 (&sums)[R][2], float *tile) {
    for (int r = 0; r < R; ++r) {
        store(tile + r * TM_PANEL, sums[r][0]);
        store(tile + r * TM_PANEL + 16, sums[r][1]);
    }
}

// R int8 rows by a panel of codes.
template <int Format, int R>
void multiply_codes(const TmMatrix &matrix, const uint8_t *panel, const Rows &rows, int64_t row, const NextPanel &ahead,
                    float *tile) {
    constexpr int kGroupBytes = Format == TM_INT8 || Format == TM_INT8_OFFSET ? 1024 : 512;
    constexpr bool kOffsets = Format == TM_INT4_OFFSET || Format == TM_INT8_OFFSET;
    F32x16 out[R][2];
    for (int r = 0; r < R; ++r) {
        out[r][0] = out[r][1] = splat(0.0f);
    }
    for (int64_t group = 0; group < rows.groups; ++group) {
        ahead.fetch(group);
        I32x16 sums[R][2];
        add_group<Format, R>(panel + group * kGroupBytes, rows, row, group, sums);
        const int64_t scale = group / matrix.scale_every * TM_PANEL;
        const uint8_t *scales = panel + matrix.scales_at;
        const F32x16 factor[2] = {load_scales(scales, matrix.scale_bytes, scale),
                                  load_scales(scales, matrix.scale_bytes, scale + 16)};
        for (int r = 0; r < R; ++r) {
            const F32x16 mine = splat(rows.scales[(row + r) * rows.groups + group]);
            for (int half = 0; half < 2; ++half) {
                out[r][half] = fma(to_float(sums[r][half]) * factor[half], mine, out[r][half]);
            }
        }
        if (kOffsets) {
            const uint8_t *offsets = panel + matrix.offsets_at;
            const F32x16 offset[2] = {load_scales(offsets, matrix.scale_bytes, scale),
                                      load_scales(offsets, matrix.scale_bytes, scale + 16)};
            for (int r = 0; r < R; ++r) {
                const F32x16 total = splat(rows.sums[(row + r) * rows.groups + group]);
                out[r][0] = fma(offset[0], total, out[r][0]);
                out[r][1] = fma(offset[1], total, out[r][1]);
            }
        }
    }
    store_sums(out, tile);
}

// R bfloat16 rows by a panel of bfloat16 numbers.
template <int R>
void multiply_bf16(const uint8_t *panel, const Rows &rows, int64_t row, const NextPanel &ahead, float *tile) {
    constexpr int kGroupPairs = TM_GROUP / 2;
    F32x16 out[R][2];
    const uint16_t *left[R];
    for (int r = 0; r < R; ++r) {
        out[r][0] = out[r][1] = splat(0.0f);
        left[r] = rows.halves(row + r);
    }
    // One loop, not one over groups and one within: that would be unrolled until registers run out.
    for (int64_t pair = 0; pair < rows.groups * kGroupPairs; ++pair) {
        if (pair % kGroupPairs == 0) {
            ahead.fetch(pair / kGroupPairs);
        }
        const Pairs first = load_pairs(panel + pair * 128), second = load_pairs(panel + pair * 128 + 64);
        for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(left[r] + pair * 2);
            out[r][0] = dot2(out[r][0], first, word);
            out[r][1] = dot2(out[r][1], second, word);
        }
    }
    store_sums(out, tile);
}

template <int R>
void multiply_rows(const TmMatrix &matrix, int64_t panel, const Rows &rows, int64_t row, const NextPanel &ahead,
                   float *tile) {
    const uint8_t *data = matrix.data + panel * matrix.panel_bytes;
    switch (matrix.format) {
        case TM_INT8: multiply_codes<TM_INT8, R>(matrix, data, rows, row, ahead, tile); break;
        case TM_INT4: multiply_codes<TM_INT4, R>(matrix, data, rows, row, ahead, tile); break;
        case TM_INT4_OFFSET: multiply_codes<TM_INT4_OFFSET, R>(matrix, data, rows, row, ahead, tile); break;
        case TM_INT8_OFFSET: multiply_codes<TM_INT8_OFFSET, R>(matrix, data, rows, row, ahead, tile); break;
        default: multiply_bf16<R>(data, rows, row, ahead, tile); break;
    }
}

// `count` rows, 1 to kLastRows, by a panel; the result goes to `tile`, [count][TM_PANEL].
inline void multiply(const TmMatrix &matrix, int64_t panel, const Rows &rows, int64_t row, int count,
                     const NextPanel &ahead, float *tile) {
    switch (count) {
        case 1: multiply_rows<1>(matrix, panel, rows, row, ahead, tile); break;
        case 2: multiply_rows<2>(matrix, panel, rows, row, ahead, tile); break;
        case 3: multiply_rows<3>(matrix, panel, rows, row, ahead, tile); break;
        case 4: multiply_rows<4>(matrix, panel, rows, row, ahead, tile); break;
        case 5: multiply_rows<5>(matrix, panel, rows, row, ahead, tile); break;
        case 6: multiply_rows<6>(matrix, panel, rows, row, ahead, tile); break;
        case 7: multiply_rows<7>(matrix, panel, rows, row, ahead, tile); break;
        default: multiply_rows<8>(matrix, panel, rows, row, ahead, tile); break;
    }
}

}  // namespace mill
