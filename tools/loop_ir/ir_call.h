/* The arguments of a kernel in loop IR, as the command gets them: numbers for scalars, .npy files for buffers. */
#ifndef ATTUNE_TOOLS_IR_CALL_H
#define ATTUNE_TOOLS_IR_CALL_H

#include "common/npy.h"
#include "common/tool.h"

enum { MAX_BINDINGS = 64 };

/* name=value as given. */
typedef struct binding {
    const char *name, *value;
    bool used;
} binding;

typedef struct binding_list {
    binding items[MAX_BINDINGS];
    size_t count;
} binding_list;

/* Cuts the text of an option, NAME=VALUE, and adds it; a usage error if it is none, or is there already. */
void bindings_add(struct argp_state *state, binding_list *list, char *text);

/* The one of this name, which counts as used from now on; NULL: there is none. */
binding *bindings_find(binding_list *list, const char *name);

/* Whether all were used; else a message that names one, given by --OPTION, and `what` there is none of. */
bool bindings_all_used(const binding_list *list, const char *option, const char *what);

/* One parameter with its storage. */
typedef struct ir_value {
    const attune_ir_parameter *parameter;
    npy_array array; /* buffers; the data is written in place */
    void *original;  /* a copy of an inout buffer that came from a file, for the second engine */
} ir_value;

typedef struct ir_call {
    attune_context *context;
    attune_kernel *kernel;
    size_t count;
    ir_value *values; /* in the order of the parameters */
    void **buffers;
    int64_t *scalars;
    size_t num_buffers, num_scalars;
} ir_call;

/* Fills the call of its kernel: shapes as the kernel gives them. Outputs without an argument are zeros, and
 * so are inout buffers without `draws`. A missing input is an error. With `draws` a missing input or inout buffer of
 * f32 or f64 gets random numbers, and one of another type is an error. false after a message. ir_call_free is for any
 * result. */
bool ir_call_bind(ir_call *call, binding_list *arguments, bool draws);
void ir_call_free(ir_call *call);

/* Whether a parameter has strides of its own: such a buffer may need more memory than its shape tells. The text is
 * parsed; false with a message if it is no kernel. */
bool ir_call_is_contiguous(attune_context *context, const char *text, const char *file);

#endif
