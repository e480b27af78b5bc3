// The threads of one step: each knows its number, takes its share, and waits for the others between operators.
#pragma once

#include <sched.h>
#include <stdint.h>

#include <atomic>

namespace mill {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// Threads meet here without the system's help: the wait is short, unless another process holds a core.
class Barrier {
public:
    void meet(int threads) {
        const int round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int turns = 0; round_.load(std::memory_order_acquire) == round; ++turns) {
            if (turns < kSpins) {
                relax();
            } else {
                sched_yield();
            }
        }
    }

    // Items nobody has taken since all met last, `count` of them at a time.
    int64_t take(int64_t count) { return next_.fetch_add(count, std::memory_order_relaxed); }

private:
    static constexpr int kSpins = 4000;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
    alignas(64) std::atomic<int64_t> next_{0};
};

struct Range {
    int64_t begin;
    int64_t end;
};

// One thread of the team.
struct Member {
    int thread;
    int threads;
    Barrier *barrier;

    void meet() const { barrier->meet(threads); }

    // Calls `work(item)` for this thread's part of `items`, whoever is free taking the next `count`: another process
    // that holds a core delays one of them, not half of all. At most once between two meetings.
    template <class Work>
    void take_turns(int64_t items, int64_t count, const Work &work) const {
        for (int64_t begin = barrier->take(count); begin < items; begin = barrier->take(count)) {
            const int64_t end = begin + count < items ? begin + count : items;
            for (int64_t item = begin; item < end; ++item) {
                work(item);
            }
        }
    }

    // This thread's share of `items`, neighbours together.
    Range share(int64_t items) const {
        return {items * thread / threads, items * (thread + 1) / threads};
    }
};

}  // namespace mill
