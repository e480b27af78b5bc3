// How much working memory attention and experts need of their own; mirrored in planner/arena.py.
#pragma once

#include "rows.h"

namespace mill {

// Query rows of a item of attention at most, unless a single token has more.
constexpr int64_t kItemRows = 64;
// Partial results of rows kept at once where spans of a context are shared by threads.
constexpr int64_t kPartialRows = 1024;
// Rows attention computes together.
constexpr int kRows = 6;

inline int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Sizes that cover every attention of a program.
struct AttentionSizes {
    int64_t query_width;  // heads * padded dimension
    int64_t heads;
    int64_t dim;          // padded
    int64_t item_rows;

    int64_t number_bytes;
    int64_t rows;
    int64_t threads;

    // Of a row's values, its largest score and its total; see RowState.
    int64_t row_bytes() const { return (dim + 16) * 4; }
    int64_t plan() const { return whole_lines(2 * (rows + 1) * 8); }
    int64_t codes() const { return whole_lines(rows * query_width * number_bytes); }
    int64_t scales() const { return whole_lines(rows * heads * 4); }
    int64_t state() const { return whole_lines((item_rows + kRows) * row_bytes()); }
    int64_t partials() const { return whole_lines(kPartialRows * row_bytes()); }
    int64_t bytes() const { return plan() + codes() + 2 * scales() + threads * state() + partials(); }
};

inline AttentionSizes attention_sizes(const TmProgram &program) {
    AttentionSizes sizes = {};
    const auto raise = [](int64_t &size, int64_t to) { size = to > size ? to : size; };
    for (int64_t i = 0; i < program.n_ops; ++i) {
        const TmOp &op = program.ops[i];
        if (op.kind != TM_ATTENTION) {
            continue;
        }
        const int64_t dim = (op.head_dim + 15) / 16 * 16, shared = op.heads / op.kv_heads;
        raise(sizes.query_width, op.heads * dim);
        raise(sizes.heads, op.heads);
        raise(sizes.dim, dim);
        raise(sizes.item_rows, shared > kItemRows ? shared : kItemRows);
    }
    sizes.number_bytes = program.kv_format == TM_KV_INT8 ? 1 : 2;
    sizes.rows = program.max_rows;
    sizes.threads = program.threads;
    return sizes;
}

inline int64_t attention_bytes(const TmProgram &program) {
    const AttentionSizes sizes = attention_sizes(program);
    return sizes.dim == 0 ? 0 : sizes.bytes();
}

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

}  // namespace mill
