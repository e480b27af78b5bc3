// The residual stream, RMS-normed and made into the rows of the next product.
#pragma once

#include "context.h"
#include "team.h"

namespace mill {

inline void norm(const Context &, const TmOp &, const Member &) {}

}  // namespace tm
