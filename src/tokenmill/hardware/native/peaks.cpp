// What this machine can do at most: bytes read from memory, and int8 multiply-adds, a second on all threads.
//
// Others may use the machine, so work is timed in pieces of about a millisecond and the best piece counts.
#include <omp.h>
#include <stdint.h>
#include <sys/mman.h>

#include "dot.h"

namespace {

#if defined(TM_ISA_AVX512)
constexpr int kVectorBytes = 64;
#elif defined(TM_ISA_AVX2)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef int64_t Vector __attribute__((vector_size(kVectorBytes)));

constexpr int kVectors = 64 / kVectorBytes;

// What memory and caches exchange.
struct Line {
    Vector vectors[kVectors];
};

constexpr int kStreams = 4;  // one stream a thread does not keep enough lines underway
constexpr int kPieces = 8;   // one is read at a time: it comes round again after all others

// Reads `lines` of each of `kStreams` neighbouring streams.
int64_t read(const Line *first, int64_t lines) {
    Vector seen[kStreams] = {};
    for (int64_t i = 0; i < lines; ++i) {
        for (int stream = 0; stream < kStreams; ++stream) {
            const Line *line = first + stream * lines + i;
            __builtin_prefetch(line + 32, 0, 0);
            for (const Vector &vector : line->vectors) {
                seen[stream] ^= vector;
            }
        }
    }
    const Vector folded = seen[0] ^ seen[1] ^ seen[2] ^ seen[3];
    return folded[0] ^ folded[1];
}

// Results go here, or the compiler would leave the work out.
volatile int64_t sink;

// The best rate of `work(piece)`, which does `amount` of something, in about `seconds`.
template <typename Work>
double best_per_second(double amount, double seconds, Work work) {
    const double end = omp_get_wtime() + seconds;
    double best = 0;
    double began = omp_get_wtime();
    for (int piece = 0; piece < kPieces || began < end; ++piece) {
        work(piece);
        const double now = omp_get_wtime();
        best = amount / (now - began) > best ? amount / (now - began) : best;
        began = now;
    }
    return best;
}

}  // namespace

#define TM_EXPORT __attribute__((visibility("default")))

extern "C" {

// 0 where the memory cannot be had. `bytes` must be more than the caches hold.
TM_EXPORT double tm_read_bytes_per_second(int64_t bytes, int threads, double seconds) {
    const int64_t lines = bytes / kPieces / threads / kStreams / static_cast<int64_t>(sizeof(Line));
    const int64_t share = lines * kStreams;
    const int64_t count = share * threads * kPieces;
    const size_t whole = static_cast<size_t>(count) * sizeof(Line);
    void *memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return 0;
    }
    madvise(memory, whole, MADV_HUGEPAGE);
    // Line [thread][piece][stream][i]. Each thread writes first what it reads: the pages lie near its core.
    Line *data = static_cast<Line *>(memory);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; ++i) {
        data[i].vectors[0] = Vector{i};
    }
    const double best = best_per_second(static_cast<double>(whole) / kPieces, seconds, [&](int piece) {
        int64_t seen = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(^ : seen)
        for (int thread = 0; thread < threads; ++thread) {
            seen ^= read(data + (static_cast<int64_t>(thread) * kPieces + piece % kPieces) * share, lines);
        }
        sink = seen;
    });
    munmap(memory, whole);
    return best;
}

// Threads share nothing here, so each one's best piece counts, whenever it had its core to itself.
TM_EXPORT double tm_int8_multiply_adds_per_second(int threads, double seconds) {
    const double amount = static_cast<double>(mill::kDotMultiplyAdds) * mill::kDotTurns;
    double together = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : together)
    for (int thread = 0; thread < threads; ++thread) {
        together += best_per_second(amount, seconds, [&](int piece) { sink = mill::dot_turns(mill::kDotTurns, piece); });
    }
    return together;
}
}
