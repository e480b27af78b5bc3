// A mixture of experts in place of one gated product: see kernels/experts.py.
//
// Experts follow one another, each computed by all threads over the rows that chose it. So a row adds up its experts
// in the order of their numbers, whatever rows are beside it.
#pragma once

#include <initializer_list>

#include "linear.h"
#include "router.h"

namespace mill {

inline int32_t members_of(const Routing &routing, int32_t expert) {
    return routing.starts[expert + 1] - routing.starts[expert];
}

// The rows of an expert, side by side.
inline void gather(const Context &context, const TmOp &op, const Routing &routing, int32_t expert,
                   const Member &member) {
    const Rows all = shaped(context.arena.rows[0], context.program.hidden);
    const int64_t bytes = op.experts[expert].gate_up.format == TM_BF16 ? 2 : 1;
    const Range mine = member.share(members_of(routing, expert));
    for (int64_t i = mine.begin; i < mine.end; ++i) {
        copy_row(all, routing.members[routing.starts[expert] + i] / op.active, routing.rows, i, bytes);
    }
}

// branch += weight * (rows[1] W^T) for the rows of an expert.
inline void add_expert(const Context &context, const TmOp &op, const Routing &routing, int32_t expert,
                       const Member &member) {
    const TmMatrix &down = op.experts[expert].down;
    const int64_t hidden = context.program.hidden;
    const int32_t *members = routing.members + routing.starts[expert];
    product(down, shaped(context.arena.rows[1], down.k), members_of(routing, expert), member, 1,
            [&](int64_t panel, int64_t row, int count, const float *tile) {
                const int64_t first = panel * TM_PANEL;
                const int64_t width = hidden - first < TM_PANEL ? hidden - first : TM_PANEL;
                for (int r = 0; r < count; ++r) {
                    const int64_t place = members[row + r];
                    float *out = context.arena.branch + place / op.active * hidden + first;
                    for (int64_t i = 0; i < width; ++i) {
                        out[i] += routing.weights[place] * tile[r * TM_PANEL + i];
                    }
                }
            });
}

inline void experts(const Context &context, const TmOp &op, const Member &member) {
    const Arena &arena = context.arena;
    const int64_t tokens = context.step.tokens, hidden = context.program.hidden;
    if (tokens == 0) {
        return;
    }
    const Routing routing = carve_routing(context.program, op, arena.experts);
    const Range mine = member.share(tokens);
    memset(arena.branch + mine.begin * hidden, 0, static_cast<size_t>((mine.end - mine.begin) * hidden) * sizeof(float));
    route(context, op, routing, member);
    // `wide` is free now: what was kept there has been routed.
    for (int32_t expert = 0; expert < op.n_experts; ++expert) {
        const TmMatrix &gate_up = op.experts[expert].gate_up;
        const int64_t count = members_of(routing, expert);
        if (count == 0) {
            continue;
        }
        gather(context, op, routing, expert, member);
        member.meet();
        gate(gate_up, routing.rows, count, shaped(arena.rows[1], gate_up.n / 2), arena.wide, context.program.wide, op,
             member);
        member.meet();
        // The next expert's rows are gathered meanwhile: nobody reads this one's any more.
        add_expert(context, op, routing, expert, member);
    }
}

// After the operator has run: every expert that was chosen is read once.
inline Cost experts_cost(const Context &context, const TmOp &op) {
    const int64_t tokens = context.step.tokens;
    Cost cost = product_cost(op.matrix, tokens);
    if (tokens == 0) {
        return cost;
    }
    const Routing routing = carve_routing(context.program, op, context.arena.experts);
    for (int32_t expert = 0; expert < op.n_experts; ++expert) {
        for (const TmMatrix *matrix : {&op.experts[expert].gate_up, &op.experts[expert].down}) {
            const Cost one = product_cost(*matrix, members_of(routing, expert));
            cost.bytes += one.bytes;
            cost.multiply_adds += one.multiply_adds;
        }
    }
    return cost;
}

}  // namespace tm
