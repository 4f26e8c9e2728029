/* Every public function, called in an order in which each has what it needs. A function that is new is called in one of
 * these parts (test_fpenv asks for it). */
#ifndef ATTUNE_TESTS_EVERY_FUNCTION_H
#define ATTUNE_TESTS_EVERY_FUNCTION_H

#include <attune.h>

/* All of it, as a run of a record. */
void go_through_all(void);

void go_through_structs(void);
void go_through_texts(attune_context *context);
void go_through_samples(attune_context *context);
void go_through_calls(attune_context *context);
void go_through_block_masks(attune_context *context);
void go_through_panels(void);
void go_through_blocks(attune_context *context);
void go_through_plans(attune_context *context);
void go_through_attentions(attune_context *context);
void go_through_linear_attention(attune_context *context);
void go_through_convolution(attune_context *context);
void go_through_index(attune_context *context);
void go_through_key_blocks(attune_context *context);
void go_through_mla(attune_context *context);
void go_through_ir(attune_context *context);
void go_through_operators(attune_context *context);
void go_through_descriptions(attune_context *context);
void go_through_bundles(attune_context *context);
void go_through_machines(attune_context *context);
void go_through_tuning(attune_context *context);
void go_through_caches(attune_context *context);

/* Problems that are legal, and some that are not. */
enum { NUM_EVERY_TEXT = 7 };
extern const char *const every_text[NUM_EVERY_TEXT];

/* Notes whether a kernel is cached. */
void every_answer(void *user, const attune_cache_answer *answer);

#endif
