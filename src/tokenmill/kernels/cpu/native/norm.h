// The residual stream, RMS-normed and made into the rows of the next product (Zhang & Sennrich 2019).
//
// One order of summation for a row: sixteen columns after sixteen, to four sums in turn, then over sums and lanes.
// A row is one thread's, so its bits depend neither on its neighbours nor on the number of threads.
#pragma once

#include <math.h>

#include "context.h"
#include "parts.h"
#include "team.h"

namespace mill {

// What a row is multiplied by, 1 / sqrt(mean(x^2) + eps); no number where the row holds what is not finite, so that
// the whole row shows it. `at(column)` gives sixteen columns, zeros past the end.
template <class At>
inline float inverse_rms(int64_t width, float eps, const At &at) {
    F32x16 sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    for (int64_t column = 0; column < width; column += 64) {
        for (int64_t i = 0; i < 4 && column + i * 16 < width; ++i) {
            const F32x16 x = at(column + i * 16);
            sums[i] = fma(x, x, sums[i]);
        }
    }
    const float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return 1.0f / sqrtf(total / static_cast<float>(width) + eps + (total - total));
}

// The branch goes to the stream; gives what the new stream is to be multiplied by.
inline float add_branch(const TmOp &op, int64_t hidden, const float *branch, float *stream) {
    const auto of_stream = [&](int64_t column) { return load_part(stream + column, hidden - column); };
    const auto of_branch = [&](int64_t column) { return load_part(branch + column, hidden - column); };
    const auto added = [&](int64_t column, F32x16 more) {
        const F32x16 x = of_stream(column) + more;
        store_part(stream + column, hidden - column, x);
        return x;
    };
    if (op.branch != nullptr) {
        const F32x16 factor = splat(inverse_rms(hidden, op.eps, of_branch));
        return inverse_rms(hidden, op.eps, [&](int64_t column) {
            return added(column, of_branch(column) * factor * load_part(op.branch + column, hidden - column));
        });
    }
    if (op.add_branch) {
        return inverse_rms(hidden, op.eps, [&](int64_t column) { return added(column, of_branch(column)); });
    }
    return inverse_rms(hidden, op.eps, of_stream);
}

inline void norm(const Context &context, const TmOp &op, const Member &member) {
    const Arena &arena = context.arena;
    const int64_t hidden = context.program.hidden;
    const Rows rows = shaped(arena.rows[0], hidden);
    const Range mine = member.share(context.step.tokens);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        float *stream = arena.stream + row * hidden;
        float *kept = arena.wide + row * context.program.wide;
        const F32x16 factor = splat(add_branch(op, hidden, arena.branch + row * hidden, stream));
        for (int64_t group = 0; group < rows.groups; ++group) {
            alignas(64) float out[TM_GROUP];
            for (int64_t half = 0; half < TM_GROUP; half += 16) {
                const int64_t column = group * TM_GROUP + half, left = hidden - column;
                const F32x16 weight = load_part(op.weight + column, left);
                const F32x16 normed = load_part(stream + column, left) * factor * weight;
                store(out + half, normed);
                if (op.keep) {
                    store_part(kept + column, left, normed);
                }
            }
            write_group(op.rows_as, out, rows, row, group);
        }
    }
}

}  // namespace mill
