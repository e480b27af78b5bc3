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

struct Range {
    int64_t begin;
    int64_t end;
};

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

    // Neighbours among those nobody has taken: a thread's even share of them, `most` at most. So turns become short
    // towards the end, and nobody waits long for the last one.
    Range take_run(int64_t items, int64_t most, int threads) {
        int64_t begin = next_.load(std::memory_order_relaxed);
        while (begin < items) {
            const int64_t share = (items - begin) / threads, count = share < 1 ? 1 : share < most ? share : most;
            if (next_.compare_exchange_weak(begin, begin + count, std::memory_order_relaxed)) {
                return {begin, begin + count};
            }
        }
        return {items, items};
    }

private:
    static constexpr int kSpins = 4000;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
    alignas(64) std::atomic<int64_t> next_{0};
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

    // Calls `work(item, next)` for this thread's part of `items`, neighbours together, at most `most` a turn. `next` is
    // the item this thread does then, or `items`. At most once between two meetings.
    template <class Work>
    void take_runs(int64_t items, int64_t most, const Work &work) const {
        Range run = barrier->take_run(items, most, threads);
        while (run.begin < items) {
            const int64_t item = run.begin++;
            if (run.begin == run.end) {
                run = barrier->take_run(items, most, threads);
            }
            work(item, run.begin);
        }
    }

    // This thread's share of `items`, neighbours together.
    Range share(int64_t items) const {
        return {items * thread / threads, items * (thread + 1) / threads};
    }
};

}  // namespace mill
