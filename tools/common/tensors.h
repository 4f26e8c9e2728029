/* The tensors of one call, for run, check and bench. They follow the list that the library gives for the problem. */
#ifndef ATTUNE_TOOLS_TENSORS_H
#define ATTUNE_TOOLS_TENSORS_H

#include "ref_block.h"
#include "common/problem_text.h"
#include "common/sizes.h"
#include "common/tool.h"

typedef struct tensor {
    attune_tensor info;
    size_t count; /* elements of storage. Gaps that strides leave are part of it, so that a write into one is seen */
    void *data;
    bool is_owned;
} tensor;

typedef struct tensors {
    attune_problem problem;     /* defaults filled in */
    attune_arguments arguments; /* sizes, and pointers to the tensors */
    tensor list[REF_MAX_TENSORS];
    size_t count;
    bool fills_up; /* tensors_fill makes lengths as large as they may be, and shares no pages */
    /* Of a block: the weights in packed_weights. Without data they were packed elsewhere, and there is no reference. */
    attune_mha_weights weights;
    bool owns_weights; /* their memory goes with the tensors */
    bool is_unread;    /* from tensors_create_unread */
} tensors;

/* Zeroed storage of every tensor of the problem; an error message is printed on failure. `sizes` may be NULL. */
bool tensors_create(tensors *t, const attune_problem *problem);
bool tensors_create_sized(tensors *t, const attune_problem *problem, const call_sizes *sizes);

/* The same for a call that is begun and not executed: only integers, which lengths and tables are, are ever read. Other
 * storage is not written, so that it takes no memory, and tensors_fill leaves it as it is. */
bool tensors_create_unread(tensors *t, const attune_problem *problem, const call_sizes *sizes);
void tensors_free(tensors *t);

/* A second set that shares the inputs of `t` and has outputs of its own, with the same contents. */
bool tensors_share(tensors *shared, const tensors *t);

/* NULL if the problem has no such tensor. */
tensor *tensors_find(const tensors *t, const char *name);

/* Gives one of the weights of a block zeroed memory, in the shape that t->weights has for it. false after a message. */
bool tensors_allocate_weight(tensors *t, attune_weight_id id);

/* Makes packed_weights from t->weights. false after a message. */
bool tensors_pack(tensors *t);

/* A copy of t->arguments. */
void tensors_arguments(const tensors *t, attune_arguments *arguments);

/* The call in the reference's form, which points into `list`. */
ref_call tensors_call(const tensors *t, attune_tensor list[REF_MAX_TENSORS]);

/* Runs the kernel, or the interpreter, over them. `schedule` is for the interpreter only; NULL: the chosen one. */
attune_status tensors_run(const tensors *t, attune_context *context, const attune_kernel *kernel, const char *schedule,
                          attune_engine engine);

/* Fills outputs that are no inputs with a pattern that no kernel computes. */
void tensors_clear_outputs(tensors *t);

/* Copies between a dense array [d0, d1, d2, d3] and strided storage, elements of `bytes` each. */
void tensors_scatter(void *storage, const int64_t strides[4], const int64_t dims[4], size_t bytes, const void *dense);
void tensors_gather(void *dense, const int64_t strides[4], const int64_t dims[4], size_t bytes, const void *storage);

/* Dims and strides of any tensor as four: those missing are 1 and 0, at the end. */
void tensor_shape(const attune_tensor *info, int64_t dims[4], int64_t strides[4]);

/* Whether all outputs of two sets have equal bits, gaps included; two NaN are equal. On a difference `difference` says
 * where. */
enum { DIFFERENCE_TEXT = 200 };
bool tensors_same_outputs(const tensors *a, const tensors *b, char difference[DIFFERENCE_TEXT]);

/* The inputs of check and bench. */
typedef enum input_kind {
    INPUT_ORDINARY = 0, /* a normal distribution, as in layers of a model */
    INPUT_LARGE,        /* scores of some tens: few keys take nearly all the weight */
    INPUT_OVERFLOW,     /* scores beyond the range or the precision of f32 */
    INPUT_DENORMAL,     /* denormals among ordinary numbers */
    INPUT_CONSTANT,     /* ties and zeros */
    INPUT_NONFINITE,    /* some NaN and infinities */
    INPUT_HIDDEN,       /* NaN and infinities in the hidden parts of K and V, and a NaN that some rows see */
    INPUT_KIND_COUNT
} input_kind;
const char *input_kind_name(input_kind kind);

/* Fills every input; masks, lengths and tables at random too, within what the sizes allow. false after a message:
 * out of memory. */
bool tensors_fill(tensors *t, input_kind kind, uint64_t seed);

#endif
