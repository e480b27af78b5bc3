// Products of rows with a packed matrix: y = x W^T, in which order and on which thread.
#pragma once

#include "parts.h"
#include "team.h"
#include "panel.h"

namespace mill {

// The results of some rows in one panel.
struct Results {
    int64_t row;
    int count;
    int64_t column;  // the first
    int64_t width;   // TM_PANEL, or what there is of the last panel
    float *data;     // [count][TM_PANEL]

    float *at(int r) const { return data + r * TM_PANEL; }
};

// Rows that go through all panels before the next rows do: few enough for them and their results to stay in cache,
// and for every thread to find work.
inline int64_t block_rows(int64_t n_rows, int64_t units, int threads) {
    constexpr int64_t kMost = 192, kLeast = 24;
    int64_t rows = kMost;
    while (rows > kLeast && round_up(n_rows, rows) / rows * units < 4 * threads) {
        rows /= 2;
    }
    return rows < n_rows ? rows : n_rows;
}

// How many panels of a thread's are to follow one another: as many as take some fifty microseconds.
inline int64_t run_of_panels(const TmMatrix &matrix, int64_t rows) {
    constexpr int64_t kRunBytes = 1 << 20, kMultiplyAddsOfByte = 12;
    const int64_t bytes = matrix.panel_bytes + rows * matrix.k * TM_PANEL / kMultiplyAddsOfByte;
    return bytes < kRunBytes ? kRunBytes / bytes : 1;
}

inline void add_bias(const float *bias, const Results &results) {
    for (int64_t half = 0; half < results.width; half += 16) {
        const F32x16 more = load_part(bias + results.column + half, results.width - half);
        for (int r = 0; r < results.count; ++r) {
            store(results.at(r) + half, load(results.at(r) + half) + more);
        }
    }
}

// Rows `row` to `end` by one panel, tile after tile, while panel `next` is fetched unless it is this one.
template <class Take>
void multiply_panel(const TmMatrix &matrix, int64_t panel, int64_t next, const Rows &rows, int64_t row, int64_t end,
                    const Take &take) {
    const int64_t tiles = end - row <= kLastRows ? 1 : 1 + round_up(end - row - kLastRows, kTileRows) / kTileRows;
    const int64_t part = round_up(matrix.panel_bytes / (tiles * rows.groups), 64);
    NextPanel ahead = {matrix.data + next * matrix.panel_bytes, next == panel ? 0 : part};
    while (row < end) {
        alignas(64) float data[kLastRows * TM_PANEL];
        const int count = static_cast<int>(end - row <= kLastRows ? end - row : kTileRows);
        multiply(matrix, panel, rows, row, count, ahead, data);
        ahead.at += ahead.part * rows.groups;
        const int64_t column = panel * TM_PANEL, left = matrix.n - column;
        const Results results = {row, count, column, left < TM_PANEL ? left : TM_PANEL, data};
        if (matrix.bias != nullptr) {
            add_bias(matrix.bias, results);
        }
        take(results);
        row += count;
    }
}

// All rows by all panels, of which this thread does its part. `take(results)` is given every tile, bias added; those
// of `together` neighbouring panels always on one thread, in order.
template <class Take>
void product(const TmMatrix &matrix, const Rows &rows, int64_t n_rows, const Member &member, int64_t together,
             const Take &take) {
    if (n_rows == 0) {
        return;
    }
    const int64_t panels = round_up(matrix.n, TM_PANEL) / TM_PANEL, units = round_up(panels, together) / together;
    const int64_t block = block_rows(n_rows, units, member.threads);
    const int64_t items = round_up(n_rows, block) / block * units;
    member.take_runs(items, run_of_panels(matrix, block), [&](int64_t item, int64_t next) {
        const int64_t row = item / units * block, end = row + block < n_rows ? row + block : n_rows;
        const int64_t first = item % units * together;
        const int64_t last = first + together < panels ? first + together - 1 : panels - 1;
        for (int64_t panel = first; panel < last; ++panel) {
            multiply_panel(matrix, panel, panel + 1, rows, row, end, take);
        }
        multiply_panel(matrix, last, next < items ? next % units * together : last, rows, row, end, take);
    });
}

}  // namespace mill
