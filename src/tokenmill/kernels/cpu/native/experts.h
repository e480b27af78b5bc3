// A mixture of experts in place of one gated product.
#pragma once

#include "context.h"
#include "team.h"

namespace mill {

inline void experts(const Context &, const TmOp &, const Member &) {}

inline Cost experts_cost(const Context &, const TmOp &) { return {0, 0}; }

}  // namespace tm
