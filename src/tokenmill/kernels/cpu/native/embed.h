// The first operator: rows of the embedding, read out of its packed matrix.
#pragma once

#include "context.h"
#include "team.h"

namespace mill {

inline float float_at(const uint8_t *at) {
    float a;
    memcpy(&a, at, sizeof a);
    return a;
}

// A scale or an offset of a panel's part, [groups that share it][TM_PANEL].
inline float scale_at(const uint8_t *part, int32_t bytes, int64_t group, int64_t lane) {
    if (bytes == 4) {
        return float_at(part + (group * TM_PANEL + lane) * 4);
    }
    const int64_t first = group * TM_PANEL + lane / 16 * 16;
    float scales[16];
    store(scales, load_half(reinterpret_cast<const uint16_t *>(part) + first));
    return scales[lane % 16];
}

// One group of a row of a panel as codes that are not yet scaled, or as the numbers they are.
inline void read_group(int32_t format, const uint8_t *panel, int64_t group, int64_t lane, float *out) {
    switch (format) {
        case TM_INT8:
        case TM_INT8_OFFSET:
            for (int64_t i = 0; i < TM_GROUP; ++i) {
                out[i] = panel[group * 1024 + i / 4 * 128 + lane * 4 + i % 4];
            }
            break;
        case TM_INT4:
        case TM_INT4_OFFSET:
            for (int64_t i = 0; i < 16; ++i) {
                const uint8_t pair = panel[group * 512 + i / 4 * 128 + lane * 4 + i % 4];
                out[i] = pair & 15;
                out[16 + i] = pair >> 4;
            }
            break;
        case TM_BF16:
            for (int64_t i = 0; i < TM_GROUP; ++i) {
                uint16_t half;
                memcpy(&half, panel + group * 2048 + i / 2 * 128 + lane * 4 + i % 2 * 2, sizeof half);
                const uint32_t bits = static_cast<uint32_t>(half) << 16;
                memcpy(out + i, &bits, sizeof bits);
            }
            break;
        default:
            for (int64_t i = 0; i < TM_GROUP; ++i) {
                out[i] = float_at(panel + group * 4096 + i * 128 + lane * 4);
            }
            break;
    }
}

// The numbers of a group of row `lane` of a panel.
inline void unpack_group(const TmMatrix &matrix, const uint8_t *panel, int64_t group, int64_t lane, float *out) {
    read_group(matrix.format, panel, group, lane, out);
    if (matrix.format == TM_BF16 || matrix.format == TM_F32) {
        return;
    }
    const int64_t shared = group / matrix.scale_every;
    const float scale = scale_at(panel + matrix.scales_at, matrix.scale_bytes, shared, lane);
    const bool offsets = matrix.format == TM_INT4_OFFSET || matrix.format == TM_INT8_OFFSET;
    const float offset = offsets ? scale_at(panel + matrix.offsets_at, matrix.scale_bytes, shared, lane) : 0.0f;
    const float zero = matrix.format == TM_INT8 ? 128.0f : matrix.format == TM_INT4 ? 8.0f : 0.0f;
    for (int i = 0; i < TM_GROUP; ++i) {
        out[i] = (out[i] - zero) * scale + offset;
    }
}

inline void embed(const Context &context, const TmOp &op, const Member &member) {
    const TmMatrix &matrix = op.matrix;
    const int64_t hidden = context.program.hidden;
    const Range mine = member.share(context.step.tokens);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        const int64_t token = context.step.token_ids[row];
        const uint8_t *panel = matrix.data + token / TM_PANEL * matrix.panel_bytes;
        float *stream = context.arena.stream + row * hidden;
        for (int64_t column = 0; column < hidden; column += TM_GROUP) {
            float numbers[TM_GROUP];
            unpack_group(matrix, panel, column / TM_GROUP, token % TM_PANEL, numbers);
            for (int64_t i = 0; i < TM_GROUP && column + i < hidden; ++i) {
                stream[column + i] = numbers[i] * op.scale;
            }
        }
    }
}

}  // namespace tm
