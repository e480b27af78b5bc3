// How much working memory attention and experts need of their own.
#pragma once

#include "rows.h"

namespace mill {

inline int64_t attention_bytes(const TmProgram &) { return 0; }

// What routing leaves for the experts. A place is one expert of one row: row * active + which of them, ascending.
struct Routing {
    float *scores;     // [rows, experts padded to whole panels]
    float *weights;    // [places]
    int32_t *chosen;   // [places]: expert
    int32_t *members;  // [places]: places by expert, in order of rows
    int32_t *starts;   // [experts + 1]: where each expert's members begin
    Rows rows;         // those of one expert, [rows, hidden]
    int64_t bytes;
};

// Lays it out from `base`, which may be null where only the size is asked for.
inline Routing carve_routing(const TmProgram &program, const TmOp &op, uint8_t *base) {
    Routing routing = {};
    int64_t at = 0;
    const auto take = [&](int64_t bytes) {
        uint8_t *found = base + at;
        at += round_up(bytes, 64);
        return found;
    };
    const auto integers = [&](int64_t count) { return reinterpret_cast<int32_t *>(take(count * 4)); };
    const auto floats = [&](int64_t count) { return reinterpret_cast<float *>(take(count * 4)); };
    const int64_t rows = program.max_rows, places = rows * op.active;
    routing.scores = floats(rows * round_up(op.n_experts, TM_PANEL));
    routing.weights = floats(places);
    routing.chosen = integers(places);
    routing.members = integers(places);
    routing.starts = integers(op.n_experts + 1);
    routing.rows.columns = round_up(program.hidden, TM_GROUP);
    routing.rows.groups = routing.rows.columns / TM_GROUP;
    routing.rows.codes = take(rows * routing.rows.columns * program.row_bytes);
    routing.rows.scales = floats(rows * routing.rows.groups);
    routing.rows.sums = floats(rows * routing.rows.groups);
    routing.rows.less = integers(rows * routing.rows.groups);
    routing.bytes = at;
    return routing;
}

// Of the mixture that needs most.
inline int64_t experts_bytes(const TmProgram &program) {
    int64_t most = 0;
    for (int64_t i = 0; i < program.n_ops; ++i) {
        if (program.ops[i].kind == TM_EXPERTS) {
            const int64_t bytes = carve_routing(program, program.ops[i], nullptr).bytes;
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

}  // namespace tm
