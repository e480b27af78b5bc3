// The output head, for the rows whose logits are wanted.
//
// While the product runs, `best` of a row holds a key that grows with the logit and falls with the token, so that
// the threads' largest key is the first of the largest logits, in whatever order panels come.
#pragma once

#include "context.h"
#include "product.h"
#include "team.h"

namespace mill {

// Larger than the key of any finite logit.
constexpr uint64_t kNotFinite = UINT64_MAX;

// The logit's bits, made to be ordered as floats are, above the token counted down.
inline uint64_t best_key(float logit, int64_t token) {
    const float plain = logit + 0.0f;  // -0 counts as 0
    uint32_t bits;
    memcpy(&bits, &plain, sizeof bits);
    const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(ordered) << 32 | (UINT32_MAX - static_cast<uint32_t>(token));
}

inline int64_t token_of(uint64_t key) {
    return key == kNotFinite ? -1 : static_cast<int64_t>(UINT32_MAX - static_cast<uint32_t>(key));
}

// The best of `width` logits, the first of which is that of `token`.
inline uint64_t best_of(const float *logits, int64_t token, int64_t width) {
    alignas(64) float all[TM_PANEL];
    for (int64_t i = 0; i < TM_PANEL; ++i) {
        all[i] = logits[i < width ? i : 0];  // what comes twice is best at its first place
    }
    const F32x16 low = load(all), high = load(all + 16);
    // What is not finite less itself is no number.
    if (sum((low - low) + (high - high)) != 0.0f) {
        return kNotFinite;
    }
    const float top = largest(maximum(low, high));
    int64_t at = 0;
    while (all[at] != top) {
        ++at;
    }
    return best_key(top, token + at);
}

inline void raise(uint64_t *best, uint64_t key) {
    uint64_t seen = __atomic_load_n(best, __ATOMIC_RELAXED);
    while (key > seen && !__atomic_compare_exchange_n(best, &seen, key, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

inline void logits(const Context &context, const TmOp &op, const Member &member) {
    const TmStep &step = context.step;
    const int64_t hidden = context.program.hidden, vocabulary = context.program.vocabulary;
    const Range kept = member.share(step.n_hidden_rows);
    for (int64_t i = kept.begin; i < kept.end; ++i) {
        const float *row = context.arena.wide + step.hidden_rows[i] * context.program.wide;
        memcpy(step.hidden + i * hidden, row, static_cast<size_t>(hidden) * sizeof(float));
    }
    if (step.n_logit_rows == 0) {
        return;
    }
    uint64_t *best = reinterpret_cast<uint64_t *>(step.best);
    const Rows all = shaped(context.arena.rows[0], op.matrix.k), rows = shaped(context.arena.rows[1], op.matrix.k);
    const Range mine = member.share(step.n_logit_rows);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
        copy_row(all, step.logit_rows[i], rows, i, op.matrix.format == TM_BF16 ? 2 : 1);
        best[i] = 0;
    }
    member.meet();
    product(op.matrix, rows, step.n_logit_rows, member, 1, [&](const Results &results) {
        for (int r = 0; r < results.count; ++r) {
            float *out = step.logits + (results.row + r) * vocabulary + results.column;
            memcpy(out, results.at(r), static_cast<size_t>(results.width) * sizeof(float));
            raise(best + results.row + r, best_of(results.at(r), results.column, results.width));
        }
    });
    member.meet();
    for (int64_t i = mine.begin; i < mine.end; ++i) {
        step.best[i] = token_of(best[i]);
    }
}

}  // namespace mill
