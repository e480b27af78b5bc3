// Queries, keys and values of a step's tokens: normed within each head, rotated, and made into what attention reads.
#pragma once

#include <math.h>

#include "kv.h"
#include "norm.h"
#include "team.h"

namespace mill {

constexpr float kLog2E = 1.4426950408889634f;

// Queries of a step as attention multiplies them.
struct Queries {
    uint8_t *codes;  // [rows, dim] int8 or bfloat16
    float *scales;   // [rows]: what makes scores of codes powers of two
    int32_t *less;   // [rows], int8 alone: -128 * sum of the codes, the zero point of the keys
    int64_t tokens;
    int64_t shared;  // heads that share a KV head
    int64_t dim;     // padded

    // Rows of a KV head lie together, token after token.
    int64_t row(int64_t kv_head, int64_t token) const { return (kv_head * tokens + token) * shared; }
};

// A head in place: RMS norm where there is a weight, then the rotation of the first 2 * half numbers (Su et al. 2021).
inline void norm_and_rotate(float *head, int64_t dim, const float *weight, float eps, const TmRotary &rotary,
                            int64_t position) {
    if (weight != nullptr) {
        const float factor =
            inverse_rms(dim, eps, [&](int64_t column) { return load_part(head + column, dim - column); });
        for (int64_t i = 0; i < dim; ++i) {
            head[i] *= factor * weight[i];
        }
    }
    const float *cos = rotary.cos + position * rotary.half, *sin = rotary.sin + position * rotary.half;
    for (int64_t i = 0; i < rotary.half; ++i) {
        const float first = head[i], second = head[rotary.half + i];
        head[i] = first * cos[i] - second * sin[i];
        head[rotary.half + i] = second * cos[i] + first * sin[i];
    }
}

// NaN where a number of a head is none, else 0.
inline float poison(const float *head, int64_t dim) {
    F32x16 odd = splat(0.0f);
    for (int64_t i = 0; i < dim; i += 16) {
        const F32x16 x = load_part(head + i, dim - i);
        odd = odd + (x - x);
    }
    return sum(odd);
}

// Numbers of a head to int8 codes, zeros up to `padded`; gives their scale.
inline float quantize_head(const float *head, int64_t dim, int64_t padded, int8_t *codes, int32_t *total) {
    F32x16 top = splat(0.0f);
    for (int64_t i = 0; i < dim; i += 16) {
        top = maximum(top, magnitude(load_part(head + i, dim - i)));
    }
    const float largest_one = largest(top);
    const F32x16 inverse = splat(largest_one > 0 ? 127.0f / largest_one : 0.0f);
    I32x16 all = splat(int32_t{0});
    for (int64_t i = 0; i < padded; i += 16) {
        const I32x16 code = to_int(load_part(head + i, dim - i) * inverse);
        store_bytes(codes + i, code);
        all = all + code;
    }
    *total = sum(all);
    return largest_one / 127.0f;
}

inline void round_head(const float *head, int64_t dim, int64_t padded, uint16_t *out) {
    for (int64_t i = 0; i < padded; i += 16) {
        store_bf16(out + i, load_part(head + i, dim - i));
    }
}

// As kernels/cpu/lower.py refuses what is larger.
constexpr int64_t kMaxHeadDim = 512;

// A key and its value to the cache. Where any number of theirs is none the key becomes none, in its scale or in its
// numbers, and the value zero: so who looks at the token gets no number, and who does not gets nothing of it.
inline void cache_token(const HeadCache &cache, bool narrow, int64_t slot, const float *key, const float *value,
                        int64_t dim) {
    const float odd = poison(key, dim) + poison(value, dim);
    if (narrow) {
        int8_t codes[2][kMaxHeadDim];
        int32_t unused;
        const float key_scale = quantize_head(key, dim, cache.dim, codes[0], &unused);
        const float value_scale = quantize_head(value, dim, cache.dim, codes[1], &unused);
        write_int8(cache, slot, codes[0], key_scale + odd, codes[1], value_scale);
        return;
    }
    uint16_t halves[2][kMaxHeadDim];
    round_head(key, dim, cache.dim, halves[0]);
    round_head(value, dim, cache.dim, halves[1]);
    if (odd != 0.0f) {
        memset(halves[0], 0xff, sizeof halves[0]);
        memset(halves[1], 0, sizeof halves[1]);
    }
    write_bf16(cache, slot, halves[0], halves[1]);
}

// A token's query heads to `queries` and its keys and values to the cache, those of one KV head.
inline void prepare_head(const Context &context, const TmOp &op, const Queries &queries, int64_t token,
                         int64_t kv_head) {
    const TmProgram &program = context.program;
    const TmRotary &rotary = program.rotary[op.rotary];
    const int64_t position = context.step.positions[token], slot = context.step.slots[token];
    const int64_t dim = op.head_dim, padded = queries.dim, shared = queries.shared;
    float *row = context.arena.wide + token * program.wide;
    const bool narrow = program.kv_format == TM_KV_INT8;
    for (int64_t i = 0; i < shared; ++i) {
        float *query = row + (kv_head * shared + i) * dim;
        norm_and_rotate(query, dim, op.weight, op.eps, rotary, position);
        const int64_t at = queries.row(kv_head, token) + i;
        queries.scales[at] = op.scale * kLog2E;
        if (narrow) {
            int32_t total;
            int8_t *codes = reinterpret_cast<int8_t *>(queries.codes) + at * padded;
            queries.scales[at] *= quantize_head(query, dim, padded, codes, &total) + poison(query, dim);
            queries.less[at] = -128 * total;
        } else {
            round_head(query, dim, padded, reinterpret_cast<uint16_t *>(queries.codes) + at * padded);
        }
    }
    float *key = row + (op.heads + kv_head) * dim;
    const float *value = row + (op.heads + op.kv_heads + kv_head) * dim;
    norm_and_rotate(key, dim, op.branch, op.eps, rotary, position);
    cache_token(head_cache(program, op, kv_head), narrow, slot, key, value, dim);
}

}  // namespace mill
