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

// What rows know after some spans, one after another, each [dim + 16]: the largest score, the sum of
// 2^(score - largest), which is 0 where they saw nothing, and values weighted so.
struct RowState {
    float *data;
    int64_t dim;

    float *values(int64_t row) const { return data + row * (dim + 16); }
    float &largest(int64_t row) const { return values(row)[dim]; }
    float &total(int64_t row) const { return values(row)[dim + 1]; }
    RowState from(int64_t row) const { return {values(row), dim}; }
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
    plan.shared = op.heads / op.kv_heads;
    plan.queries.codes = take(sizes.codes());
    plan.queries.scales = reinterpret_cast<float *>(take(sizes.scales()));
    plan.queries.less = reinterpret_cast<int32_t *>(take(sizes.scales()));
    plan.queries.tokens = context.step.tokens;
    plan.queries.shared = plan.shared;
    plan.queries.dim = plan.dim;
    plan.state_bytes = sizes.state();
    plan.states = take(sizes.state() * sizes.threads);
    plan.partials = {reinterpret_cast<float *>(take(sizes.partials())), plan.dim};
    const TmStep &step = context.step;
    // Enough units for all threads to be busy to the end.
    const int64_t most = plan.shared > kUnitRows ? 1 : kUnitRows / plan.shared;
    const int64_t wanted = step.tokens * op.kv_heads / (8 * context.program.threads);
    plan.unit_tokens = wanted < 1 ? 1 : wanted < most ? wanted : most;
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

inline void clear(const RowState &state, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row) {
        state.total(row) = 0.0f;
    }
}

// Takes what one more span gave row 0 of `from` into a row.
inline void merge(const RowState &into, int64_t row, const RowState &from) {
    float *mine = into.values(row);
    const float *values = from.values(0);
    const int64_t dim = into.dim;
    if (from.total(0) == 0.0f) {
        return;
    }
    if (into.total(row) == 0.0f) {
        memcpy(mine, values, static_cast<size_t>(dim + 2) * sizeof(float));
        return;
    }
    const float old = into.largest(row), more = from.largest(0), top = more > old ? more : old;
    const F32x16 keep_old = exp2(splat(old - top)), take_more = exp2(splat(more - top));
    for (int64_t i = 0; i < dim; i += 16) {
        store(mine + i, fma(load(values + i), take_more, load(mine + i) * keep_old));
    }
    into.largest(row) = top;
    into.total(row) = into.total(row) * largest(keep_old) + from.total(0) * largest(take_more);
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
inline void attend_rows(bool narrow, const Tile *tiles, const QueryRows &rows, const Seen &seen, const RowState &out) {
    Partial partials[R];
    for (int r = 0; r < R; ++r) {
        partials[r].values = out.values(r);
    }
    if (narrow) {
        attend_span<R, true>(tiles, rows, seen, out.dim, partials);
    } else {
        attend_span<R, false>(tiles, rows, seen, out.dim, partials);
    }
    for (int r = 0; r < R; ++r) {
        out.largest(r) = partials[r].largest;
        out.total(r) = partials[r].total;
    }
}

// What `count` rows of a unit from `row` on see of a span that begins at this position.
inline Seen seen_by(const TmOp &op, const AttentionPlan &plan, const Unit &unit, int64_t row, int count,
                    int64_t begin) {
    Seen seen;
    seen.first = TM_SPAN;
    seen.end = 0;
    for (int r = 0; r < count; ++r) {
        const int64_t position = unit.position + (row + r) / plan.shared;
        const int64_t oldest = op.window > 0 && position >= op.window ? position - op.window + 1 : 0;
        const int64_t from = oldest > begin ? oldest - begin : 0, to = position + 1 - begin;
        seen.to[r] = static_cast<int>(to < 0 ? 0 : to < TM_SPAN ? to : TM_SPAN);
        seen.from[r] = static_cast<int>(from < seen.to[r] ? from : seen.to[r]);
        if (seen.from[r] < seen.to[r]) {
            seen.first = seen.from[r] < seen.first ? seen.from[r] : seen.first;
            seen.end = seen.to[r] > seen.end ? seen.to[r] : seen.end;
        }
    }
    return seen;
}

// Rows of a unit over one span; `take(row, its partial)` for each that sees something of it.
template <class Take>
void attend_unit(const Context &context, const TmOp &op, const AttentionPlan &plan, const Unit &unit, int64_t span,
                 const RowState &work, const Take &take) {
    const bool narrow = context.program.kv_format == TM_KV_INT8;
    const HeadCache cache = head_cache(context.program, op, unit.kv_head);
    Tile tiles[kSpanTiles];
    find_tiles(context.step, cache, narrow, unit.sequence, span, unit.position + unit.tokens, tiles);
    const int64_t n_rows = unit.tokens * plan.shared, first_row = plan.queries.row(unit.kv_head, unit.token);
    for (int64_t row = 0; row < n_rows; row += kRows) {
        const int count = n_rows - row < kRows ? static_cast<int>(n_rows - row) : kRows;
        const Seen seen = seen_by(op, plan, unit, row, count, span * TM_SPAN);
        if (seen.first >= seen.end) {
            continue;
        }
        const int64_t at = first_row + row;
        const QueryRows rows = {plan.queries.codes + at * plan.dim * cache.number_bytes, plan.queries.less + at,
                                plan.queries.scales + at};
        switch (count) {
            case 1: attend_rows<1>(narrow, tiles, rows, seen, work); break;
            case 2: attend_rows<2>(narrow, tiles, rows, seen, work); break;
            case 3: attend_rows<3>(narrow, tiles, rows, seen, work); break;
            case 4: attend_rows<4>(narrow, tiles, rows, seen, work); break;
            case 5: attend_rows<5>(narrow, tiles, rows, seen, work); break;
            default: attend_rows<6>(narrow, tiles, rows, seen, work); break;
        }
        for (int r = 0; r < count; ++r) {
            if (seen.from[r] < seen.to[r]) {
                take(row + r, work.from(r));
            }
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
        attend_unit(context, op, plan, unit, span, work, [&](int64_t row, const RowState &found) {
            merge(state, row, found);
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
        plan.partials.total(at) = 0.0f;
    }
    if (span * TM_SPAN > unit.position || span < first_span(op, unit.position)) {
        return;
    }
    attend_unit(context, op, plan, unit, span, work, [&](int64_t row, const RowState &found) {
        const int64_t at = partial_at(op, plan, unit.token, unit.kv_head * plan.shared + row, span);
        memcpy(plan.partials.values(at), found.values(0), static_cast<size_t>(plan.dim + 2) * sizeof(float));
    });
}

inline void merge_spans(const Context &context, const TmOp &op, const AttentionPlan &plan, int64_t token,
                        const RowState &state) {
    for (int64_t head = 0; head < op.heads; ++head) {
        clear(state, 1);
        for (int64_t span = 0; span < plan.spans; ++span) {
            const int64_t at = partial_at(op, plan, token, head, span);
            merge(state, 0, plan.partials.from(at));
        }
        finish_row(context, op, state, 0, token, head);
    }
}

// Heads normed and rotated, keys and values written to the cache, then attention; see TmOp.
inline void attention(const Context &context, const TmOp &op, const Member &member) {
    const TmStep &step = context.step;
    const AttentionPlan plan = plan_attention(context, op);
    const Range tokens = member.share(step.tokens);
    const Range heads = member.share(step.tokens * op.kv_heads);
    for (int64_t i = heads.begin; i < heads.end; ++i) {
        prepare_head(context, op, plan.queries, i / op.kv_heads, i % op.kv_heads);
    }
    if (member.thread == 0) {
        count_units(step, op, plan);
    }
    member.meet();
    const RowState state = {reinterpret_cast<float *>(plan.states + member.thread * plan.state_bytes), plan.dim};
    const int64_t unit_rows = plan.shared > kUnitRows ? plan.shared : kUnitRows;
    const RowState work = {state.data + unit_rows * (plan.dim + 16), plan.dim};
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
