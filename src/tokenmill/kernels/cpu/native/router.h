// Which experts a row goes to, and with what weight.
#pragma once

#include "context.h"
#include "exp.h"
#include "team.h"

namespace mill {

// One row by one panel of a matrix of floats: 32 numbers. Columns go to four sums in turn, then these are added.
inline void multiply_floats(const TmMatrix &matrix, int64_t panel, const float *row, float *out) {
    const float *data = reinterpret_cast<const float *>(matrix.data + panel * matrix.panel_bytes);
    F32x16 sums[4][2];
    for (auto &each : sums) {
        each[0] = each[1] = splat(0.0f);
    }
    const auto add = [&](int64_t column, F32x16(&to)[2]) {
        const F32x16 x = splat(row[column]);
        to[0] = fma(load(data + column * TM_PANEL), x, to[0]);
        to[1] = fma(load(data + column * TM_PANEL + 16), x, to[1]);
    };
    int64_t column = 0;
    for (; column + 4 <= matrix.k; column += 4) {
        for (int64_t i = 0; i < 4; ++i) {
            add(column + i, sums[i]);
        }
    }
    for (; column < matrix.k; ++column) {
        add(column, sums[column % 4]);
    }
    for (int half = 0; half < 2; ++half) {
        store(out + half * 16, (sums[0][half] + sums[1][half]) + (sums[2][half] + sums[3][half]));
    }
    for (int64_t i = 0; matrix.bias != nullptr && i < TM_PANEL && panel * TM_PANEL + i < matrix.n; ++i) {
        out[i] += matrix.bias[panel * TM_PANEL + i];
    }
}

// Scores of all rows: pairs of a panel and a row are shared, the rows of a panel together.
inline void score(const Context &context, const TmOp &op, const Routing &routing, const Member &member) {
    const int64_t tokens = context.step.tokens, width = round_up(op.n_experts, TM_PANEL);
    const Range mine = member.share(width / TM_PANEL * tokens);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
        const int64_t panel = i / tokens, row = i % tokens;
        const float *kept = context.arena.wide + row * context.program.wide;
        multiply_floats(op.matrix, panel, kept, routing.scores + row * width + panel * TM_PANEL);
    }
}

// Scores become e^(score - largest): shares of the whole but for a factor, and above 0.
inline void exponentiate(float *scores, int64_t count) {
    float top = scores[0];
    for (int64_t i = 1; i < count; ++i) {
        top = scores[i] > top ? scores[i] : top;
    }
    for (int64_t i = 0; i < count; i += 16) {
        store(scores + i, exp(load(scores + i) - splat(top)));
    }
}

// The experts of one row, and their weights, in order of experts; of equal scores the first are chosen.
inline void choose(const TmOp &op, float *scores, int32_t *chosen, float *weights) {
    exponentiate(scores, op.n_experts);
    float whole = 0.0f;
    for (int64_t i = 0; i < op.n_experts; ++i) {
        whole += scores[i];
    }
    for (int32_t turn = 0; turn < op.active; ++turn) {
        int64_t best = 0;
        for (int64_t i = 1; i < op.n_experts; ++i) {
            best = scores[i] > scores[best] ? i : best;
        }
        scores[best] = -scores[best];  // chosen: none is below 0 otherwise
    }
    int32_t found = 0;
    float sum = 0.0f;
    for (int32_t i = 0; i < op.n_experts; ++i) {
        if (scores[i] < 0.0f) {
            chosen[found] = i;
            weights[found++] = -scores[i];
            sum -= scores[i];
        }
    }
    for (int32_t i = 0; i < op.active; ++i) {
        weights[i] /= op.renormalize ? sum : whole;
    }
}

// Places by expert, by counting.
inline void group(const TmOp &op, int64_t places, const Routing &routing) {
    int32_t *starts = routing.starts;
    memset(starts, 0, static_cast<size_t>(op.n_experts + 1) * sizeof *starts);
    for (int64_t i = 0; i < places; ++i) {
        ++starts[routing.chosen[i]];
    }
    int32_t end = 0;
    for (int32_t i = 0; i <= op.n_experts; ++i) {
        end += starts[i];
        starts[i] = end;
    }
    // From the last place to the first, each start moves from its expert's end to its beginning.
    for (int64_t i = places - 1; i >= 0; --i) {
        routing.members[--starts[routing.chosen[i]]] = static_cast<int32_t>(i);
    }
}

// After this `routing` is complete but for `rows`.
inline void route(const Context &context, const TmOp &op, const Routing &routing, const Member &member) {
    const int64_t width = round_up(op.n_experts, TM_PANEL);
    score(context, op, routing, member);
    member.meet();
    const Range mine = member.share(context.step.tokens);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        const int64_t place = row * op.active;
        choose(op, routing.scores + row * width, routing.chosen + place, routing.weights + place);
    }
    member.meet();
    if (member.thread == 0) {
        group(op, context.step.tokens * op.active, routing);
    }
    member.meet();
}

}  // namespace tm
