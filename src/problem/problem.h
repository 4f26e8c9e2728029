/* The parts of mha_canonicalize, each in a file of its own. */
#ifndef ATTUNE_PROBLEM_PROBLEM_H
#define ATTUNE_PROBLEM_PROBLEM_H

#include "problem/mha.h"
#include "problem/problem_fields.h"
#include "problem/fields_text.h"

/* problem_check.c. Checks enums and flags, which comes first; ranges; and contradictions between fields. The last two
 * need defaults filled in. mha_field_of_f64 gives the first type that is f64; NULL: there is none. */
attune_status mha_check_choices(const attune_problem *p, at_error *err);
attune_status mha_check_ranges(const attune_problem *p, at_error *err);
attune_status mha_check_parts(const attune_problem *p, at_error *err); /* before defaults are filled in */
attune_status mha_check_fields(const attune_problem *p, at_error *err);
const mha_field *mha_field_of_f64(const attune_problem *p);

/* problem_block.c. With embed_dim the op is ATTUNE_MHA. In order: fields that mean nothing in this block are cleared,
 * its defaults are filled in, contradictions are refused, and lengths that must be equal are made so. */
attune_status mha_keep_block(attune_problem *p, at_error *err);
attune_status mha_fill_block(attune_problem *p, at_error *err);
attune_status mha_check_block(const attune_problem *p, at_error *err);
void mha_settle_block(attune_problem *p);

/* problem_masks.c. Fills in leading dims, and checks all dims against the problem's. */
attune_status mha_settle_masks(attune_problem *p, at_error *err);

/* problem_positions.c. Causality, windows, and other fields about positions. A known start of the positions becomes an
 * offset. Causality and windows that hide no key are dropped. */
attune_status mha_settle_positions(attune_problem *p, at_error *err);

/* problem_functions.c. Checks the functions, makes their text canonical, and drops those that do nothing. */
attune_status mha_settle_functions(attune_problem *p, at_error *err);
/* Causality and windows in mask_mod become fields, which skip the keys that no row sees. After mha_settle_positions. */
attune_status mha_settle_band(attune_problem *p, at_error *err);

/* problem_strides.c. */
attune_status mha_settle_problem_strides(attune_problem *p, at_error *err);

/* What a length is taken to be where only the run tells: its bound, or what is neither short nor long. */
enum { MHA_USUAL_LENGTH = 512, MHA_USUAL_IDS = 2048 };
int64_t mha_usual_size(int64_t size, int64_t bound);

/* The largest value that a size can have at run time: itself if known, else its bound, else MHA_MAX_SIZE. */
int64_t mha_most_queries(const attune_problem *p);
int64_t mha_likely_queries(const attune_problem *p); /* those for which the schedule is chosen */
int64_t mha_most_keys(const attune_problem *p);
/* Of the keys that a row scores: those of its list, or of its sequence. */
int64_t mha_most_scored(const attune_problem *p);

/* The meaning of seq_kv = 0: as many keys as queries, or with pages and kv_lens a number that kv_lens gives. */
static inline int64_t mha_default_keys(const attune_problem *p) {
    return p->page_size && p->has_kv_lens ? ATTUNE_DYNAMIC : p->seq_q;
}

static inline bool mha_has_dims(const int64_t dims[4]) { return dims[0] || dims[1] || dims[2] || dims[3]; }

/* ---- Text ---- */

/* The letters that name the dims of a mask in its short form, and the sizes that they stand for. */
extern const char mha_dim_letters[5];
void mha_full_dims(const attune_problem *p, int64_t dims[4]);

/* How many strides this problem's tensor has, or dims a mask: field->rank except for `out` of a block. */
int mha_field_rank(const attune_problem *p, const mha_field *field);

/* Writes the words that a field may have: "a, b or c". */
void mha_write_choices(mha_writer *w, const mha_field *field);

#endif
