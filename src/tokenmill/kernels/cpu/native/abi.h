// What crosses from Python to C: plain structures, mirrored field by field in kernels/cpu/abi.py.
//
// Every pointer stays valid and every count is checked by the caller; nothing here is owned by the library.
#pragma once

#include <stdint.h>

// Columns of a matrix, and numbers of a row, that share a quantization scale.
#define TM_GROUP 32
// Rows of a matrix (outputs of a product) that are stored and computed together.
#define TM_PANEL 32
// Tokens of a context whose attention is added up before it is merged with what came before.
#define TM_SPAN 256

// How a packed matrix stores its numbers. Codes are unsigned.
enum TmFormat {
    TM_INT8 = 0,         // (code - 128) * scale
    TM_INT4 = 1,         // (code - 8) * scale
    TM_INT4_OFFSET = 2,  // code * scale + offset
    TM_INT8_OFFSET = 3,  // code * scale + offset
    TM_BF16 = 4,
    TM_F32 = 5,
};

// What the rows of a product are before they are multiplied.
enum TmRows { TM_ROWS_INT8 = 0, TM_ROWS_BF16 = 1 };

// What becomes of a product.
enum TmEpilogue {
    TM_STORE = 0,   // branch = product
    TM_ADD = 1,     // stream += product
    TM_QKV = 2,     // wide = product: what attention reads
    TM_GATED = 3,   // rows of the next product = activation(gate) * up; see TmMatrix
};

enum TmActivation { TM_SILU = 0, TM_GELU_TANH = 1 };

enum TmKv { TM_KV_INT8 = 0, TM_KV_BF16 = 1 };

enum TmOpKind {
    TM_EMBED = 0,
    TM_NORM = 1,
    TM_PRODUCT = 2,
    TM_ATTENTION = 3,
    TM_EXPERTS = 4,
    TM_LOGITS = 5,
};

extern "C" {

// A matrix [n, k] in panels of TM_PANEL rows, padded to whole panels and whole groups of columns with what
// multiplies to zero.
//
// A panel holds its codes, then its scales, then its offsets, each for all groups in order:
//   INT8:  codes [group][8][32 rows][4 columns], one byte each
//   INT4:  codes [group][4][32 rows][4 columns]; low nibbles are columns 0-15 of the group, high ones 16-31
//   BF16:  [group][16][32 rows][2 columns]
//   F32:   [group][32][32 rows]
//   scales, offsets: [group / scale_every][32 rows], float16 or float32
//
// The rows of a gated product alternate: a panel holds 16 rows of gate, then the same 16 of up. `n` counts both,
// each padded to a multiple of 16.
typedef struct {
    const uint8_t *data;   // aligned to 64 bytes, and so is each part of a panel
    const float *bias;     // [n], or null
    int64_t panel_bytes;
    int64_t scales_at;     // bytes from the beginning of a panel
    int64_t offsets_at;
    int32_t format;        // TmFormat
    int32_t n;
    int32_t k;
    int32_t scale_every;   // groups that share a scale
    int32_t scale_bytes;   // 2 or 4
    int32_t unused;
} TmMatrix;

// One expert of a mixture.
typedef struct {
    TmMatrix gate_up;
    TmMatrix down;
} TmExpert;

// One operator of a program; which fields count depends on its kind. What they read and write, in arena.h's words:
//
//   EMBED      stream
//   NORM       stream, branch -> stream, rows[0], and wide where it is kept
//   PRODUCT    QKV and GATED read rows[0], STORE and ADD rows[1]; GATED writes wide and rows[1]
//   ATTENTION  wide -> KV cache, rows[1]
//   EXPERTS    wide (the kept norm), rows[0] -> branch
//   LOGITS     wide (the kept norm), rows[0] -> the step's logits, best and hidden; rows[1] is overwritten
typedef struct {
    int32_t kind;          // TmOpKind
    int32_t rows_as;       // TmRows: what a norm, a gated product, attention or experts leave for the next product
    int32_t epilogue;      // TmEpilogue, of a product
    int32_t activation;    // TmActivation, of a gated product and of experts
    TmMatrix matrix;       // of an embedding (read by rows), a product, logits, the router of experts (F32)
    const float *weight;   // norm: [hidden]. attention: norm of queries [head_dim], or null
    const float *branch;   // norm: first stream += rms_norm(branch) * this, or null. attention: norm of keys
    float eps;
    float scale;           // of embeddings, of attention scores
    int32_t add_branch;    // norm: first stream += branch, as it is
    int32_t keep;          // norm: leave the result in `wide` in float as well, [rows, hidden]
    int32_t layer;         // attention: layer of the KV cache
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t window;        // tokens a position looks back on, itself included; 0 is all
    int32_t rotary;        // which table
    const TmExpert *experts;
    int32_t n_experts;
    int32_t active;
    int32_t renormalize;
    int32_t first;         // QKV: column of `wide` where the product goes
} TmOp;

// Angles of every position, each [positions, half].
typedef struct {
    const float *cos;
    const float *sin;
    int64_t half;
} TmRotary;

// KV cache of one layer: blocks, each [kv_heads] of `head_bytes`; see kv.h for what a head's part holds.
typedef struct {
    uint8_t *data;
    int64_t block_bytes;
    int64_t head_bytes;
} TmKvLayer;

typedef struct {
    const TmOp *ops;
    const TmRotary *rotary;
    const TmKvLayer *layers;
    uint8_t *arena;        // working memory, tm_arena_bytes long, aligned to 64 bytes
    int64_t n_ops;
    int64_t hidden;
    int64_t vocabulary;
    int64_t wide;          // widest row of floats: queries, keys and values, or a gated product
    int64_t deep;          // longest row that is multiplied: the largest k
    int64_t max_rows;      // tokens of a step
    int64_t max_logit_rows;
    int64_t max_context;   // tokens of the longest sequence
    int64_t block_size;    // tokens of a KV block, a multiple of 16
    int32_t kv_format;     // TmKv
    int32_t threads;
    int32_t row_bytes;     // of a number in the rows of products: 2 where any matrix is BF16, else 1
    int32_t unused;
} TmProgram;

// One step; see kernels/step.py.
typedef struct {
    const int64_t *token_ids;
    const int64_t *positions;
    const int64_t *slots;
    const int64_t *query_starts;
    const int64_t *context_lens;
    const int64_t *block_tables;  // [sequences, table_width]
    const int64_t *logit_rows;
    const int64_t *hidden_rows;
    int64_t table_width;
    int64_t tokens;
    int64_t sequences;
    int64_t n_logit_rows;
    int64_t n_hidden_rows;
    float *logits;         // [n_logit_rows, vocabulary]
    float *hidden;         // [n_hidden_rows, hidden]
    int64_t *best;         // [n_logit_rows]: the likeliest token, the first of equals; -1 where a logit is no finite number
} TmStep;

// What steps cost so far, by operator of the program; each [n_ops] and added to.
typedef struct {
    int64_t *nanoseconds;
    int64_t *bytes;            // read from weights and KV cache, written to KV cache
    int64_t *multiply_adds;
} TmCounters;

// Runs a step on `threads` threads of the OpenMP pool of the calling thread.
void tm_run(const TmProgram *program, const TmStep *step, const TmCounters *counters);

// Working memory a program needs, in bytes.
int64_t tm_arena_bytes(const TmProgram *program);

// Sizes of the structures above in the order TmMatrix, TmExpert, TmOp, TmRotary, TmKvLayer, TmProgram, TmStep, TmCounters.
void tm_sizes(int64_t sizes[8]);
}
