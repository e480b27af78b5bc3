// Attention of a few rows over one span of a context: scores, their softmax, and the values they weigh.
//
// A row is a query head of a token. What a span gives depends on the row and on the span alone: tokens that a row does
// not see count as exact zeros, whatever lies in their place, and the rows beside it change nothing.
#pragma once

#include <math.h>

#include "exp.h"
#include "heads.h"

namespace mill {

constexpr int64_t kSpanTiles = TM_SPAN / kTile;

// What is known of a row after some spans: the largest score, the sum of e^(score - largest), and values weighted so.
struct Partial {
    float *largest;  // [rows]
    float *total;    // [rows]
    float *values;   // [rows, dim]
};

// Sixteen tokens of a span: where their keys and values lie.
struct Tile {
    const uint8_t *keys;
    const uint8_t *values;
    const float *key_scales;
    const float *value_scales;
};

// The rows of a call. Row r sees the tokens from `from[r]` to before `to[r]`, counted from the span's beginning.
struct Seen {
    int from[kRows];
    int to[kRows];
};

struct QueryRows {
    const void *codes[kRows];
    float scales[kRows];
    int32_t less[kRows];
};

inline int bounded(int64_t a) { return a < 0 ? 0 : a > 16 ? 16 : static_cast<int>(a); }

// Scores of R rows with 32 tokens.
template <int R>
inline void scores_int8(const Tile *tiles, const QueryRows &rows, int64_t dim, F32x16 (&out)[R][2]) {
    I32x16 sums[R][2];
    for (int r = 0; r < R; ++r) {
        sums[r][0] = sums[r][1] = splat(rows.less[r]);
    }
    for (int64_t four = 0; four < dim / 4; ++four) {
        const Codes first = load_codes(tiles[0].keys + four * 64), second = load_codes(tiles[1].keys + four * 64);
        for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(static_cast<const int8_t *>(rows.codes[r]) + four * 4);
            sums[r][0] = dot4(sums[r][0], first, word);
            sums[r][1] = dot4(sums[r][1], second, word);
        }
    }
    for (int half = 0; half < 2; ++half) {
        const F32x16 scales = load(tiles[half].key_scales);
        for (int r = 0; r < R; ++r) {
            out[r][half] = to_float(sums[r][half]) * (scales * splat(rows.scales[r]));
        }
    }
}

template <int R>
inline void scores_bf16(const Tile *tiles, const QueryRows &rows, int64_t dim, F32x16 (&out)[R][2]) {
    F32x16 sums[R][2];
    for (int r = 0; r < R; ++r) {
        sums[r][0] = sums[r][1] = splat(0.0f);
    }
    for (int64_t two = 0; two < dim / 2; ++two) {
        const Pairs first = load_pairs(tiles[0].keys + two * 64), second = load_pairs(tiles[1].keys + two * 64);
        for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(static_cast<const uint16_t *>(rows.codes[r]) + two * 2);
            sums[r][0] = dot2(sums[r][0], first, word);
            sums[r][1] = dot2(sums[r][1], second, word);
        }
    }
    for (int r = 0; r < R; ++r) {
        out[r][0] = sums[r][0] * splat(rows.scales[r]);
        out[r][1] = sums[r][1] * splat(rows.scales[r]);
    }
}

// Weighted values of 32 tokens, added to [R][dim] floats. `weights` are bytes, [R][32], that `scales[r]` makes numbers.
template <int R, int V>
inline void values_int8(const Tile *tiles, const uint8_t (*weights)[32], const float *scales, int64_t dim,
                        int64_t column, float *const *out) {
    I32x16 sums[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
            sums[r][v] = splat(int32_t{0});
        }
    }
    for (int four = 0; four < 8; ++four) {
        const uint8_t *values = tiles[four / 4].values + four % 4 * dim * 4 + column * 4;
        Codes codes[V];
        for (int v = 0; v < V; ++v) {
            codes[v] = load_codes(values + v * 64);
        }
        for (int r = 0; r < R; ++r) {
            const int32_t word = load_word(weights[r] + four * 4);
            for (int v = 0; v < V; ++v) {
                sums[r][v] = dot4_by(sums[r][v], codes[v], word);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        const F32x16 scale = splat(scales[r]);
        for (int v = 0; v < V; ++v) {
            float *at = out[r] + column + v * 16;
            store(at, fma(to_float(sums[r][v]), scale, load(at)));
        }
    }
}

// The same for bfloat16 weights, [R][32]. `pairs` of tokens are looked at; the second token of the last one may be none.
template <int R, int V>
inline void values_bf16(const Tile *tiles, const uint16_t (*weights)[32], int pairs, bool odd, int64_t dim,
                        int64_t column, float *const *out) {
    F32x16 sums[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
            sums[r][v] = load(out[r] + column + v * 16);
        }
    }
    for (int two = 0; two < pairs; ++two) {
        const uint8_t *values = tiles[two / 8].values + two % 8 * dim * 4 + column * 4;
        for (int v = 0; v < V; ++v) {
            alignas(64) uint16_t masked[32];
            const uint8_t *at = values + v * 64;
            if (odd && two == pairs - 1) {
                memcpy(masked, at, sizeof masked);
                for (int i = 1; i < 32; i += 2) {
                    masked[i] = 0;
                }
                at = reinterpret_cast<const uint8_t *>(masked);
            }
            const Pairs numbers = load_pairs(at);
            for (int r = 0; r < R; ++r) {
                sums[r][v] = dot2(sums[r][v], numbers, load_word(weights[r] + two * 2));
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) {
            store(out[r] + column + v * 16, sums[r][v]);
        }
    }
}

// R rows over the 32-token tiles `first` to before `last` of a span; gives each row's partial. Tiles come in pairs.
template <int R, bool Narrow>
void attend_span(const Tile *tiles, int first, int last, const QueryRows &rows, const Seen &seen, int64_t dim,
                 float *largest_of, float *total_of, float *const *out) {
    alignas(64) float scores[R][TM_SPAN];
    F32x16 tops[R];
    F32x16 odd = splat(0.0f);
    for (int r = 0; r < R; ++r) {
        tops[r] = splat(-INFINITY);
    }
    for (int pair = first; pair < last; ++pair) {
        F32x16 found[R][2];
        if (Narrow) {
            scores_int8<R>(tiles + pair * 2, rows, dim, found);
        } else {
            scores_bf16<R>(tiles + pair * 2, rows, dim, found);
        }
        for (int r = 0; r < R; ++r) {
            for (int half = 0; half < 2; ++half) {
                const int at = pair * 32 + half * 16;
                const F32x16 score =
                    keep(found[r][half], bounded(seen.from[r] - at), bounded(seen.to[r] - at), splat(-INFINITY));
                store(&scores[r][at], score);
                tops[r] = maximum(tops[r], score);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        const float top = largest(tops[r]);
        largest_of[r] = top;
        F32x16 total = splat(0.0f);
        for (int pair = first; pair < last; ++pair) {
            for (int half = 0; half < 2; ++half) {
                const int at = pair * 32 + half * 16;
                const int from = bounded(seen.from[r] - at), to = bounded(seen.to[r] - at);
                const F32x16 score = load(&scores[r][at]);
                const F32x16 weight = keep(exp(score - splat(top)), from, to, splat(0.0f));
                // Less itself, what is no number stays none; so does the sum it is added to.
                odd = keep(score - score, from, to, splat(0.0f));
                total = total + (weight + odd);
                store(&scores[r][at], weight);
            }
        }
        total_of[r] = sum(total);
    }
    for (int pair = first; pair < last; ++pair) {
        const Tile *two = tiles + pair * 2;
        if (Narrow) {
            alignas(64) uint8_t codes[R][32];
            float scales[R];
            for (int r = 0; r < R; ++r) {
                F32x16 weighted[2];
                for (int half = 0; half < 2; ++half) {
                    const int at = pair * 32 + half * 16;
                    weighted[half] = keep(load(&scores[r][at]) * load(two[half].value_scales),
                                          bounded(seen.from[r] - at), bounded(seen.to[r] - at), splat(0.0f));
                }
                const F32x16 odd_ones = (weighted[0] - weighted[0]) + (weighted[1] - weighted[1]);
                const float top = largest(maximum(weighted[0], weighted[1]));
                const F32x16 inverse = splat(top > 0 ? 255.0f / top : 0.0f);
                store_unsigned_bytes(codes[r], to_int(weighted[0] * inverse));
                store_unsigned_bytes(codes[r] + 16, to_int(weighted[1] * inverse));
                scales[r] = top / 255.0f + sum(odd_ones);
            }
            int64_t column = 0;
            for (; column + 64 <= dim; column += 64) {
                values_int8<R, 4>(two, codes, scales, dim, column, out);
            }
            for (; column < dim; column += 16) {
                values_int8<R, 1>(two, codes, scales, dim, column, out);
            }
        } else {
            alignas(64) uint16_t weights[R][32];
            int end = 0;
            for (int r = 0; r < R; ++r) {
                for (int i = 0; i < 32; ++i) {
                    weights[r][i] = to_bf16(scores[r][pair * 32 + i]);
                }
                const int mine = seen.to[r] - pair * 32 > 32 ? 32 : seen.to[r] - pair * 32;
                end = mine > end ? mine : end;
            }
            int64_t column = 0;
            for (; column + 64 <= dim; column += 64) {
                values_bf16<R, 4>(two, weights, (end + 1) / 2, end % 2 == 1, dim, column, out);
            }
            for (; column < dim; column += 16) {
                values_bf16<R, 1>(two, weights, (end + 1) / 2, end % 2 == 1, dim, column, out);
            }
        }
    }
}

}  // namespace mill
