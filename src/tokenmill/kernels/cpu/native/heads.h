// Queries, keys and values of a step's tokens: normed within each head, rotated, and made into what attention reads.
#pragma once

#include <math.h>

#include "kv.h"
#include "norm.h"
#include "team.h"

namespace mill {

// Queries of a step as attention multiplies them.
struct Queries {
    uint8_t *codes;  // [tokens, heads, dim] int8 or bfloat16
    float *scales;   // [tokens, heads], int8 alone: of the codes, the scale of scores included
    int32_t *less;   // [tokens, heads], int8 alone: -128 * sum of the codes, the zero point of the keys
    int64_t heads;
    int64_t dim;     // padded

    const int8_t *bytes(int64_t token, int64_t head) const {
        return reinterpret_cast<const int8_t *>(codes) + (token * heads + head) * dim;
    }
    const uint16_t *halves(int64_t token, int64_t head) const {
        return reinterpret_cast<const uint16_t *>(codes) + (token * heads + head) * dim;
    }
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

// Numbers of a head to int8 codes, zeros up to `padded`; gives their scale. What is no number makes the scale none.
inline float quantize_head(const float *head, int64_t dim, int64_t padded, int8_t *codes, int32_t *total) {
    F32x16 top = splat(0.0f), odd = splat(0.0f);
    for (int64_t i = 0; i < dim; i += 16) {
        const F32x16 x = load_part(head + i, dim - i);
        top = maximum(top, magnitude(x));
        odd = odd + (x - x);
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
    return largest_one / 127.0f + sum(odd);
}

inline void round_head(const float *head, int64_t dim, int64_t padded, uint16_t *out) {
    for (int64_t i = 0; i < padded; ++i) {
        out[i] = i < dim ? to_bf16(head[i]) : uint16_t{0};
    }
}

constexpr int64_t kMaxHeadDim = 512;

// One token: queries to `queries`, keys and values to the cache.
inline void prepare_token(const Context &context, const TmOp &op, const Queries &queries, int64_t token) {
    const TmProgram &program = context.program;
    const TmRotary &rotary = program.rotary[op.rotary];
    const int64_t position = context.step.positions[token], slot = context.step.slots[token];
    const int64_t dim = op.head_dim, padded = queries.dim;
    float *row = context.arena.wide + token * program.wide;
    const bool narrow = program.kv_format == TM_KV_INT8;
    for (int64_t head = 0; head < op.heads; ++head) {
        float *query = row + head * dim;
        norm_and_rotate(query, dim, op.weight, op.eps, rotary, position);
        const int64_t at = token * queries.heads + head;
        if (narrow) {
            int32_t total = 0;
            int8_t *codes = reinterpret_cast<int8_t *>(queries.codes) + at * padded;
            queries.scales[at] = quantize_head(query, dim, padded, codes, &total) * op.scale;
            queries.less[at] = -128 * total;
        } else {
            round_head(query, dim, padded, reinterpret_cast<uint16_t *>(queries.codes) + at * padded);
        }
    }
    for (int64_t head = 0; head < op.kv_heads; ++head) {
        float *key = row + (op.heads + head) * dim;
        const float *value = row + (op.heads + op.kv_heads + head) * dim;
        norm_and_rotate(key, dim, op.branch, op.eps, rotary, position);
        const HeadCache cache = head_cache(program, op, head);
        int32_t unused = 0;
        if (narrow) {
            int8_t codes[2][kMaxHeadDim];
            const float key_scale = quantize_head(key, dim, padded, codes[0], &unused);
            const float value_scale = quantize_head(value, dim, padded, codes[1], &unused);
            write_int8(cache, slot, codes[0], key_scale, codes[1], value_scale);
        } else {
            uint16_t halves[2][kMaxHeadDim];
            round_head(key, dim, padded, halves[0]);
            round_head(value, dim, padded, halves[1]);
            write_bf16(cache, slot, halves[0], halves[1]);
        }
    }
}

}  // namespace mill
