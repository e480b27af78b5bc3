// How much working memory attention and experts need of their own.
#pragma once

#include "abi.h"

namespace mill {

inline int64_t attention_bytes(const TmProgram &) { return 0; }

inline int64_t experts_bytes(const TmProgram &) { return 0; }

}  // namespace tm
