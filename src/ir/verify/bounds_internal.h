/* What the parts of the bounds prover share: bounds_atoms.c makes atoms,
 * bounds.c turns expressions into forms, bounds_prove.c searches. */
#ifndef ATTUNE_IR_BOUNDS_INTERNAL_H
#define ATTUNE_IR_BOUNDS_INTERNAL_H

#include "ir/verify/bounds.h"
#include "ir/verify/form.h"

enum { IR_ATOM_FACTS = 3, IR_ATOM_FACTORS = 4, IR_CASE_FACTS = 2, IR_PROOF_CACHE = 256, IR_INTERN_SLOTS = 512 };

/* No bound is known. */
#define IR_NO_MIN INT64_MIN
#define IR_NO_MAX INT64_MAX

typedef enum ir_atom_kind { IR_ATOM_PLAIN, IR_ATOM_CASES, IR_ATOM_PRODUCT } ir_atom_kind;

/* A fact is a form, and says `form >= 0`. */
typedef struct ir_atom {
    uint8_t kind, num_facts, num_factors, num_case_facts[2];
    bool is_static;
    int64_t min, max; /* of all but products */
    uint32_t rank;    /* facts and cases mention only this atom and atoms of lower rank */
    const ir_form *facts[IR_ATOM_FACTS];
    const ir_form *cases[2]; /* CASES: its value is one of the two */
    const ir_form *case_facts[2][IR_CASE_FACTS];
    uint32_t factors[IR_ATOM_FACTORS]; /* PRODUCT: ascending; none is a product itself */
    uint64_t key_hash;                 /* of the operation, for finding the atom again */
    struct ir_atom_key {
        int op;
        const void *extra; /* the condition of a select */
        int64_t m;
        const ir_form *x, *y;
    } key;
    uint32_t next; /* of its slot in the intern table */
} ir_atom;

typedef struct ir_proof {
    uint32_t epoch;
    ir_form form;
} ir_proof;

struct ir_bounds {
    at_arena *arena;
    uint32_t num_vars, num_atoms, atom_capacity, num_facts, fact_capacity, epoch;
    int budget;
    bool facts_first; /* the search tries facts before cases */
    ir_atom **atoms;  /* atom 0 is the unknown value after memory has run out */
    const ir_form **facts;
    const ir_form **var_forms;  /* by id; NULL: not an integer */
    const ir_expr **var_values; /* by id: of lets */
    uint32_t lane_atoms[8];     /* by log2(lanes): 0 … lanes-1 */
    uint32_t slots[IR_INTERN_SLOTS];
    ir_proof proofs[IR_PROOF_CACHE];
};

/* ---- bounds_atoms.c ---- */

const ir_form *ir_bounds_keep(ir_bounds *b, const ir_form *f);
void ir_bounds_push_fact(ir_bounds *b, const ir_form *f);

/* A new atom with that range; 0 when memory has run out. */
uint32_t ir_atom_new(ir_bounds *b, int64_t min, int64_t max);
void ir_atom_narrow(ir_bounds *b, uint32_t id, int64_t min, int64_t max);
/* Adds a fact to an atom, and narrows the atom's constant range by it. */
void ir_atom_add_fact(ir_bounds *b, uint32_t id, const ir_form *fact);
/* The atom for op(x, y), or for op(x, m) when y is NULL: the existing one, or a new one (*is_new). */
uint32_t ir_atom_intern(ir_bounds *b, int op, const ir_form *x, const ir_form *y, int64_t m, const void *extra,
                        bool *is_new);
/* ir_atom_set_cases says that an interned atom is x or y; ir_atom_add_case_fact adds a fact that holds in one case. */
void ir_atom_set_cases(ir_bounds *b, uint32_t id);
void ir_atom_add_case_fact(ir_bounds *b, ir_atom *atom, int which, const ir_form *fact);

/* out becomes a new atom: any value of the element. */
void ir_bounds_unknown(ir_bounds *b, ir_elem elem, ir_form *out);

/* The following return false, with *out unspecified, if the result does not fit a form. */

bool ir_bounds_multiply(ir_bounds *b, ir_form *out, const ir_form *f, const ir_form *g);
/* out = x / m rounded down, m > 0. Terms that m divides are divided directly: (8 i + j) / 8 is i + j / 8. */
bool ir_bounds_divide_const(ir_bounds *b, const ir_form *x, int64_t m, ir_form *out);
bool ir_bounds_divide(ir_bounds *b, int op, const ir_form *x, const ir_form *y, ir_form *out); /* IR_DIV or IR_MOD */
bool ir_bounds_min_or_max(ir_bounds *b, bool is_min, const ir_form *x, const ir_form *y, ir_form *out);

/* ---- bounds_prove.c ---- */

/* The constant range of an atom and of a form; IR_NO_MIN, IR_NO_MAX: no bound. */
int64_t ir_atom_min(const ir_bounds *b, uint32_t atom);
int64_t ir_atom_max(const ir_bounds *b, uint32_t atom);
int64_t ir_bounds_min(const ir_bounds *b, const ir_form *f);
int64_t ir_bounds_max(const ir_bounds *b, const ir_form *f);

/* The term whose atom has the highest rank, of a form that has terms. */
ir_term ir_bounds_newest(const ir_bounds *b, const ir_form *f);

/* Whether f + c >= 0. */
bool ir_bounds_prove(ir_bounds *b, const ir_form *f, int64_t c);

#endif
