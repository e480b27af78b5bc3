// What query rows know of their contexts so far.
#pragma once

#include "exp2.h"

namespace mill {

// Rows one after another, each [dim + 16]: values weighted by 2^(score - largest), then the largest score, then the
// sum of the weights, which is 0 where a row saw nothing.
struct RowState {
    float *data;
    int64_t dim;

    float *values(int64_t row) const { return data + row * (dim + 16); }
    float &largest(int64_t row) const { return values(row)[dim]; }
    float &total(int64_t row) const { return values(row)[dim + 1]; }
    RowState from(int64_t row) const { return {values(row), dim}; }
};

inline void clear(const RowState &state, int64_t rows) {
    for (int64_t row = 0; row < rows; ++row) {
        state.total(row) = 0.0f;
    }
}

// Takes what one more span gave row 0 of `from` into a row. Spans come in order, so that sums do.
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

}  // namespace mill
