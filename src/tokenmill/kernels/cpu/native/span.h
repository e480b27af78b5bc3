// Attention of a few rows over one span of a context: scores, their softmax, and the values they weigh.
//
// A row is a query head of a token. What a span gives depends on the row and on the span alone: tokens that a row does
// not see count as exact zeros, whatever lies in their place, and the rows beside it change nothing.
#pragma once

#include <math.h>

#include "exp2.h"
#include "tile.h"

namespace mill {

// The rows of a call. Row r sees the tokens from `from[r]` to before `to[r]`, counted from the span's beginning.
struct Seen {
    int from[kRows];
    int to[kRows];
    int first;  // of what any row sees
    int end;

    // Whether a row sees all of the tokens `at` to before `past`.
    bool whole(int r, int at, int past) const { return from[r] <= at && to[r] >= past; }
};

// What a row knows after some spans: the largest score, the sum of 2^(score - largest), and values weighted so.
struct Partial {
    float *values;  // [dim]
    float largest;
    float total;
};

inline int bounded(int64_t a) { return a < 0 ? 0 : a > 16 ? 16 : static_cast<int>(a); }

// Sixteen numbers of row r from token `at` on; those of tokens it does not see are `other`.
inline F32x16 keep_seen(F32x16 a, const Seen &seen, int r, int at, float other) {
    return keep(a, bounded(seen.from[r] - at), bounded(seen.to[r] - at), splat(other));
}

// The largest of a row's scores among those it sees.
inline float largest_seen(const float *scores, const Seen &seen, int r) {
    F32x16 top = splat(-INFINITY);
    for (int at = seen.first / 32 * 32; at < seen.end; at += 32) {
        F32x16 one = load(scores + at), two = load(scores + at + 16);
        if (!seen.whole(r, at, at + 32)) {
            one = keep_seen(one, seen, r, at, -INFINITY);
            two = keep_seen(two, seen, r, at + 16, -INFINITY);
        }
        top = maximum(maximum(top, one), two);
    }
    return largest(top);
}

// Weights of a row's scores in four tiles, 2^(score * scale - largest), 0 where it sees none.
inline void weights_of(const float *scores, const Seen &seen, int r, int at, float scale, float largest,
                       F32x16 (&out)[kScaleTiles]) {
    for (int i = 0; i < kScaleTiles; ++i) {
        out[i] = exp2(fma(load(scores + i * 16), splat(scale), splat(-largest)));
    }
    if (!seen.whole(r, at, at + kScaleTiles * 16)) {
        for (int i = 0; i < kScaleTiles; ++i) {
            out[i] = keep_seen(out[i], seen, r, at + i * 16, 0.0f);
        }
    }
}

// Weights times the scales of their values as bytes; gives what makes them numbers again.
inline float quantize_weights(const Tile *tiles, const Seen &seen, int r, int at, F32x16 (&weights)[kScaleTiles],
                              uint8_t *codes) {
    for (int i = 0; i < kScaleTiles; ++i) {
        weights[i] = weights[i] * load(tiles[i].value_scales);
    }
    if (!seen.whole(r, at, at + kScaleTiles * 16)) {
        for (int i = 0; i < kScaleTiles; ++i) {
            weights[i] = keep_seen(weights[i], seen, r, at + i * 16, 0.0f);
        }
    }
    const float top = largest(maximum(maximum(weights[0], weights[1]), maximum(weights[2], weights[3])));
    // Where nothing is heavier than this, nothing weighs anything, and its inverse would be infinite.
    const F32x16 inverse = splat(top > 1e-30f ? 255.0f / top : 0.0f);
    for (int i = 0; i < kScaleTiles; ++i) {
        store_unsigned_bytes(codes + i * 16, to_int(weights[i] * inverse));
    }
    return top * (1.0f / 255.0f);
}

// R rows over a span, of which they see something together; gives each row's partial, whose values are written.
template <int R, bool Narrow>
void attend_span(const Tile *tiles, const QueryRows &rows, const Seen &seen, const Ahead &ahead,
                 int64_t dim, Partial *partials) {
    alignas(64) float scores[R * TM_SPAN];
    alignas(64) uint8_t codes[Narrow ? R * TM_SPAN : 1];
    alignas(64) uint16_t halves[Narrow ? 1 : R * TM_SPAN];
    float scales[kSpanTiles / kScaleTiles][R], *values[R];
    const int64_t tile_bytes = dim * kTile * (Narrow ? 1 : 2);
    for (int tile = seen.first / 32 * 2; tile * 16 < seen.end; tile += 2) {
        ahead.fetch_keys(tile, tile_bytes);
        ahead.fetch_keys(tile + 1, tile_bytes);
        if constexpr (Narrow) {
            score_int8<R>(tiles + tile, rows, dim, scores + tile * 16);
        } else {
            score_bf16<R>(tiles + tile, rows, dim, scores + tile * 16);
        }
    }
    const int begin = seen.first / 64 * kScaleTiles, end = (seen.end + 63) / 64 * kScaleTiles;
    for (int r = 0; r < R; ++r) {
        values[r] = partials[r].values;
        for (int64_t i = 0; i < dim; i += 16) {
            store(values[r] + i, splat(0.0f));
        }
        const float scale = rows.scales[r], top = largest_seen(scores + r * TM_SPAN, seen, r) * scale;
        F32x16 total = splat(0.0f);
        for (int tile = begin; tile < end; tile += kScaleTiles) {
            const int at = tile * 16;
            F32x16 weights[kScaleTiles];
            weights_of(scores + r * TM_SPAN + at, seen, r, at, scale, top, weights);
            total = total + ((weights[0] + weights[1]) + (weights[2] + weights[3]));
            if constexpr (Narrow) {
                scales[tile / kScaleTiles][r] =
                    quantize_weights(tiles + tile, seen, r, at, weights, codes + r * TM_SPAN + at);
            } else {
                for (int i = 0; i < kScaleTiles; ++i) {
                    store_bf16(halves + r * TM_SPAN + at + i * 16, weights[i]);
                }
            }
        }
        partials[r].largest = top;
        partials[r].total = sum(total);
    }
    by_columns(dim, [&](int64_t column, auto vectors) {
        constexpr int kVectors = decltype(vectors)::value;
        for (int tile = begin; tile < end; tile += kScaleTiles) {
            for (int i = 0; i < kScaleTiles && column == 0; ++i) {
                ahead.fetch_values(tile + i, tile_bytes);
            }
            const int64_t left = (seen.end - tile * 16 + 15) / 16;
            const int64_t count = left < kScaleTiles ? left : kScaleTiles;
            if constexpr (Narrow) {
                weigh_int8<R, kVectors>(tiles + tile, count, codes + tile * 16, scales[tile / kScaleTiles], dim, column,
                                        values);
            } else {
                const int from = seen.first > tile * 16 ? seen.first / 2 * 2 - tile * 16 : 0;
                const int to = seen.end - tile * 16 < 64 ? seen.end - tile * 16 : 64;
                weigh_bf16<R, kVectors>(tiles + tile, from, to, halves + tile * 16, dim, column, values);
            }
        }
    });
}

}  // namespace mill
