/* A hash table, which only grows, finds names. Defined names are also on one list, newest first. A block takes the
 * list's head as its mark when it begins, and hides all newer names when it ends:
 *
 *     newest -> symbol -> outer -> outer -> mark -> … */
#include "ir/symbols.h"

#include <string.h>

enum { FIRST_SLOTS = 512 };

static const char *const words[IR_WORD_TILE] = {
    [IR_WORD_KERNEL] = "kernel",     [IR_WORD_STRIDES] = "strides", [IR_WORD_IN] = "in",
    [IR_WORD_OUT] = "out",           [IR_WORD_INOUT] = "inout",     [IR_WORD_ASSUME] = "assume",
    [IR_WORD_ALLOC] = "alloc",       [IR_WORD_SHARED] = "shared",   [IR_WORD_SCRATCH] = "scratch",
    [IR_WORD_REG] = "reg",           [IR_WORD_TILES] = "tiles",     [IR_WORD_PARALLEL] = "parallel",
    [IR_WORD_FOR] = "for",           [IR_WORD_BY] = "by",           [IR_WORD_UNROLL] = "unroll",
    [IR_WORD_LET] = "let",           [IR_WORD_IF] = "if",           [IR_WORD_ELSE] = "else",
    [IR_WORD_PREFETCH] = "prefetch", [IR_WORD_TRUE] = "true",       [IR_WORD_FALSE] = "false",
    [IR_WORD_INF] = "inf",           [IR_WORD_NAN] = "nan",         [IR_WORD_PREFETCH_FAR] = "prefetch.far",
};

static bool op_is_a_word(ir_op op) {
    return op != IR_CONST && op != IR_VAR && op != IR_LOAD && !(ir_op_get(op)->traits & IR_TRAIT_INFIX);
}

static bool add_word(ir_symbols *symbols, const char *text, int word) {
    ir_symbol *symbol = ir_symbols_add(symbols, text, strlen(text));
    if (symbol) symbol->word = (uint8_t)word;
    return symbol;
}

bool ir_symbols_init(ir_symbols *symbols, at_arena *arena) {
    *symbols = (ir_symbols){.arena = arena, .num_slots = FIRST_SLOTS};
    symbols->slots = at_arena_alloc(arena, FIRST_SLOTS * sizeof *symbols->slots);
    bool ok = symbols->slots;
    for (int word = IR_WORD_NONE + 1; ok && word < IR_WORD_TILE; word++) ok = add_word(symbols, words[word], word);
    for (int op = 0; ok && op < IR_TILE_OP_COUNT; op++)
        ok = add_word(symbols, ir_tile_get((ir_tile_op)op)->text, IR_WORD_TILE + op);
    for (int elem = 0; ok && elem < IR_ELEM_COUNT; elem++)
        ok = add_word(symbols, ir_elem_get(elem)->name, IR_WORD_ELEM + elem);
    for (int op = 0; ok && op < IR_OP_COUNT; op++)
        if (op_is_a_word(op)) ok = add_word(symbols, ir_op_get(op)->text, IR_WORD_OP + op);
    return ok;
}

uint32_t ir_hash_name(const char *name, size_t length) {
    uint32_t hash = IR_HASH_SEED;
    for (size_t i = 0; i < length; i++) hash = ir_hash_byte(hash, name[i]);
    return hash;
}

/* The slot with the name, or the free slot for it; the table is never full. */
static ir_symbol **find_slot(const ir_symbols *symbols, const char *name, size_t length, uint32_t hash) {
    uint32_t mask = symbols->num_slots - 1;
    for (uint32_t i = (hash ^ hash >> 15) & mask;; i = (i + 1) & mask) {
        const ir_symbol *symbol = symbols->slots[i];
        if (!symbol) return &symbols->slots[i];
        if (symbol->hash == hash && symbol->length == length && !memcmp(symbol->name, name, length))
            return &symbols->slots[i];
    }
}

ir_symbol *ir_symbols_find(const ir_symbols *symbols, const char *name, size_t length, uint32_t hash) {
    return *find_slot(symbols, name, length, hash);
}

static bool grow(ir_symbols *symbols) {
    ir_symbols bigger = *symbols;
    bigger.num_slots = symbols->num_slots * 2;
    bigger.slots = at_arena_alloc(symbols->arena, bigger.num_slots * sizeof *bigger.slots);
    if (!bigger.slots) return false;
    for (uint32_t i = 0; i < symbols->num_slots; i++) {
        ir_symbol *symbol = symbols->slots[i];
        if (symbol) *find_slot(&bigger, symbol->name, symbol->length, symbol->hash) = symbol;
    }
    *symbols = bigger;
    return true;
}

ir_symbol *ir_symbols_add(ir_symbols *symbols, const char *name, size_t length) {
    const uint32_t hash = ir_hash_name(name, length);
    ir_symbol *symbol = ir_symbols_find(symbols, name, length, hash);
    if (symbol) return symbol;
    if (symbols->num_symbols >= symbols->num_slots / 2 && !grow(symbols)) return NULL;
    symbol = at_arena_alloc(symbols->arena, sizeof *symbol);
    const char *copy = at_arena_strndup(symbols->arena, name, length);
    if (!symbol || !copy) return NULL;
    *symbol = (ir_symbol){.name = copy, .length = (uint32_t)length, .hash = hash, .next_suffix = 1};
    *find_slot(symbols, name, length, hash) = symbol;
    symbols->num_symbols++;
    return symbol;
}

void ir_symbols_define(ir_symbols *symbols, ir_symbol *symbol, const ir_var *var, const ir_buffer *buffer) {
    symbol->defined = symbol->visible = true;
    symbol->var = var;
    symbol->buffer = buffer;
    symbol->outer = symbols->newest;
    symbols->newest = symbol;
}

void ir_symbols_close(ir_symbols *symbols, ir_symbol *mark) {
    for (; symbols->newest != mark; symbols->newest = symbols->newest->outer) symbols->newest->visible = false;
}

/* Operators whose type is written after a dot: a name that begins like one would read as a call. */
static bool reads_as_call(const char *name, size_t length) {
    static const ir_op dotted[] = {IR_CAST, IR_BITCAST, IR_SPLAT, IR_RAMP};
    for (size_t i = 0; i < sizeof dotted / sizeof *dotted; i++) {
        const char *text = ir_op_get(dotted[i])->text;
        const size_t n = strlen(text);
        if (length > n && name[n] == '.' && !memcmp(name, text, n)) return true;
    }
    return false;
}

const char *ir_name_check(const char *name, size_t length) {
    if (length == 0) return "is empty";
    if (length >= IR_MAX_NAME) return "is longer than 63 characters";
    if (!ir_name_starts(name[0])) return "does not begin with a letter or '_'";
    for (size_t i = 1; i < length; i++) {
        if (ir_name_goes_on(name[i])) continue;
        if (name[i] != '.') return "holds a character other than letters, digits, '_' and '.'";
        if (i + 1 == length || name[i + 1] == '.') return "has a '.' that is not followed by a letter, digit or '_'";
    }
    return reads_as_call(name, length) ? "reads as an operator" : NULL;
}
