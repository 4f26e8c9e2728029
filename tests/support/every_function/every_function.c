#include "support/every_function/every_function.h"

#include "support/every_function/record.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

void go_through_all(void) {
    attune_context *const context = record_context(ATTUNE_COMPILE_IN_PROCESS);
    go_through_structs();
    go_through_texts(context);
    go_through_samples(context);
    go_through_calls(context);
    go_through_block_masks(context);
    go_through_panels();
    go_through_blocks(context);
    go_through_plans(context);
    go_through_attentions(context);
    go_through_linear_attention(context);
    go_through_convolution(context);
    go_through_index(context);
    go_through_key_blocks(context);
    go_through_mla(context);
    go_through_ir(context);
    go_through_operators(context);
    go_through_descriptions(context);
    go_through_bundles(context);
    go_through_machines(context);
    go_through_tuning(context);
    go_through_caches(context);
    CALL(attune_context_destroy(context));
}
