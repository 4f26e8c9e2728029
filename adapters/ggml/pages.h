/* Puts caches of keys and values on huge pages: decoding reads all of a cache for each token. */
#ifndef ATTUNE_GGML_PAGES_H
#define ATTUNE_GGML_PAGES_H

#include "node.h"

/* The buffers that a backend has seen, for one thread at a time. NULL is the initial state. */
typedef struct pages pages;

/* Asks the system for huge pages where K and V of the node lie, once for each page. Content and addresses stay as they
 * are. Nothing is asked for short caches, for memory that is not of ggml's buffers of the CPU, where the system has
 * huge pages of another size than 2 MiB or never gives any, and if ATTUNE_GGML_HUGE_PAGES is 0. */
void pages_ask(pages **seen, const ggml_node *node);

void pages_free(pages *seen);

#endif
