/* Descriptions of attune's described operators, and their text.
 *
 * An operator has a table (at_desc_table): the members of its struct, which kernels a description has, and what of
 * the struct each of them depends on. "which" is the number of one of these kernels. A kernel's problem is a text of
 * those members:
 *
 *     op=conv,channels=1,taps=4,dtype=bf16,kernel=channels
 *
 * The text names the kernel in caches, bundles, manifests and records, and its builder reads the struct back from it.
 * The command links this part of the library, too. */
#ifndef ATTUNE_DESCRIBED_DESC_TABLE_H
#define ATTUNE_DESCRIBED_DESC_TABLE_H

#include "base/struct.h"

#include <attune.h>
#include <stdbool.h>

typedef enum at_field_kind {
    AT_FIELD_SIZE,
    AT_FIELD_FLAG,
    AT_FIELD_NUMBER,
    AT_FIELD_DTYPE,
    AT_FIELD_WORD
} at_field_kind;

typedef struct at_described_field {
    const char *name; /* of the member, and in text */
    size_t offset;
    at_field_kind kind;       /* int64_t, int, double, attune_dtype, another enum */
    const char *const *words; /* of an enum, by value, and NULL after the last */
} at_described_field;

/* Fields of the struct `DESC`, which a file defines. */
#define AT_FIELD(member, its_kind) {.name = #member, .offset = offsetof(DESC, member), .kind = its_kind}
#define AT_SIZE(member)            AT_FIELD(member, AT_FIELD_SIZE)
#define AT_FLAG(member)            AT_FIELD(member, AT_FIELD_FLAG)
#define AT_NUMBER(member)          AT_FIELD(member, AT_FIELD_NUMBER)
#define AT_DTYPE(member)           AT_FIELD(member, AT_FIELD_DTYPE)
#define AT_WORD(member, its_words)                                                                                     \
    {.name = #member, .offset = offsetof(DESC, member), .kind = AT_FIELD_WORD, .words = its_words}

enum { AT_MOST_KERNELS = 20 };

typedef struct at_desc_table {
    const char *op;   /* in text: "linear"; also of the functions: attune_linear_create */
    const char *what; /* in messages: "linear attention" */
    at_struct desc;
    const at_described_field *fields;
    size_t num_fields;
    const char *const *kernels; /* words of `kernel` in text, by number */
    uint32_t num_kernels;

    /* Checks a description, and fills in its defaults. */
    attune_status (*settle)(void *desc, at_error *err);
    /* Whether steps use a kernel. NULL: all of them. */
    bool (*has_kernel)(const void *desc, uint32_t which);
    /* Refuses a kernel of a text that does not compute the description. NULL: all do. */
    attune_status (*check_kernel)(const void *desc, uint32_t which, at_error *err);
    /* Sets members that the kernel does not depend on to a fixed value, so that such descriptions share it.
     * NULL: it depends on all. */
    void (*narrow)(void *desc, uint32_t which);
    /* Replaces description and kernel by those of a kernel that computes this one, too, if there is such: tier 0 has
     * them. What it gives may have a more general one in turn. Steps give the kernel the arguments that it takes
     * (attune_kernel's is_general). NULL: there is none. */
    bool (*generalise)(void *desc, uint32_t *which);
} at_desc_table;

/* The members that follow from its name. `least`: the size of the struct in the first version. */
#define AT_DESC_TABLE(op_, OP, initial, least)                                                                         \
    .op = #op_,                                                                                                        \
    .desc = {"attune_" #op_ "_desc", "start from ATTUNE_" #OP "_DESC_INIT", sizeof(attune_##op_##_desc), initial,      \
             least},                                                                                                   \
    .fields = fields, .num_fields = sizeof fields / sizeof *fields

extern const at_desc_table lin_table, conv_table, idx_table, blk_table, mla_table;

/* The operator that a text names first, by op=; NULL: none of these. */
const at_desc_table *at_desc_table_of(const char *text);

/* Memory for the description of any operator. */
typedef union at_any_desc {
    attune_linear_desc linear;
    attune_conv_desc conv;
    attune_index_desc index;
    attune_blocks_desc blocks;
    attune_mla_desc mla;
} at_any_desc;

enum { AT_DESCRIBED_TEXT = ATTUNE_DESCRIPTION_BYTES };

/* The text of a settled description, and of one of its kernels. */
void at_desc_print(const at_desc_table *of, const void *desc, char text[AT_DESCRIBED_TEXT]);
void at_described_print(const at_desc_table *of, const void *desc, uint32_t which, char text[AT_DESCRIBED_TEXT]);

/* Reads a caller's text into memory for the struct, and the number of the kernel that it names. Nothing is settled. */
enum { AT_ALL_KERNELS = -1 };
attune_status at_desc_read(const at_desc_table *of, const char *text, void *desc, int32_t *which, at_error *err);

/* The kernels of a caller's text: the one that it names, else all that its description has. */
typedef struct at_described_text {
    const at_desc_table *of;
    at_any_desc desc; /* settled */
    uint32_t kernels[AT_MOST_KERNELS], count;
} at_described_text;
attune_status at_described_parse(const at_desc_table *of, const char *text, at_described_text *parsed, at_error *err);

#endif
