// Runs a program over the rows of one step: every operator on all threads, then the next.
#include <omp.h>
#include <time.h>

#include "abi.h"
#include "arena.h"
#include "attention.h"
#include "context.h"
#include "embed.h"
#include "experts.h"
#include "linear.h"
#include "logits.h"
#include "norm.h"
#include "team.h"

namespace mill {
namespace {

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// This thread's part of an operator.
void run_operator(const Context &context, const TmOp &op, const Member &member) {
    switch (op.kind) {
        case TM_EMBED: embed(context, op, member); break;
        case TM_NORM: norm(context, op, member); break;
        case TM_PRODUCT: linear(context, op, member); break;
        case TM_ATTENTION: attention(context, op, member); break;
        case TM_EXPERTS: experts(context, op, member); break;
        default: logits(context, op, member); break;
    }
}

Cost cost(const Context &context, const TmOp &op) {
    switch (op.kind) {
        case TM_PRODUCT: return product_cost(op.matrix, context.step.tokens);
        case TM_ATTENTION: return attention_cost(context, op);
        case TM_EXPERTS: return experts_cost(context, op);
        case TM_LOGITS: return product_cost(op.matrix, context.step.n_logit_rows);
        default: return {0, 0};
    }
}

void run(const Context &context, const TmCounters &counters, const Member &member) {
    int64_t before = member.thread == 0 ? now() : 0;
    for (int64_t i = 0; i < context.program.n_ops; ++i) {
        const TmOp &op = context.program.ops[i];
        run_operator(context, op, member);
        member.meet();
        if (member.thread == 0) {
            const int64_t after = now();
            const Cost spent = cost(context, op);
            counters.nanoseconds[i] += after - before;
            counters.bytes[i] += spent.bytes;
            counters.multiply_adds[i] += spent.multiply_adds;
            before = after;
        }
    }
}

}  // namespace
}  // namespace tm

#define TM_EXPORT __attribute__((visibility("default")))

extern "C" {

TM_EXPORT void tm_run(const TmProgram *program, const TmStep *step, const TmCounters *counters) {
    const mill::Arena arena = mill::carve(*program, program->arena);
    const mill::Context context{*program, *step, arena};
    mill::Barrier barrier;
#pragma omp parallel num_threads(program->threads)
    {
        // The runtime may give fewer threads than were asked for.
        const mill::Member member{omp_get_thread_num(), omp_get_num_threads(), &barrier};
        mill::run(context, *counters, member);
    }
}

TM_EXPORT int64_t tm_arena_bytes(const TmProgram *program) { return mill::carve(*program, nullptr).bytes; }

TM_EXPORT void tm_sizes(int64_t sizes[8]) {
    const int64_t found[8] = {sizeof(TmMatrix),  sizeof(TmExpert),  sizeof(TmOp),   sizeof(TmRotary),
                              sizeof(TmKvLayer), sizeof(TmProgram), sizeof(TmStep), sizeof(TmCounters)};
    for (int i = 0; i < 8; ++i) {
        sizes[i] = found[i];
    }
}
}
