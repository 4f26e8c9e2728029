/* Calls of any problem with memory, tables and data of their own. */
#ifndef ATTUNE_TESTS_CALLS_H
#define ATTUNE_TESTS_CALLS_H

#include "schedule/schedule_fields.h"
#include "support/sample.h"

#include <attune.h>
#include <stdbool.h>

enum { SAMPLE_TENSORS = 48 /* more than any problem has */ };

typedef enum sample_name {
    PLAIN,
    DYNAMIC,
    MASKED,
    SHORT_MASK,
    LONG_MASK,
    PADDED,
    PLACED,
    RAGGED,
    PAGED,
    APPENDED,
    SERVED,
    RAGGED_MASK,
    ROTATED,
    ROTARY,
    ROTATED_PADDED,
    ROTATED_CACHE,
    ROTATED_IDS,
    WITH_WEIGHTS,
    PAGED_MASK,
    GLOBAL,
    MIXED,
    WEIGHTS,
    MERGE,
    HALF,
    BRAIN,
    WIDE,
    LATENT,
    BLOCK,
    BLOCK_CROSS,
    BLOCK_RAGGED,
    BLOCK_CACHED,
    BLOCK_SERVED,
    BLOCK_LOW_RANK,
    BLOCK_HEADS,
    CODES,
    CODES_SERVED,
    CODES_WEIGHTS,
    PANELS,
    PANELS_SERVED,
    BLOCK_CODES,
    NUM_SAMPLES
} sample_name;

/* One of every sort of problem. */
extern const sample samples[NUM_SAMPLES];

/* The one context of a test program, without a disk cache, and its set-up and tear-down for cmocka's groups. */
extern attune_context *sample_context;
int sample_context_open(void **state);
int sample_context_close(void **state);

/* Where tensors lie in memory. */
typedef enum placement {
    ON_THE_HEAP,
    BEFORE_A_GUARD, /* the last byte is the last of a page, and the next page faults; inputs cannot be written */
    AFTER_A_GUARD   /* the first byte is the first of a page, and the page before faults */
} placement;

typedef struct tensor_memory {
    void *data, *map; /* map: NULL on the heap */
    size_t bytes, map_bytes;
} tensor_memory;

typedef struct sample_call {
    attune_problem problem;
    attune_arguments arguments;
    attune_tensor tensors[SAMPLE_TENSORS];
    tensor_memory memory[SAMPLE_TENSORS];
    size_t count;
} sample_call;

/* Inputs hold numbers that depend on the tensor alone, tables what the sample says, outputs rubbish; packed weights are
 * packed. */
void sample_call_open(sample_call *call, const sample *from, placement where);
void sample_call_close(sample_call *call);

/* Compiles and runs it; schedule NULL: the chosen one. The test fails if that fails. */
void sample_call_run(attune_context *context, const sample_call *call, const mha_schedule *schedule);

/* The memory of a tensor by its name; the test fails if there is none. */
void *sample_call_data(const sample_call *call, const char *name);

/* NULL if there is no such tensor; bytes, which may be NULL, is 0 then. */
const attune_tensor *sample_call_tensor(const sample_call *call, const char *name);
void *sample_call_find(const sample_call *call, const char *name, size_t *bytes);

/* "q f32 2x4x13x12 624:156:12:1 in", and so on, a line for each tensor. */
void sample_tensors_text(const attune_tensor *tensors, size_t count, char *text, size_t capacity);

/* The test fails unless these arguments of the call are ATTUNE_INVALID_ARGUMENT with a message that has `part` in it,
 * and unless no output was touched. */
void sample_call_assert_refused(attune_context *context, const sample_call *call, const attune_arguments *arguments,
                                const char *part);

/* Whether all outputs of both, calls of one sample, hold the same bits. */
bool sample_calls_agree(const sample_call *a, const sample_call *b);

#endif
