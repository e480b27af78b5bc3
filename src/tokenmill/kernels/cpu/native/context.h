// What every operator is given: the program, this step and the buffers between operators.
#pragma once

#include "abi.h"
#include "arena.h"

namespace mill {

struct Context {
    const TmProgram &program;
    const TmStep &step;
    const Arena &arena;
};

// What an operator costs: bytes moved between memory and the processor, and multiply-adds.
struct Cost {
    int64_t bytes;
    int64_t multiply_adds;
};

// A product of `rows` rows reads its matrix once.
inline Cost product_cost(const TmMatrix &matrix, int64_t rows) {
    const int64_t panels = round_up(matrix.n, TM_PANEL) / TM_PANEL;
    return rows == 0 ? Cost{0, 0} : Cost{panels * matrix.panel_bytes, rows * matrix.n * matrix.k};
}

}  // namespace tm
