/* attune run op=linear|conv|index|blocks|mla: a step of a described operator, on files or on random numbers.
 *
 *     the problem's text  →  description  ┐
 *     --sizes, shapes of files            ┴→  sizes by name  →  arrays  →  create, run, measure, check
 *
 * Each operator has a table (step_operator): its tensors with their dims by name, and what its own file has to do. All
 * else is the same for all of them. Functions that return bool give false after a message. */
#ifndef ATTUNE_TOOLS_RUN_STEP_H
#define ATTUNE_TOOLS_RUN_STEP_H

#include "described/desc_table.h"
#include "run/run_command.h"

typedef enum step_role {
    STEP_INPUT,  /* random without a file, unless another tensor has one */
    STEP_LIST,   /* an input that a step has only if there is a file */
    STEP_STATE,  /* read and written */
    STEP_OUTPUT, /* the first one is what --expect is compared with */
} step_role;

/* Random numbers: about N(0, 1), the same as rows of length 1, from 0 to 1, from -1 to 0, near 1; 0. Or each sequence's
 * pages one after the other, the number of keys, and the rotary embedding of each position. */
typedef enum step_fill {
    FILL_ZERO,
    FILL_NORMAL,
    FILL_UNIT_ROWS,
    FILL_SHARE,
    FILL_DECAY,
    FILL_NEAR_ONE,
    FILL_PAGES,
    FILL_KEYS,
    FILL_COS,
    FILL_SIN
} step_fill;

typedef struct step_call step_call;

typedef struct step_tensor {
    const char *name;
    const char *dims; /* sizes by name; with cu_seqlens, "batch seq" at the beginning stands for "tokens" */
    step_role role;
    step_fill fill;
    const char *dtype;               /* the member of the description that has its type; */
    attune_dtype fixed;              /* NULL: this one */
    bool (*has)(const step_call *c); /* NULL: all steps have it */
} step_tensor;

enum { STEP_MOST_TENSORS = 32, STEP_MOST_SIZES = 16 };

typedef struct step_operator {
    const at_desc_table *table;
    const step_tensor *tensors;
    size_t num_tensors;
    const char *const *sizes;  /* of a step, as in its struct; NULL after the last */
    const char *const *follow; /* sizes that follow from others */
    /* What files tell about the description beside sizes and types. NULL: nothing. */
    bool (*take_files)(step_call *c);
    /* Sets sizes of steps that nobody has set, and those that follow, by a settled description. */
    bool (*derive)(step_call *c);
    attune_status (*create)(step_call *c, attune_context *context);
    attune_status (*run)(step_call *c, bool is_interpreted);
    bool has_pairs; /* products of bf16 are of pairs, where the CPU has the instruction */
    void (*destroy)(step_call *c);
    double (*flops)(const step_call *c);           /* multiplications and additions of a run */
    double (*reference_flops)(const step_call *c); /* those of the f64 reference. NULL: as many */
    /* Adds what differs from an f64 reference, by step_compare. */
    bool (*judge)(step_call *c);
} step_operator;

/* What the file of an operator gives by the same names as all others. */
#define STEP_OPERATOR(its_table)                                                                                       \
    .table = its_table, .tensors = list, .num_tensors = sizeof list / sizeof *list, .sizes = sizes, .derive = derive,  \
    .create = create, .run = run, .destroy = destroy, .flops = flops, .judge = judge

/* How far results are from the reference. */
typedef struct step_errors {
    double max, squares;
    int64_t count;
    double share;    /* the largest error as a share of its limit */
    char worst[160]; /* which number that is */
} step_errors;

struct step_call {
    const step_operator *of;
    run_options *o;
    at_any_desc desc;
    char text[AT_DESCRIBED_TEXT];                                  /* of the settled description */
    int64_t sizes[STEP_MOST_SIZES];                                /* of `sizes`, then of `follow`; -1: not known */
    npy_array arrays[STEP_MOST_TENSORS], first[STEP_MOST_TENSORS]; /* by tensor; states as they were before a run */
    bool has[STEP_MOST_TENSORS], has_files;
    void *object;
    double first_us, median_us, expect_max, gflops, peak_gflops; /* peak_gflops 0: not known */
    attune_dtype peak_dtype;
    step_errors errors;
    bool same_bits;
};

/* ---- step_sizes.c ---- */

/* A size by its name, of the description or of the step; NULL: there is none. */
int64_t *step_size(step_call *c, const char *name);
int64_t step_size_of(const step_call *c, const char *name);

/* Sets a size that is not known, and those of a block table for seq_kv keys. page 0: there is no table. */
void step_set_default(step_call *c, const char *name, int64_t value);
void step_size_pages(step_call *c, int64_t page);

const npy_array *step_file(const step_call *c, const char *name); /* the input's file; NULL: there is none */

/* Reads text, --sizes and files, and settles all sizes. */
bool step_describe(step_call *c);

/* ---- step_data.c ---- */

/* Makes all arrays: of files, of random numbers, of zeros. */
bool step_fill_arrays(step_call *c);
void step_free_arrays(step_call *c);
/* A tensor's data; NULL: the step does not have it. */
void *step_data(const step_call *c, const char *name);
const npy_array *step_array(const step_call *c, const char *name);
/* A state before the run. */
const npy_array *step_before(const step_call *c, const char *name);
void step_reset_states(step_call *c);

/* ---- step_check.c ---- */

/* Compares an output from element `from` on. limits: how far rounding may take each number. */
void step_compare(step_call *c, const char *name, int64_t from, const double *wanted, const double *limits,
                  int64_t count);
/* Notes a result that no rounding explains. Returns false. */
bool step_fault(step_call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The limit of a number that is stored in a type, beside the error of its arithmetic. */
double step_limit(attune_dtype dtype, double wanted, double error);
/* Whether the check compares machine code with the interpreter. */
bool step_compares_bits(const step_call *c);
bool step_check(step_call *c);
bool step_compare_expected(step_call *c);

/* ---- The operators, and the command ---- */

/* What steps with batch, seq, cu_seqlens and num_states share: sizes that are not set; all tokens of a step; judging
 * one sequence after the other, with its first token, its tokens and its state. */
bool step_derive_sequences(step_call *c);
int64_t step_tokens(const step_call *c);
bool step_judge_sequences(step_call *c, bool (*judge)(step_call *c, int64_t first, int64_t tokens, int64_t state));

extern const step_operator step_linear, step_conv, step_index, step_blocks, step_mla;

/* The operator that a problem names; NULL: it is attention's. */
const step_operator *step_operator_of(const char *problem);

/* Runs the command. Returns its exit code. */
int step_command(run_options *o, const step_operator *of);

#endif
