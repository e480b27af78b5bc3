// Sixteen tokens of a context, the rows that are attended together, and the two products between them.
//
// Integers are exact, and floats are added up token after token: a row's sums do not depend on the rows beside it.
#pragma once

#include <type_traits>

#include "heads.h"

namespace mill {

// Loops over what lies in registers, which early unrolling tells the compiler; and one that would take too many.
#if defined(__clang__)
#define TM_UNROLL _Pragma("unroll")
#define TM_ROLLED _Pragma("nounroll")
#else
#define TM_UNROLL _Pragma("GCC unroll 8")
#define TM_ROLLED _Pragma("GCC unroll 1")
#endif
#define TM_INSIDE __attribute__((always_inline))
#define TM_ALONE __attribute__((noinline)) inline

constexpr int64_t kSpanTiles = TM_SPAN / kTile;
// Tiles whose weights share a quantization scale.
constexpr int kScaleTiles = 4;

// Where the keys and values of sixteen tokens lie.
struct Tile {
    const uint8_t *keys;
    const uint8_t *values;
    const float *key_scales;
    const float *value_scales;
};

// What is read next, fetched into the second cache meanwhile: a tile of it for each that is worked on. Always inline:
// GCC drops calls of a function that does nothing but fetch.
struct Ahead {
    const Tile *tiles;
    int count;

    TM_INSIDE void fetch_keys(int tile, int64_t bytes) const {
        if (tile < count) {
            fetch(tiles[tile].keys, bytes);
            fetch(tiles[tile].key_scales, tiles[tile].key_scales == nullptr ? 0 : 64);
        }
    }
    TM_INSIDE void fetch_values(int tile, int64_t bytes) const {
        if (tile < count) {
            fetch(tiles[tile].values, bytes);
            fetch(tiles[tile].value_scales, tiles[tile].value_scales == nullptr ? 0 : 64);
        }
    }
    TM_INSIDE static void fetch(const void *at, int64_t bytes) {
        for (int64_t i = 0; i < bytes; i += 64) {
            __builtin_prefetch(static_cast<const uint8_t *>(at) + i, 0, 2);
        }
    }
};

// Queries that are attended together, one after another: int8 or bfloat16 numbers, what takes the zero point of the
// keys away again (of int8), and what makes scores powers of two.
struct QueryRows {
    const uint8_t *codes;
    const int32_t *less;
    const float *scales;
};

// Scores of R rows with 32 tokens, to [R][TM_SPAN]; a row's own scale is left out. A function of its own, as are the
// others here, so that the compiler finds registers for all sums.
template <int R>
TM_ALONE void score_int8(const Tile *tiles, const QueryRows &rows, int64_t dim, float *out) {
    I32x16 sums[R][2];
    TM_UNROLL for (int r = 0; r < R; ++r) {
        sums[r][0] = sums[r][1] = splat(rows.less[r]);
    }
    const uint8_t *near = tiles[0].keys, *far = tiles[1].keys;
    for (int64_t four = 0; four < dim; four += 4) {
        const Codes first = load_codes(near + four * 16), second = load_codes(far + four * 16);
        TM_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(rows.codes + r * dim + four);
            sums[r][0] = dot4(sums[r][0], first, word);
            sums[r][1] = dot4(sums[r][1], second, word);
        }
    }
    for (int half = 0; half < 2; ++half) {
        const F32x16 scales = load(tiles[half].key_scales);
        TM_UNROLL for (int r = 0; r < R; ++r) {
            store(out + r * TM_SPAN + half * 16, to_float(sums[r][half]) * scales);
        }
    }
}

template <int R>
TM_ALONE void score_bf16(const Tile *tiles, const QueryRows &rows, int64_t dim, float *out) {
    F32x16 sums[R][2];
    TM_UNROLL for (int r = 0; r < R; ++r) {
        sums[r][0] = sums[r][1] = splat(0.0f);
    }
    const uint8_t *near = tiles[0].keys, *far = tiles[1].keys;
    for (int64_t two = 0; two < dim; two += 2) {
        const Pairs first = load_pairs(near + two * 32), second = load_pairs(far + two * 32);
        TM_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(rows.codes + (r * dim + two) * 2);
            sums[r][0] = dot2(sums[r][0], first, word);
            sums[r][1] = dot2(sums[r][1], second, word);
        }
    }
    TM_UNROLL for (int r = 0; r < R; ++r) {
        store(out + r * TM_SPAN, sums[r][0]);
        store(out + r * TM_SPAN + 16, sums[r][1]);
    }
}

// Adds the values of `tiles` tiles to `V` vectors of R rows from `column` on. `codes`, [R][TM_SPAN], are the weights
// that `scales[r]` makes numbers.
template <int R, int V>
TM_ALONE void weigh_int8(const Tile *tiles, int64_t n_tiles, const uint8_t *codes, const float *scales, int64_t dim,
                       int64_t column, float *const *out) {
    I32x16 sums[R][V];
    TM_UNROLL for (int r = 0; r < R; ++r) {
        TM_UNROLL for (int v = 0; v < V; ++v) {
            sums[r][v] = splat(int32_t{0});
        }
    }
    TM_ROLLED for (int64_t token = 0; token < n_tiles * kTile; token += 4) {
        const uint8_t *values = tiles[token / kTile].values + (token % kTile * dim + column * 4);
        Codes numbers[V];
        TM_UNROLL for (int v = 0; v < V; ++v) {
            numbers[v] = load_codes(values + v * 64);
        }
        TM_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(codes + r * TM_SPAN + token);
            TM_UNROLL for (int v = 0; v < V; ++v) {
                sums[r][v] = dot4_by(sums[r][v], numbers[v], word);
            }
        }
    }
    TM_UNROLL for (int r = 0; r < R; ++r) {
        const F32x16 scale = splat(scales[r]);
        TM_UNROLL for (int v = 0; v < V; ++v) {
            float *at = out[r] + column + v * 16;
            store(at, fma(to_float(sums[r][v]), scale, load(at)));
        }
    }
}

// The same for bfloat16 weights and the tokens `from`, even, to before `to`: past them nothing gets into a sum.
template <int R, int V>
TM_ALONE void weigh_bf16(const Tile *tiles, int64_t from, int64_t to, const uint16_t *weights, int64_t dim, int64_t column,
                       float *const *out) {
    F32x16 sums[R][V];
    TM_UNROLL for (int r = 0; r < R; ++r) {
        TM_UNROLL for (int v = 0; v < V; ++v) {
            sums[r][v] = load(out[r] + column + v * 16);
        }
    }
    for (int64_t token = from; token < to; token += 2) {
        const uint8_t *values = tiles[token / kTile].values + (token % kTile * dim + column * 2) * 2;
        Pairs numbers[V];
        TM_UNROLL for (int v = 0; v < V; ++v) {
            numbers[v] = load_pairs(values + v * 64);
            if (token + 1 == to) {
                numbers[v] = first_of(numbers[v]);
            }
        }
        TM_UNROLL for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(weights + r * TM_SPAN + token);
            TM_UNROLL for (int v = 0; v < V; ++v) {
                sums[r][v] = dot2(sums[r][v], numbers[v], word);
            }
        }
    }
    TM_UNROLL for (int r = 0; r < R; ++r) {
        TM_UNROLL for (int v = 0; v < V; ++v) {
            store(out[r] + column + v * 16, sums[r][v]);
        }
    }
}

// `weigh(column, vectors)` for all columns, `vectors` a constant of 1 to 4.
template <class Weigh>
inline void by_columns(int64_t dim, const Weigh &weigh) {
    int64_t column = 0;
    for (; column + 64 <= dim; column += 64) {
        weigh(column, std::integral_constant<int, 4>());
    }
    switch ((dim - column) / 16) {
        case 3: weigh(column, std::integral_constant<int, 3>()); break;
        case 2: weigh(column, std::integral_constant<int, 2>()); break;
        case 1: weigh(column, std::integral_constant<int, 1>()); break;
        default: break;
    }
}

}  // namespace mill
