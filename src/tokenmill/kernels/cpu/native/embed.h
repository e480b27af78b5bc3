// The first operator: rows of the embedding, read out of its packed matrix.
#pragma once

#include "context.h"
#include "team.h"

namespace mill {

inline void embed(const Context &, const TmOp &, const Member &) {}

}  // namespace tm
