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
    const Rows rows = shaped(context.arena.rows[1], down.k);
    product(down, rows, members_of(routing, expert), member, 1, [&](const Results &results) {
        for (int r = 0; r < results.count; ++r) {
            const int64_t place = members[results.row + r];
            const F32x16 weight = splat(routing.weights[place]);
            float *row = context.arena.branch + place / op.active * hidden + results.column;
            for (int64_t half = 0; half < results.width; half += 16) {
                const int64_t left = results.width - half;
                store_part(row + half, left, fma(load(results.at(r) + half), weight, load_part(row + half, left)));
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

}  // namespace mill
