/* Files of loop IR with numbers that may be chosen. Lines before the kernel say which:
 *
 *     param tile = 8                  # always 8, unless --set tile=16
 *     param rows = 4 in 1, 2, 4, 8    # attune tune tries these
 *
 * In the rest of the file $tile stands for the number. Such a file is an operator: its kernels are cached under the
 * file's text, and tuned like those of a problem. */
#ifndef ATTUNE_TOOLS_IR_PARAMS_H
#define ATTUNE_TOOLS_IR_PARAMS_H

#include "loop_ir/ir_call.h"

enum { IR_MAX_PARAMS = 12, IR_MAX_VALUES = 64, IR_PARAM_NAME = 48 };

typedef struct ir_param {
    char name[IR_PARAM_NAME];
    int32_t usual, values[IR_MAX_VALUES + 1]; /* the one that is set comes on top */
    size_t num_values;
} ir_param;

typedef struct ir_params {
    char *text;        /* the file; lines of parameters are blank */
    char problem[128]; /* the kernel's name and a hash of the file */
    ir_param params[IR_MAX_PARAMS];
    size_t count;
    int32_t values[IR_MAX_PARAMS]; /* that are set, or the usual ones */
    bool is_set;                   /* some are */
} ir_params;

/* Reads a file ("-" is standard input) and the numbers that are set. false after a message; ir_params_free is for true.
 */
bool ir_params_read(ir_params *params, const char *file, binding_list *numbers);
void ir_params_free(ir_params *params);

/* The kernel with these numbers, to be freed; NULL after a message. */
char *ir_params_fill(const ir_params *params, const int32_t *values);

/* The kernel: of the text if there are no parameters; with the numbers that are set; else tuned, or the usual ones. */
attune_status ir_params_compile(const ir_params *params, attune_context *context, const char *text,
                                attune_kernel **kernel);

/* The operator that the file is. */
attune_status ir_params_operator(const ir_params *params, attune_context *context, attune_operator **op);

#endif
