// How a step's attention is cut into items that threads take in turn.
//
// An item is the rows of a few tokens of a sequence that share a KV head, over all they see. A context that would keep
// one thread busy while others have nothing left is cut further, span by span; the partial results are merged when all
// items are done. A row's spans are merged in order either way, so its bits do not depend on how it was cut.
#pragma once

#include "context.h"
#include "heads.h"
#include "row_state.h"

namespace mill {

// Items there should be for each thread, so that all are busy to the end.
constexpr int64_t kItemsPerThread = 8;

struct AttentionPlan {
    int64_t *first_item;     // [sequences + 1], of each sequence
    int64_t *first_partial;  // [sequences + 1], rows of partial results; none where a sequence is not cut by spans
    Queries queries;
    RowState state;          // of an item's rows, this thread's own
    RowState work;           // of kRows rows over one span, likewise
    RowState partials;       // by token, KV head, span and row
    int64_t item_tokens;
    int64_t shared;          // heads that share a KV head
    int64_t dim;             // padded
};

inline AttentionPlan plan_attention(const Context &context, const TmOp &op, int thread) {
    const TmStep &step = context.step;
    const AttentionSizes sizes = attention_sizes(context.program);
    AttentionPlan plan = {};
    uint8_t *at = context.arena.attention;
    const auto take = [&](int64_t bytes) {
        uint8_t *found = at;
        at += bytes;
        return found;
    };
    plan.dim = round_up(op.head_dim, 16);
    plan.shared = op.heads / op.kv_heads;
    plan.first_item = reinterpret_cast<int64_t *>(take(sizes.plan()));
    plan.first_partial = plan.first_item + step.sequences + 1;
    plan.queries.codes = take(sizes.codes());
    plan.queries.scales = reinterpret_cast<float *>(take(sizes.scales()));
    plan.queries.less = reinterpret_cast<int32_t *>(take(sizes.scales()));
    plan.queries.tokens = step.tokens;
    plan.queries.shared = plan.shared;
    plan.queries.dim = plan.dim;
    plan.state = {reinterpret_cast<float *>(take(sizes.state() * sizes.threads) + sizes.state() * thread), plan.dim};
    plan.work = plan.state.from(sizes.item_rows);
    plan.partials = {reinterpret_cast<float *>(take(sizes.partials())), plan.dim};
    const int64_t most = plan.shared > kItemRows ? 1 : kItemRows / plan.shared;
    const int64_t enough = step.tokens * op.kv_heads / (kItemsPerThread * context.program.threads);
    plan.item_tokens = enough < 1 ? 1 : enough < most ? enough : most;
    return plan;
}

// Spans of a context, from the first that the token at this position sees to the last.
struct Spans {
    int64_t first;
    int64_t count;
};

inline Spans spans_from(const TmOp &op, int64_t position, int64_t context_len) {
    const int64_t oldest = op.window > 0 && position >= op.window ? position - op.window + 1 : 0;
    const int64_t first = oldest / TM_SPAN;
    return {first, (context_len - 1) / TM_SPAN - first + 1};
}

inline Spans spans_of(const TmStep &step, const TmOp &op, int64_t sequence) {
    const int64_t queries = step.query_starts[sequence + 1] - step.query_starts[sequence];
    return spans_from(op, step.context_lens[sequence] - queries, step.context_lens[sequence]);
}

// Lays the items of all sequences one after another; for one thread, before the others look.
inline void count_items(const TmStep &step, const TmOp &op, int64_t threads, const AttentionPlan &plan) {
    int64_t all = 0;
    for (int64_t i = 0; i < step.sequences; ++i) {
        all += (step.query_starts[i + 1] - step.query_starts[i]) * spans_of(step, op, i).count * op.kv_heads;
    }
    plan.first_item[0] = plan.first_partial[0] = 0;
    for (int64_t i = 0; i < step.sequences; ++i) {
        const int64_t tokens = step.query_starts[i + 1] - step.query_starts[i], spans = spans_of(step, op, i).count;
        const int64_t rows = tokens * op.heads * spans;
        const bool cut = plan.item_tokens == 1 && spans > 1 && spans * kItemsPerThread * threads > all &&
                         plan.first_partial[i] + rows <= kPartialRows;
        const int64_t blocks = (tokens + plan.item_tokens - 1) / plan.item_tokens;
        plan.first_item[i + 1] = plan.first_item[i] + blocks * op.kv_heads * (cut ? spans : 1);
        plan.first_partial[i + 1] = plan.first_partial[i] + (cut ? rows : 0);
    }
}

inline bool is_cut(const AttentionPlan &plan, int64_t sequence) {
    return plan.first_partial[sequence + 1] > plan.first_partial[sequence];
}

struct Item {
    int64_t sequence;
    int64_t kv_head;
    int64_t token;     // of the step, the first of the item
    int64_t tokens;
    int64_t position;  // of the first token, in its sequence
    Spans spans;
    bool partial;
};

inline Item item_at(const TmStep &step, const TmOp &op, const AttentionPlan &plan, int64_t number) {
    int64_t low = 0, high = step.sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (plan.first_item[middle] <= number ? low : high) = middle;
    }
    Item item;
    item.sequence = low;
    item.partial = is_cut(plan, low);
    const int64_t start = step.query_starts[low], end = step.query_starts[low + 1];
    const int64_t blocks = (end - start + plan.item_tokens - 1) / plan.item_tokens;
    const Spans spans = spans_of(step, op, low);
    const int64_t inside = number - plan.first_item[low], whole = item.partial ? inside / spans.count : inside;
    item.kv_head = whole % op.kv_heads;
    // The last tokens see most: they come first, so that no thread is left with one of them at the end.
    item.token = start + (blocks - 1 - whole / op.kv_heads) * plan.item_tokens;
    item.tokens = end - item.token < plan.item_tokens ? end - item.token : plan.item_tokens;
    item.position = step.context_lens[low] - (end - item.token);
    item.spans = item.partial ? Spans{spans.first + inside % spans.count, 1}
                              : spans_from(op, item.position, item.position + item.tokens);
    return item;
}

// Partial rows of a token's heads that share a KV head, over the first span of its sequence; those of the next follow.
inline RowState partials_of(const TmStep &step, const TmOp &op, const AttentionPlan &plan, int64_t sequence,
                            int64_t token, int64_t kv_head) {
    const int64_t place = (token - step.query_starts[sequence]) * op.kv_heads + kv_head;
    return plan.partials.from(plan.first_partial[sequence] + place * spans_of(step, op, sequence).count * plan.shared);
}

}  // namespace mill
