// Attention over the paged KV cache: every query row over its context, span after span.
#pragma once

#include "attention_plan.h"
#include "span.h"
#include "team.h"

namespace mill {

// Where the tiles of a span lie; `tokens` of the context are there. Tiles past them are the last one again, and are
// never seen.
struct SpanTiles {
    Tile tiles[kSpanTiles];
    int count;  // that are there
};

inline void find_tiles(const Context &context, const TmOp &op, const Item &item, int64_t span, SpanTiles *found) {
    const TmStep &step = context.step;
    const bool narrow = context.program.kv_format == TM_KV_INT8;
    const HeadCache cache = head_cache(context.program, op, item.kv_head);
    const int64_t *table = step.block_tables + item.sequence * step.table_width;
    const int64_t begin = span * TM_SPAN, tokens = item.position + item.tokens;
    found->count = 0;
    for (int64_t tile = 0; tile < kSpanTiles; ++tile) {
        int64_t position = begin + tile * kTile;
        found->count += position < tokens ? 1 : 0;
        position = position < tokens ? position : (tokens - 1) / kTile * kTile;
        const int64_t block = table[position / cache.block_size], offset = position % cache.block_size;
        found->tiles[tile] = {cache.keys(block, offset), cache.values(block, offset),
                              narrow ? cache.key_scales(block) + offset : nullptr,
                              narrow ? cache.value_scales(block) + offset : nullptr};
    }
}

template <int R>
inline void attend_rows(bool narrow, const Tile *tiles, const QueryRows &rows, const Seen &seen,
                        const Ahead &ahead, const RowState &out) {
    Partial partials[R];
    for (int r = 0; r < R; ++r) {
        partials[r].values = out.values(r);
    }
    if (narrow) {
        attend_span<R, true>(tiles, rows, seen, ahead, out.dim, partials);
    } else {
        attend_span<R, false>(tiles, rows, seen, ahead, out.dim, partials);
    }
    for (int r = 0; r < R; ++r) {
        out.largest(r) = partials[r].largest;
        out.total(r) = partials[r].total;
    }
}

// What `count` rows of an item from `row` on see of a span that begins at this position.
inline Seen seen_by(const TmOp &op, const AttentionPlan &plan, const Item &item, int64_t row, int count,
                    int64_t begin) {
    Seen seen;
    seen.first = TM_SPAN;
    seen.end = 0;
    for (int r = 0; r < count; ++r) {
        const int64_t position = item.position + (row + r) / plan.shared;
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

// Rows of an item over one span; `take(row, its partial)` for each that sees something of it.
template <class Take>
void attend_item(const Context &context, const TmOp &op, const AttentionPlan &plan, const Item &item, int64_t span,
                 const Tile *tiles, const Ahead &ahead, const Take &take) {
    const bool narrow = context.program.kv_format == TM_KV_INT8;
    const int64_t n_rows = item.tokens * plan.shared, first_row = plan.queries.row(item.kv_head, item.token);
    for (int64_t row = 0; row < n_rows; row += kRows) {
        const int count = n_rows - row < kRows ? static_cast<int>(n_rows - row) : kRows;
        const Seen seen = seen_by(op, plan, item, row, count, span * TM_SPAN);
        if (seen.first >= seen.end) {
            continue;
        }
        const int64_t at = first_row + row;
        const QueryRows rows = {plan.queries.codes + at * plan.dim * (narrow ? 1 : 2), plan.queries.less + at,
                                plan.queries.scales + at};
        switch (count) {
            case 1: attend_rows<1>(narrow, tiles, rows, seen, row == 0 ? ahead : Ahead{nullptr, 0}, plan.work); break;
            case 2: attend_rows<2>(narrow, tiles, rows, seen, row == 0 ? ahead : Ahead{nullptr, 0}, plan.work); break;
            case 3: attend_rows<3>(narrow, tiles, rows, seen, row == 0 ? ahead : Ahead{nullptr, 0}, plan.work); break;
            case 4: attend_rows<4>(narrow, tiles, rows, seen, row == 0 ? ahead : Ahead{nullptr, 0}, plan.work); break;
            case 5: attend_rows<5>(narrow, tiles, rows, seen, row == 0 ? ahead : Ahead{nullptr, 0}, plan.work); break;
            default: attend_rows<6>(narrow, tiles, rows, seen, row == 0 ? ahead : Ahead{nullptr, 0}, plan.work); break;
        }
        for (int r = 0; r < count; ++r) {
            if (seen.from[r] < seen.to[r]) {
                take(row + r, plan.work.from(r));
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

// All spans of an item. `next` is the item that probably follows, or null: what it reads first is fetched meanwhile.
inline void run_item(const Context &context, const TmOp &op, const AttentionPlan &plan, const Item &item,
                     const Item *next) {
    const int64_t rows = item.tokens * plan.shared, last = item.spans.first + item.spans.count - 1;
    RowState state = plan.state;
    if (item.partial) {
        const Spans all = spans_of(context.step, op, item.sequence);
        state = partials_of(context.step, op, plan, item.sequence, item.token, item.kv_head)
                    .from((item.spans.first - all.first) * plan.shared);
    }
    clear(state, rows);
    SpanTiles here, after;
    find_tiles(context, op, item, item.spans.first, &here);
    for (int64_t span = item.spans.first; span <= last; ++span) {
        after.count = 0;
        if (span < last) {
            find_tiles(context, op, item, span + 1, &after);
        } else if (next != nullptr) {
            find_tiles(context, op, *next, next->spans.first, &after);
        }
        attend_item(context, op, plan, item, span, here.tiles, {after.tiles, after.count},
                    [&](int64_t row, const RowState &found) { merge(state, row, found); });
        here = after;
    }
    for (int64_t row = 0; row < rows && !item.partial; ++row) {
        finish_row(context, op, state, row, item.token + row / plan.shared,
                   item.kv_head * plan.shared + row % plan.shared);
    }
}

inline void merge_partials(const Context &context, const TmOp &op, const AttentionPlan &plan, int64_t sequence,
                           int64_t token) {
    const int64_t spans = spans_of(context.step, op, sequence).count;
    for (int64_t head = 0; head < op.heads; ++head) {
        const RowState found = partials_of(context.step, op, plan, sequence, token, head / plan.shared);
        clear(plan.state, 1);
        for (int64_t span = 0; span < spans; ++span) {
            merge(plan.state, 0, found.from(span * plan.shared + head % plan.shared));
        }
        finish_row(context, op, plan.state, 0, token, head);
    }
}

// Heads normed and rotated, keys and values written to the cache, then attention; see TmOp.
inline void attention(const Context &context, const TmOp &op, const Member &member) {
    const TmStep &step = context.step;
    if (step.tokens == 0) {
        return;
    }
    const AttentionPlan plan = plan_attention(context, op, member.thread);
    const Range heads = member.share(step.tokens * op.kv_heads);
    for (int64_t i = heads.begin; i < heads.end; ++i) {
        prepare_head(context, op, plan.queries, i / op.kv_heads, i % op.kv_heads);
    }
    if (member.thread == 0) {
        count_items(step, op, context.program.threads, plan);
    }
    member.meet();
    const int64_t items = plan.first_item[step.sequences];
    const int64_t fair = items / (kItemsPerThread * context.program.threads), together = fair < 1 ? 1 : fair < 4 ? fair : 4;
    member.take_turns(items, together, [&](int64_t number) {
        const Item item = item_at(step, op, plan, number);
        const bool follows = number + 1 < items;
        const Item next = follows ? item_at(step, op, plan, number + 1) : item;
        run_item(context, op, plan, item, follows ? &next : nullptr);
    });
    member.meet();
    const int64_t width = op.heads * op.head_dim;
    const Rows out = shaped(context.arena.rows[1], width);
    const Range tokens = member.share(step.tokens);
    int64_t sequence = 0;
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
        while (step.query_starts[sequence + 1] <= token) {
            ++sequence;
        }
        if (is_cut(plan, sequence)) {
            merge_partials(context, op, plan, sequence, token);
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
