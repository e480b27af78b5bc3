// A product of a layer and what becomes of it.
#pragma once

#include "activation.h"
#include "context.h"
#include "product.h"

namespace mill {

// rows of `out` = activation(gate) * up of `n_rows` rows of `in`; `wide`, [rows, stride], is overwritten.
// A pair of panels has 16 columns of each, so that together they fill a group of `out`.
inline void gate(const TmMatrix &matrix, const Rows &in, int64_t n_rows, const Rows &out, float *wide, int64_t stride,
                 const TmOp &op, const Member &member) {
    const int64_t inner = matrix.n / 2;
    product(matrix, in, n_rows, member, 2, [&](const Results &results) {
        const int64_t column = results.column / 2, start = column / TM_GROUP * TM_GROUP;
        const bool first = column == start, last = !first || column + 16 >= inner;
        for (int r = 0; r < results.count; ++r) {
            float *row = wide + (results.row + r) * stride;
            store(row + column, activate(op.activation, load(results.at(r))) * load(results.at(r) + 16));
            if (last) {
                if (first) {
                    store(row + column + 16, splat(0.0f));
                }
                write_group(op.rows_as, row + start, out, results.row + r, start / TM_GROUP);
            }
        }
    });
}

inline void linear(const Context &context, const TmOp &op, const Member &member) {
    const Arena &arena = context.arena;
    if (op.epilogue == TM_GATED) {
        const Rows in = shaped(arena.rows[0], op.matrix.k), out = shaped(arena.rows[1], op.matrix.n / 2);
        gate(op.matrix, in, context.step.tokens, out, arena.wide, context.program.wide, op, member);
        return;
    }
    const bool qkv = op.epilogue == TM_QKV, adds = op.epilogue == TM_ADD;
    float *target = qkv ? arena.wide + op.first : adds ? arena.stream : arena.branch;
    const int64_t stride = qkv ? context.program.wide : context.program.hidden;
    const Rows rows = shaped(arena.rows[qkv ? 0 : 1], op.matrix.k);
    product(op.matrix, rows, context.step.tokens, member, 1, [&](const Results &results) {
        for (int r = 0; r < results.count; ++r) {
            float *row = target + (results.row + r) * stride + results.column;
            for (int64_t half = 0; half < results.width; half += 16) {
                const int64_t left = results.width - half;
                const F32x16 found = load(results.at(r) + half);
                store_part(row + half, left, adds ? load_part(row + half, left) + found : found);
            }
        }
    });
}

}  // namespace mill
