// Working memory of a step, carved out of one allocation whose size is known before the first step.
#pragma once

#include "rows.h"
#include "scratch.h"

namespace mill {

// Buffers between the operators of a step. Floats are [rows, width].
struct Arena {
    float *stream;       // [rows, hidden]: the residual stream
    float *branch;       // [rows, hidden]: what is added to it
    float *wide;         // [rows, wide]: queries, keys and values; a gated product; a norm that is kept
    Rows rows[2];        // products read the one and gated products write the other
    uint8_t *attention;  // see scratch.h
    uint8_t *experts;    // see scratch.h
    int64_t bytes;
};

// Lays the buffers out from `base`, which may be null where only the size is asked for.
inline Arena carve(const TmProgram &program, uint8_t *base) {
    Arena arena = {};
    int64_t at = 0;
    const auto take = [&](int64_t bytes) {
        uint8_t *found = base + at;
        at += round_up(bytes, 64);
        return found;
    };
    const int64_t rows = program.max_rows > program.max_logit_rows ? program.max_rows : program.max_logit_rows;
    const auto floats = [&](int64_t width) {
        return reinterpret_cast<float *>(take(rows * width * static_cast<int64_t>(sizeof(float))));
    };
    arena.stream = floats(program.hidden);
    arena.branch = floats(program.hidden);
    arena.wide = floats(program.wide);
    const int64_t deep = round_up(program.deep, TM_GROUP);
    for (Rows &each : arena.rows) {
        each.codes = take(rows * deep * program.row_bytes);
        each.scales = floats(deep / TM_GROUP);
        each.sums = floats(deep / TM_GROUP);
        each.less = reinterpret_cast<int32_t *>(floats(deep / TM_GROUP));
    }
    arena.attention = take(attention_bytes(program));
    arena.experts = take(experts_bytes(program));
    arena.bytes = at;
    return arena;
}

// One of the two as rows of `columns` numbers.
inline Rows shaped(const Rows &rows, int64_t columns) {
    Rows found = rows;
    found.columns = round_up(columns, TM_GROUP);
    found.groups = found.columns / TM_GROUP;
    return found;
}

}  // namespace tm
