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

#include "context.h"

namespace mill {

// Tokens whose keys lie side by side.
constexpr int64_t kTile = 16;

// One layer's cache, as one KV head of it is read and written.
struct HeadCache {
    uint8_t *data;        // of block 0
    int64_t block_bytes;
    int64_t block_size;
    int64_t dim;          // padded
    int64_t number_bytes;

    // Keys of 16 tokens, the first of which has this offset in its block.
    uint8_t *keys(int64_t block, int64_t offset) const {
        return data + block * block_bytes + offset * dim * number_bytes;
    }
    // Values of 16 tokens, likewise.
    uint8_t *values(int64_t block, int64_t offset) const { return keys(block, block_size + offset); }
    float *key_scales(int64_t block) const { return reinterpret_cast<float *>(keys(block, 2 * block_size)); }
    float *value_scales(int64_t block) const { return key_scales(block) + block_size; }
};

inline HeadCache head_cache(const TmProgram &program, const TmOp &op, int64_t head) {
    const TmKvLayer &layer = program.layers[op.layer];
    const int64_t bytes = program.kv_format == TM_KV_INT8 ? 1 : 2;
    return {layer.data + head * layer.head_bytes, layer.block_bytes, program.block_size, round_up(op.head_dim, 16), bytes};
}

inline void write_int8(const HeadCache &cache, int64_t slot, const int8_t *key, float key_scale, const int8_t *value,
                       float value_scale) {
    const int64_t block = slot / cache.block_size, offset = slot % cache.block_size, lane = offset % kTile;
    uint8_t *keys = cache.keys(block, offset - lane) + lane * 4;
    for (int64_t i = 0; i < cache.dim; i += 4) {
        const uint32_t word = static_cast<uint32_t>(load_word(key + i)) ^ 0x80808080u;
        memcpy(keys + i * kTile, &word, sizeof word);
    }
    int8_t *values = reinterpret_cast<int8_t *>(cache.values(block, offset - offset % 4)) + offset % 4;
    for (int64_t i = 0; i < cache.dim; ++i) {
        values[i * 4] = value[i];
    }
    cache.key_scales(block)[offset] = key_scale;
    cache.value_scales(block)[offset] = value_scale;
}

inline void write_bf16(const HeadCache &cache, int64_t slot, const uint16_t *key, const uint16_t *value) {
    const int64_t block = slot / cache.block_size, offset = slot % cache.block_size, lane = offset % kTile;
    uint16_t *keys = reinterpret_cast<uint16_t *>(cache.keys(block, offset - lane)) + lane * 2;
    for (int64_t i = 0; i < cache.dim; i += 2) {
        memcpy(keys + i * kTile, key + i, 4);
    }
    uint16_t *values = reinterpret_cast<uint16_t *>(cache.values(block, offset - offset % 2)) + offset % 2;
    for (int64_t i = 0; i < cache.dim; ++i) {
        values[i * 2] = value[i];
    }
}

}  // namespace mill
