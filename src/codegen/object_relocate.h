/* Relocations of x86-64 and AArch64 whose values do not depend on the address at which an image is loaded. */
#ifndef ATTUNE_CODEGEN_OBJECT_RELOCATE_H
#define ATTUNE_CODEGEN_OBJECT_RELOCATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cg_relocation cg_relocation;

/* By machine (EM_*) and type; NULL if an image cannot have it. */
const cg_relocation *cg_relocation_find(uint16_t machine, uint64_t type);

uint64_t cg_relocation_bytes(const cg_relocation *relocation); /* of what it changes */

/* Writes the distance to `symbol` + addend, or that address's offset in its page, to `field`, which is at offset `at`
 * of the code. False if it does not fit. */
bool cg_relocation_apply(const cg_relocation *relocation, unsigned char *field, int64_t at, int64_t symbol,
                         int64_t addend);

#endif
