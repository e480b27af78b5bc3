// Products of rows with a packed matrix: y = x W^T.
//
// One order of summation whatever the number of rows: groups of columns follow one another, and within a group
// integers are exact. So a row's result does not depend on its neighbours, and one row is computed as many are.
#pragma once

#include "rows.h"
#include "team.h"

namespace mill {

// Rows computed together: as many as registers hold.
constexpr int kTileRows = 6;

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

// R rows by one panel, int8 rows.
template <int Format, int R>
void multiply_codes(const TmMatrix &matrix, const uint8_t *panel, const Rows &rows, int64_t row, F32x16 (&out)[R][2]) {
    constexpr int kGroupBytes = Format == TM_INT8 || Format == TM_INT8_OFFSET ? 1024 : 512;
    constexpr bool kOffsets = Format == TM_INT4_OFFSET || Format == TM_INT8_OFFSET;
    for (int r = 0; r < R; ++r) {
        out[r][0] = out[r][1] = splat(0.0f);
    }
    for (int64_t group = 0; group < rows.groups; ++group) {
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
}

// R rows by one panel, bfloat16 rows.
template <int R>
void multiply_bf16(const TmMatrix &, const uint8_t *panel, const Rows &rows, int64_t row, F32x16 (&out)[R][2]) {
    for (int r = 0; r < R; ++r) {
        out[r][0] = out[r][1] = splat(0.0f);
    }
    for (int64_t pair = 0; pair < rows.columns / 2; ++pair) {
        const Pairs first = load_pairs(panel + pair * 128), second = load_pairs(panel + pair * 128 + 64);
        for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(rows.halves(row + r) + pair * 2);
            out[r][0] = dot2(out[r][0], first, word);
            out[r][1] = dot2(out[r][1], second, word);
        }
    }
}

// R rows by one panel; the result goes to `tile`, [R][TM_PANEL].
template <int R>
void multiply_rows(const TmMatrix &matrix, int64_t panel, const Rows &rows, int64_t row, float *tile) {
    const uint8_t *data = matrix.data + panel * matrix.panel_bytes;
    F32x16 out[R][2];
    switch (matrix.format) {
        case TM_INT8: multiply_codes<TM_INT8, R>(matrix, data, rows, row, out); break;
        case TM_INT4: multiply_codes<TM_INT4, R>(matrix, data, rows, row, out); break;
        case TM_INT4_OFFSET: multiply_codes<TM_INT4_OFFSET, R>(matrix, data, rows, row, out); break;
        case TM_INT8_OFFSET: multiply_codes<TM_INT8_OFFSET, R>(matrix, data, rows, row, out); break;
        default: multiply_bf16<R>(matrix, data, rows, row, out); break;
    }
    for (int r = 0; r < R; ++r) {
        store(tile + r * TM_PANEL, out[r][0]);
        store(tile + r * TM_PANEL + 16, out[r][1]);
    }
}

// `count` rows of 1 to kTileRows.
inline void multiply(const TmMatrix &matrix, int64_t panel, const Rows &rows, int64_t row, int count, float *tile) {
    switch (count) {
        case 1: multiply_rows<1>(matrix, panel, rows, row, tile); break;
        case 2: multiply_rows<2>(matrix, panel, rows, row, tile); break;
        case 3: multiply_rows<3>(matrix, panel, rows, row, tile); break;
        case 4: multiply_rows<4>(matrix, panel, rows, row, tile); break;
        case 5: multiply_rows<5>(matrix, panel, rows, row, tile); break;
        default: multiply_rows<6>(matrix, panel, rows, row, tile); break;
    }
}

// Rows whose numbers stay in the first cache while panels pass by.
constexpr int64_t kRowBlock = 96;

inline void add_bias(const TmMatrix &matrix, int64_t panel, int count, float *tile) {
    const int64_t first = panel * TM_PANEL, width = matrix.n - first < TM_PANEL ? matrix.n - first : TM_PANEL;
    for (int r = 0; r < count; ++r) {
        for (int64_t i = 0; i < width; ++i) {
            tile[r * TM_PANEL + i] += matrix.bias[first + i];
        }
    }
}

// All rows by all panels, `together` neighbouring panels always by one thread, in order. `take(panel, row, count, tile)` is
// given each tile, bias added; columns of it past the end of the matrix are padding.
template <class Take>
void product(const TmMatrix &matrix, const Rows &rows, int64_t n_rows, const Member &member, int64_t together,
             const Take &take) {
    const int64_t panels = round_up(matrix.n, TM_PANEL) / TM_PANEL;
    const int64_t items = round_up(panels, together) / together;
    const int64_t turn = items / (member.threads * 8);
    member.take_turns(items, turn > 1 ? turn : 1, [&](int64_t item) {
        for (int64_t block = 0; block < n_rows; block += kRowBlock) {
            const int64_t end = n_rows - block < kRowBlock ? n_rows : block + kRowBlock;
            for (int64_t panel = item * together; panel < (item + 1) * together && panel < panels; ++panel) {
                for (int64_t row = block; row < end; row += kTileRows) {
                    const int count = end - row < kTileRows ? static_cast<int>(end - row) : kTileRows;
                    alignas(64) float tile[kTileRows * TM_PANEL];
                    multiply(matrix, panel, rows, row, count, tile);
                    if (matrix.bias != nullptr) {
                        add_bias(matrix, panel, count, tile);
                    }
                    take(panel, row, count, tile);
                }
            }
        }
    });
}

}  // namespace mill
