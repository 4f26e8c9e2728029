/* The names of a kernel under construction: the words of the language, operators, variables and buffers in one hash
 * table, so that the parser needs one look-up for each name it reads. */
#ifndef ATTUNE_IR_SYMBOLS_H
#define ATTUNE_IR_SYMBOLS_H

#include "ir/ir.h"

/* The meaning of a symbol that is a word of the language. Elements and operators follow as ranges. */
enum ir_word {
    IR_WORD_NONE,
    IR_WORD_KERNEL,
    IR_WORD_STRIDES,
    IR_WORD_IN,
    IR_WORD_OUT,
    IR_WORD_INOUT,
    IR_WORD_ASSUME,
    IR_WORD_ALLOC,
    IR_WORD_SHARED,
    IR_WORD_SCRATCH,
    IR_WORD_REG,
    IR_WORD_TILES,
    IR_WORD_PARALLEL,
    IR_WORD_FOR,
    IR_WORD_BY,
    IR_WORD_UNROLL,
    IR_WORD_LET,
    IR_WORD_IF,
    IR_WORD_ELSE,
    IR_WORD_PREFETCH,
    IR_WORD_PREFETCH_FAR,
    IR_WORD_TRUE,
    IR_WORD_FALSE,
    IR_WORD_INF,
    IR_WORD_NAN,
    IR_WORD_TILE,                                   /* + ir_tile_op */
    IR_WORD_ELEM = IR_WORD_TILE + IR_TILE_OP_COUNT, /* + ir_elem */
    IR_WORD_OP = IR_WORD_ELEM + IR_ELEM_COUNT       /* + ir_op, of those that are written as calls */
};

typedef struct ir_symbol {
    const char *name;
    uint32_t length, hash;
    uint32_t next_suffix; /* the N from which to look for a free "name.N" */
    uint8_t word;         /* an ir_word; if it is none, the next three tell */
    bool defined;         /* false for a name that only exists as the stem of "name.N" */
    bool visible;         /* its block is still open */
    const ir_var *var;    /* of the two, one is set if defined */
    const ir_buffer *buffer;
    struct ir_symbol *outer; /* the symbol defined before it, for closing blocks */
} ir_symbol;

typedef struct ir_symbols {
    at_arena *arena;
    ir_symbol **slots;
    uint32_t num_slots, num_symbols; /* num_slots is a power of two */
    ir_symbol *newest;
} ir_symbols;

/* false when the arena refuses, as for ir_symbols_add. */
bool ir_symbols_init(ir_symbols *symbols, at_arena *arena);

/* The hash is computed byte by byte, so that a lexer can do it while it reads. */
enum { IR_HASH_SEED = 0x811c9dc5 };
static inline uint32_t ir_hash_byte(uint32_t hash, char byte) { return (hash ^ (uint8_t)byte) * 0x01000193u; }
uint32_t ir_hash_name(const char *name, size_t length);

ir_symbol *ir_symbols_find(const ir_symbols *symbols, const char *name, size_t length, uint32_t hash);

/* The symbol of that name, added (undefined) if there is none. The name is copied. */
ir_symbol *ir_symbols_add(ir_symbols *symbols, const char *name, size_t length);

/* A defined, visible symbol from one that is neither defined nor a word. */
void ir_symbols_define(ir_symbols *symbols, ir_symbol *symbol, const ir_var *var, const ir_buffer *buffer);

/* Hides every symbol that was defined after `mark`, an earlier value of symbols->newest. */
void ir_symbols_close(ir_symbols *symbols, ir_symbol *mark);

/* NULL if `name` may name something new (it may still be taken), otherwise the reason against it. */
const char *ir_name_check(const char *name, size_t length);

static inline bool ir_name_starts(char c) { return (unsigned)((c | 0x20) - 'a') < 26 || c == '_'; }
static inline bool ir_name_goes_on(char c) { return ir_name_starts(c) || (unsigned)(c - '0') < 10; }

#endif
