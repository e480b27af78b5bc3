// Attention over the paged KV cache: every query row over its context, span after span.
//
// The work is cut into units: the rows of a few tokens of a sequence that share a KV head. Where there are few units, as
// when a handful of sequences decode, the spans of their contexts are shared by the threads instead. A row's spans are
// merged in order either way.
#pragma once

#include "context.h"
#include "span.h"
#include "team.h"

namespace mill {

// Rows one after another: largest score, total, values; see Partial.
struct RowState {
    float *data;
    int64_t dim;

    float *values(int64_t row) const { return data + row * (dim + 2); }
    float &largest(int64_t row) const { return values(row)[dim]; }
    float &total(int64_t row) const { return values(row)[dim + 1]; }
};

// How this step's attention is cut up; the same for all threads.
struct AttentionPlan {
    int64_t *first_unit;   // [sequences + 1], of each sequence
    Queries queries;
    uint8_t *states;
    int64_t state_bytes;
    RowState partials;     // of all rows of all units, span by span, where spans are shared
    int64_t unit_tokens;   // of a sequence that share a unit
    int64_t shared;        // heads that share a KV head
    int64_t dim;           // padded
    bool split;
    int64_t spans;         // of the longest context, where spans are shared
};

inline AttentionPlan plan_attention(const Context &context, const TmOp &op) {
    const AttentionSizes sizes = attention_sizes(context.program);
    AttentionPlan plan = {};
    uint8_t *at = context.arena.attention;
    const auto take = [&](int64_t bytes) {
        uint8_t *found = at;
        at += bytes;
        return found;
    };
    plan.first_unit = reinterpret_cast<int64_t *>(take(sizes.plan()));
    plan.dim = round_up(op.head_dim, 16);
    plan.queries.codes = take(sizes.codes());
    plan.queries.scales = reinterpret_cast<float *>(take(sizes.scales()));
    plan.queries.less = reinterpret_cast<int32_t *>(take(sizes.scales()));
    plan.queries.heads = op.heads;
    plan.queries.dim = plan.dim;
    plan.state_bytes = sizes.state();
    plan.states = take(sizes.state() * sizes.threads);
    plan.partials = {reinterpret_cast<float *>(take(sizes.partials())), plan.dim};
    plan.shared = op.heads / op.kv_heads;
    plan.unit_tokens = plan.shared > kUnitRows ? 1 : kUnitRows / plan.shared;
    const TmStep &step = context.step;
    for (int64_t i = 0; i < step.sequences; ++i) {
        const int64_t spans = (step.context_lens[i] + TM_SPAN - 1) / TM_SPAN;
        plan.spans = spans > plan.spans ? spans : plan.spans;
    }
    plan.split = step.sequences == step.tokens && plan.spans > 1 && step.tokens * op.heads * plan.spans <= kSplitRows;
    return plan;
}

// Lays the units of all sequences one after another; on one thread, before the others look.
inline void count_units(const TmStep &step, const TmOp &op, const AttentionPlan &plan) {
    plan.first_unit[0] = 0;
    for (int64_t i = 0; i < step.sequences; ++i) {
        const int64_t tokens = step.query_starts[i + 1] - step.query_starts[i];
        const int64_t blocks = (tokens + plan.unit_tokens - 1) / plan.unit_tokens;
        plan.first_unit[i + 1] = plan.first_unit[i] + blocks * op.kv_heads;
    }
}

struct Unit {
    int64_t sequence;
    int64_t kv_head;
    int64_t token;     // of the step, the first of the unit
    int64_t tokens;
    int64_t position;  // of the first token, in its sequence
};

inline Unit unit_at(const TmStep &step, const TmOp &op, const AttentionPlan &plan, int64_t number) {
    int64_t low = 0, high = step.sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (plan.first_unit[middle] <= number ? low : high) = middle;
    }
    const int64_t inside = number - plan.first_unit[low];
    const int64_t start = step.query_starts[low], end = step.query_starts[low + 1];
    // The last tokens see most: they come first, so that no thread is left with one of them at the end.
    const int64_t blocks = (plan.first_unit[low + 1] - plan.first_unit[low]) / op.kv_heads;
    const int64_t token = start + (blocks - 1 - inside / op.kv_heads) * plan.unit_tokens;
    const int64_t tokens = end - token < plan.unit_tokens ? end - token : plan.unit_tokens;
    return {low, inside % op.kv_heads, token, tokens, step.context_lens[low] - (end - token)};
}

// Takes one span's partial into a row's state.
inline void merge(const RowState &into, int64_t row, const float *values, float largest, float total) {
    float *mine = into.values(row);
    const int64_t dim = into.dim;
    if (total == 0.0f && largest == -INFINITY) {
        return;  // the row sees nothing of this span
    }
    if (into.largest(row) == -INFINITY) {
        memcpy(mine, values, static_cast<size_t>(dim) * sizeof(float));
        into.largest(row) = largest;
        into.total(row) = total;
        return;
    }
    const float top = largest > into.largest(row) ? largest : into.largest(row);
    const float old_share = expf(into.largest(row) - top), new_share = expf(largest - top);
    const F32x16 keep_old = splat(old_share), take_new = splat(new_share);
    for (int64_t i = 0; i < dim; i += 16) {
        store(mine + i, fma(load(values + i), take_new, load(mine + i) * keep_old));
    }
    into.largest(row) = top;
    into.total(row) = into.total(row) * old_share + total * new_share;
}

inline void clear(const RowState &state, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row) {
        memset(state.values(row), 0, static_cast<size_t>(state.dim + 2) * sizeof(float));
        state.largest(row) = -INFINITY;
    }
}

// Tiles of a span; `tokens` of the context are there. Tiles past them are the last one again, and are never seen.
inline void find_tiles(const TmStep &step, const HeadCache &cache, bool narrow, int64_t sequence, int64_t span,
                       int64_t tokens, Tile *tiles) {
    const int64_t *table = step.block_tables + sequence * step.table_width;
    for (int64_t tile = 0; tile < kSpanTiles; ++tile) {
        int64_t position = span * TM_SPAN + tile * kTile;
        position = position < tokens ? position : (tokens - 1) / kTile * kTile;
        const int64_t block = table[position / cache.block_size], offset = position % cache.block_size;
        tiles[tile] = {cache.keys(block, offset), cache.values(block, offset),
                       narrow ? cache.key_scales(block) + offset : nullptr,
                       narrow ? cache.value_scales(block) + offset : nullptr};
    }
}

template <int R>
inline void attend_rows(bool narrow, const Tile *tiles, int first, int last, const QueryRows &rows, const Seen &seen,
                        int64_t dim, const RowState &out) {
    float largest[kRows], total[kRows];
    float *values[kRows];
    for (int r = 0; r < R; ++r) {
        values[r] = out.values(r);
    }
    if (narrow) {
        attend_span<R, true>(tiles, first, last, rows, seen, dim, largest, total, values);
    } else {
        attend_span<R, false>(tiles, first, last, rows, seen, dim, largest, total, values);
    }
    for (int r = 0; r < R; ++r) {
        out.largest(r) = largest[r];
        out.total(r) = total[r];
    }
}

// Rows of a unit over one span, handed to `take(row, partial state, its row)`.
template <class Take>
void attend_unit(const Context &context, const TmOp &op, const AttentionPlan &plan, const Unit &unit, int64_t span,
                 const RowState &work, const Take &take) {
    const bool narrow = context.program.kv_format == TM_KV_INT8;
    const HeadCache cache = head_cache(context.program, op, unit.kv_head);
    const int64_t begin = span * TM_SPAN, last_seen = unit.position + unit.tokens;
    Tile tiles[kSpanTiles];
    find_tiles(context.step, cache, narrow, unit.sequence, span, last_seen, tiles);
    const int64_t n_rows = unit.tokens * plan.shared;
    for (int64_t row = 0; row < n_rows; row += kRows) {
        const int count = n_rows - row < kRows ? static_cast<int>(n_rows - row) : kRows;
        QueryRows rows = {};
        Seen seen = {};
        int from = TM_SPAN, to = 0;
        for (int r = 0; r < count; ++r) {
            const int64_t token = (row + r) / plan.shared, head = unit.kv_head * plan.shared + (row + r) % plan.shared;
            const int64_t at = (unit.token + token) * plan.queries.heads + head, position = unit.position + token;
            rows.codes[r] = narrow ? static_cast<const void *>(plan.queries.bytes(unit.token + token, head))
                                   : static_cast<const void *>(plan.queries.halves(unit.token + token, head));
            rows.scales[r] = narrow ? plan.queries.scales[at] : op.scale;
            rows.less[r] = narrow ? plan.queries.less[at] : 0;
            const int64_t oldest = op.window > 0 && position - op.window + 1 > begin ? position - op.window + 1 - begin : 0;
            const int64_t end = position + 1 - begin;
            seen.to[r] = static_cast<int>(end < 0 ? 0 : end < TM_SPAN ? end : TM_SPAN);
            seen.from[r] = static_cast<int>(oldest < seen.to[r] ? oldest : seen.to[r]);
            if (seen.from[r] < seen.to[r]) {
                from = seen.from[r] < from ? seen.from[r] : from;
                to = seen.to[r] > to ? seen.to[r] : to;
            }
        }
        if (from >= to) {
            continue;
        }
        clear(work, count);
        const int first = from / 32, last = (to + 31) / 32;
        switch (count) {
            case 1: attend_rows<1>(narrow, tiles, first, last, rows, seen, plan.dim, work); break;
            case 2: attend_rows<2>(narrow, tiles, first, last, rows, seen, plan.dim, work); break;
            case 3: attend_rows<3>(narrow, tiles, first, last, rows, seen, plan.dim, work); break;
            default: attend_rows<4>(narrow, tiles, first, last, rows, seen, plan.dim, work); break;
        }
        for (int r = 0; r < count; ++r) {
            take(row + r, work, r);
        }
    }
}

// A row's result, in place of its query in `wide`.
inline void finish_row(const Context &context, const TmOp &op, const RowState &state, int64_t row, int64_t token,
                       int64_t head) {
    float *out = context.arena.wide + token * context.program.wide + head * op.head_dim;
    const float *values = state.values(row);
    const float inverse = 1.0f / state.total(row);
    for (int64_t i = 0; i < op.head_dim; ++i) {
        out[i] = values[i] * inverse;
    }
}

inline int64_t first_span(const TmOp &op, int64_t position) {
    return op.window > 0 && position >= op.window ? (position - op.window + 1) / TM_SPAN : 0;
}

inline void whole_unit(const Context &context, const TmOp &op, const AttentionPlan &plan, const Unit &unit,
                       const RowState &state, const RowState &work) {
    clear(state, unit.tokens * plan.shared);
    const int64_t last = (unit.position + unit.tokens - 1) / TM_SPAN;
    for (int64_t span = first_span(op, unit.position); span <= last; ++span) {
        attend_unit(context, op, plan, unit, span, work, [&](int64_t row, const RowState &found, int64_t at) {
            merge(state, row, found.values(at), found.largest(at), found.total(at));
        });
    }
    for (int64_t row = 0; row < unit.tokens * plan.shared; ++row) {
        finish_row(context, op, state, row, unit.token + row / plan.shared,
                   unit.kv_head * plan.shared + row % plan.shared);
    }
}

// A head's place among the partials: by token, head and span.
inline int64_t partial_at(const TmOp &op, const AttentionPlan &plan, int64_t token, int64_t head, int64_t span) {
    return (token * op.heads + head) * plan.spans + span;
}

inline void one_span(const Context &context, const TmOp &op, const AttentionPlan &plan, const Unit &unit, int64_t span,
                     const RowState &work) {
    for (int64_t i = 0; i < plan.shared; ++i) {
        const int64_t at = partial_at(op, plan, unit.token, unit.kv_head * plan.shared + i, span);
        plan.partials.largest(at) = -INFINITY;
        plan.partials.total(at) = 0.0f;
    }
    if (span * TM_SPAN > unit.position || span < first_span(op, unit.position)) {
        return;
    }
    attend_unit(context, op, plan, unit, span, work, [&](int64_t row, const RowState &found, int64_t from) {
        const int64_t at = partial_at(op, plan, unit.token, unit.kv_head * plan.shared + row, span);
        memcpy(plan.partials.values(at), found.values(from), static_cast<size_t>(plan.dim + 2) * sizeof(float));
    });
}

inline void merge_spans(const Context &context, const TmOp &op, const AttentionPlan &plan, int64_t token,
                        const RowState &state) {
    for (int64_t head = 0; head < op.heads; ++head) {
        clear(state, 1);
        for (int64_t span = 0; span < plan.spans; ++span) {
            const int64_t at = partial_at(op, plan, token, head, span);
            merge(state, 0, plan.partials.values(at), plan.partials.largest(at), plan.partials.total(at));
        }
        finish_row(context, op, state, 0, token, head);
    }
}

// Heads normed and rotated, keys and values written to the cache, then attention; see TmOp.
inline void attention(const Context &context, const TmOp &op, const Member &member) {
    const TmStep &step = context.step;
    const AttentionPlan plan = plan_attention(context, op);
    const Range tokens = member.share(step.tokens);
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
        prepare_token(context, op, plan.queries, token);
    }
    if (member.thread == 0) {
        count_units(step, op, plan);
    }
    member.meet();
    const RowState state = {reinterpret_cast<float *>(plan.states + member.thread * plan.state_bytes), plan.dim};
    const int64_t unit_rows = plan.shared > kUnitRows ? plan.shared : kUnitRows;
    const RowState work = {state.data + unit_rows * (plan.dim + 2), plan.dim};
    const int64_t units = plan.first_unit[step.sequences], items = plan.split ? units * plan.spans : units;
    member.take_turns(items, 1, [&](int64_t item) {
        const Unit unit = unit_at(step, op, plan, plan.split ? item / plan.spans : item);
        if (plan.split) {
            one_span(context, op, plan, unit, item % plan.spans, work);
        } else {
            whole_unit(context, op, plan, unit, state, work);
        }
    });
    member.meet();
    const int64_t width = op.heads * op.head_dim;
    const Rows out = shaped(context.arena.rows[1], width);
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
        if (plan.split) {
            merge_spans(context, op, plan, token, state);
        }
        write_row(op.rows_as, context.arena.wide + token * context.program.wide, width, out, token);
    }
}

// Keys and values read and written, and the multiply-adds of both products.
inline Cost attention_cost(const Context &context, const TmOp &op) {
    const TmStep &step = context.step;
    const int64_t token_bytes = context.program.layers[op.layer].head_bytes * op.kv_heads / context.program.block_size;
    Cost cost = {step.tokens * token_bytes, 0};
    for (int64_t i = 0; i < step.sequences; ++i) {
        const int64_t queries = step.query_starts[i + 1] - step.query_starts[i];
        for (int64_t q = 0; q < queries; ++q) {
            int64_t seen = step.context_lens[i] - queries + q + 1;
            seen = op.window > 0 && seen > op.window ? op.window : seen;
            cost.multiply_adds += 2 * seen * op.heads * op.head_dim;
        }
        const int64_t oldest = step.context_lens[i] - queries - (op.window > 0 ? op.window - 1 : step.context_lens[i]);
        cost.bytes += (step.context_lens[i] - (oldest > 0 ? oldest : 0)) * token_bytes;
    }
    return cost;
}

}  // namespace mill
