/* Prints where members lie, under the names of ggml_abi.h: with GGML_HEADERS by ggml's own headers. The two programs
 * must print the same. */
#include <stddef.h>
#include <stdio.h>

#ifdef GGML_HEADERS
#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#define SIZE(theirs, ours)         printf(#ours " %zu\n", sizeof(struct theirs));
#define MEMBER(theirs, a, ours, b) printf(#ours "." #b " %zu\n", offsetof(struct theirs, a));
#define VALUE(theirs, ours)        printf(#ours " %d\n", (int)theirs);
#else
#include "ggml/ggml_abi.h"
#define SIZE(theirs, ours)         printf(#ours " %zu\n", sizeof(ours));
#define MEMBER(theirs, a, ours, b) printf(#ours "." #b " %zu\n", offsetof(ours, b));
#define VALUE(theirs, ours)        printf(#ours " %d\n", (int)ours);
#endif

int main(void) {
#include "layout.def"
    return 0;
}
