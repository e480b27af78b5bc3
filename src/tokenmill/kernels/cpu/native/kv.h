// How a head's part of a KV block is laid out.
//
//   INT8:  keys   [block_size / 16][dim / 4][16 tokens][4], unsigned: (code - 128) * scale of the token
//          values [block_size / 4][dim][4 tokens], signed: code * scale of the token
//          scales of keys, then of values, float32 [block_size] each
//   BF16:  keys   [block_size / 16][dim / 2][16 tokens][2]
//          values [block_size / 2][dim][2 tokens]
//
// `dim` is the head's dimension padded to a multiple of 16 with zeros.
#pragma once

#include "abi.h"
