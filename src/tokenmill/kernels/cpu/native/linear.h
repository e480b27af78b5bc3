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
    product(matrix, in, n_rows, member, 2, [&](int64_t panel, int64_t row, int count, const float *tile) {
        const bool last = panel % 2 == 1 || (panel + 1) * 16 >= inner;
        for (int r = 0; r < count; ++r) {
            float *group = wide + (row + r) * stride + panel / 2 * TM_GROUP;
            const float *mine = tile + r * TM_PANEL;
            store(group + panel % 2 * 16, activate(op.activation, load(mine)) * load(mine + 16));
            if (last) {
                if (panel % 2 == 0) {
                    store(group + 16, splat(0.0f));
                }
                write_group(op.rows_as, group, out, row + r, panel / 2);
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
    const bool qkv = op.epilogue == TM_QKV;
    float *target = qkv ? arena.wide : op.epilogue == TM_ADD ? arena.stream : arena.branch;
    const int64_t width = qkv ? context.program.wide : context.program.hidden;
    const bool adds = op.epilogue == TM_ADD;
    product(op.matrix, shaped(arena.rows[qkv ? 0 : 1], op.matrix.k), context.step.tokens, member, 1,
            [&](int64_t panel, int64_t row, int count, const float *tile) {
                const int64_t first = panel * TM_PANEL, at = qkv ? op.first : 0;
                const int64_t columns = op.matrix.n - first < TM_PANEL ? op.matrix.n - first : TM_PANEL;
                for (int r = 0; r < count; ++r) {
                    float *out = target + (row + r) * width + at + first;
                    const float *mine = tile + r * TM_PANEL;
                    for (int64_t i = 0; i < columns; ++i) {
                        out[i] = adds ? out[i] + mine[i] : mine[i];
                    }
                }
            });
}

}  // namespace tm
