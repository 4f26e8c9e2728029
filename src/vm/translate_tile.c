/* Sums of products, sum[r][c] += row[r] * column[c], with all sums in registers: a loop that does nothing else is one
 * operation, and so is a run of such statements in other code. */
#include "vm/translate.h"

#include <string.h>

enum { MOST_OPERANDS = VM_TILE_POINTERS, MOST_PRODUCTS = 1024, MOST_SUMS = 128, MOST_CHAIN = 16, MOST_TURNS = 64 };

/* A row or a column: what an access loads, or a place of the frame. */
typedef struct operand {
    const ir_access *access; /* NULL: a place */
    int32_t at;              /* the place */
    const ir_var *var;       /* the let whose value it is, or NULL */
    int32_t reg;             /* the place of a register that holds it, or VM_NOWHERE */
    bool is_number;          /* 4 bytes that fill a register */
    ir_elem elem;            /* f32, or one that the access widens */
    vm_op address;           /* in the first turn of the loop */
    int32_t step;            /* the place of its distance from turn to turn */
} operand;

typedef struct product {
    int32_t sum;
    uint32_t row, column; /* operands */
    uint32_t part;        /* how many products came before it to this sum */
} product;

struct vm_tile {
    vm_products kind;
    uint32_t num_operands, num_products;
    operand operands[MOST_OPERANDS];
    product products[MOST_PRODUCTS], ordered[MOST_PRODUCTS];
    uint32_t parts, rows, columns;
    int32_t first_sum, row_distance, column_distance; /* of the sums */
    uint32_t order[MOST_OPERANDS];                    /* of each part the rows, then the columns */
    bool is_number;                                   /* the rows */

    /* A loop round a loop of few turns: all of these are one turn, so the sums of all are in registers. */
    const ir_stmt *loop;
    uint32_t depth; /* of loops inside it round what is scanned */
    vm_int lo;
    /* Sums in memory, which are in the frame while the loop runs. */
    const ir_buffer *sums;
    uint32_t num_borrowed;
    vm_op borrowed[MOST_SUMS]; /* their loads */
};

static struct vm_tile *tile_of(vm_translator *t) {
    if (!t->tile) t->tile = at_arena_alloc(t->arena, sizeof *t->tile);
    if (!t->tile) at_fail_memory(t->err, sizeof *t->tile);
    if (t->tile) {
        t->tile->num_operands = t->tile->num_products = t->tile->num_borrowed = 0;
        t->tile->loop = NULL;
        t->tile->depth = 0;
        t->tile->sums = NULL;
    }
    return t->tile;
}

/* ---- Which statements add up products ---- */

/* The factors of `stmt`, if it is sum = x * y + sum. */
typedef struct factor_pair {
    const ir_expr *x, *y;
} factor_pair;

typedef struct factors {
    vm_products kind;
    const ir_access *sum;
    bool is_memory; /* the sum lies in scratch */
    uint32_t count;
    factor_pair products[MOST_CHAIN];
} factors;

static bool is_same(const ir_expr *a, const ir_expr *b) {
    if (a->op != b->op || !ir_type_eq(a->type, b->type)) return false;
    if (a->op == IR_CONST) return a->value.i == b->value.i;
    if (a->op == IR_VAR) return a->value.var == b->value.var;
    if (a->op == IR_LOAD || a->op == IR_SHUFFLE) return false;
    for (int i = 0; i < ir_op_get((ir_op)a->op)->arity; i++)
        if (!is_same(a->args[i], b->args[i])) return false;
    return true;
}

static bool is_load_of(const ir_expr *x, const ir_access *access) {
    if (x->op != IR_LOAD || x->value.access->buffer != access->buffer || x->value.access->mask) return false;
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (!is_same(x->value.access->indices[d], access->indices[d])) return false;
    return x->value.access->lanes == access->lanes && x->value.access->axis == access->axis;
}

/* One product and what it is added to. */
static bool take_product(const vm_translator *t, const ir_expr *x, factors *f, const ir_expr **rest) {
    const ir_expr *const *args = x->args;
    const bool fuses = t->target->flags & AT_TARGET_FMA;
    if (x->op == IR_ADD && !fuses && x->type.elem == IR_F32) {
        const bool is_second = args[0]->op != IR_MUL;
        if (args[is_second]->op != IR_MUL) return false;
        f->products[f->count++] = (factor_pair){args[is_second]->args[0], args[is_second]->args[1]};
        *rest = args[!is_second];
        return f->kind == VM_MULTIPLY_ADD || f->count == 1;
    }
    if (x->op != IR_FMA && x->op != IR_DOT2 && x->op != IR_DOT4) return false;
    const vm_products kind = x->op == IR_FMA ? VM_MULTIPLY_ADD : x->op == IR_DOT2 ? VM_DOT2 : VM_DOT4;
    if (f->count && f->kind != kind) return false;
    f->kind = kind;
    f->products[f->count++] = (factor_pair){args[0], args[1]};
    *rest = args[2];
    return true;
}

/* The last product of a chain is the innermost one. */
static bool factors_of(vm_translator *t, const ir_stmt *stmt, factors *f) {
    if (stmt->kind != IR_STORE) return false;
    const ir_expr *x = stmt->u.store.value;
    const ir_access *to = stmt->u.store.access;
    if (vm_bytes(x->type) != t->isa->vector_bytes || (x->type.elem != IR_F32 && x->type.elem != IR_I32)) return false;
    *f = (factors){.sum = to, .is_memory = to->buffer->space == IR_SCRATCH};
    while (f->count < MOST_CHAIN && take_product(t, x, f, &x)) {
    }
    if (!f->count || !is_load_of(x, to)) return false;
    if (!f->is_memory && to->buffer->space != IR_REG) return false;
    if (f->is_memory && !vm_is_plain(t, to)) return false;
    return t->isa->tile[f->kind][0][0][0] != NULL;
}

/* ---- Operands of a loop ---- */

static const ir_expr *without_casts_of_bits(const ir_expr *x) {
    while (x->op == IR_BITCAST) x = x->args[0];
    return x;
}

static int32_t add_operand(struct vm_tile *tile, operand o) {
    if (tile->num_operands == MOST_OPERANDS) return -1;
    tile->operands[tile->num_operands] = o;
    return (int32_t)tile->num_operands++;
}

/* A number of i8 becomes one of i32 first, which changes nothing. */
static const ir_expr *without_i32(const ir_expr *cast) {
    const ir_expr *inner = cast->args[0];
    const bool is_step = cast->type.elem == IR_F32 && inner->op == IR_CAST && inner->type.elem == IR_I32;
    return is_step && inner->args[0]->type.elem == IR_I8 ? inner : cast;
}

/* The address of an access while `loop` runs; the counter's part is kept apart. */
static vm_sum address_with_counter(vm_translator *t, const ir_access *access, const ir_stmt *loop) {
    const ir_buffer *buffer = access->buffer;
    const vm_storage *storage = vm_storage_of(t, buffer);
    vm_sum sum = {.constant = storage->offset, .counter = loop->u.loop.var};
    for (int d = 0; d < buffer->num_dims; d++)
        vm_sum_add(t, &sum, access->indices[d], storage->strides[d], ir_elem_get((ir_elem)buffer->type.elem)->bytes);
    return sum;
}

/* Sets the address of an operand in the first turn, and the distance from turn to turn. */
static bool address_in_loop(vm_translator *t, const struct vm_tile *tile, operand *o) {
    vm_sum sum = address_with_counter(t, o->access, tile->loop);
    vm_int distance = vm_int_const(t, 0);
    if (sum.is_wrong) return false;
    for (uint32_t i = 0; i < sum.num_counts; i++) {
        const vm_int one = vm_int_op2(t, IR_MUL, sum.counts[i].stride, vm_int_const(t, sum.counts[i].factor));
        distance = vm_int_op2(t, IR_ADD, distance, one);
    }
    vm_sum_term(t, &sum, vm_int_op2(t, IR_MUL, tile->lo, distance), 1);
    o->address = (vm_op){.fn = vm_exit};
    vm_sum_address(t, vm_storage_of(t, o->access->buffer)->base, &sum, &o->address);
    o->step = vm_int_op2(t, IR_MUL, distance, vm_int_const(t, tile->loop->u.loop.step)).at;
    return true;
}

/* A new operand from memory; -1: it is none. */
static int32_t read_operand(vm_translator *t, struct vm_tile *tile, const ir_expr *x) {
    const ir_type type = x->type;
    bool is_number = false;
    ir_elem elem = IR_F32;
    x = without_casts_of_bits(x);
    if (x->op == IR_CAST && x->type.elem == IR_F32 && t->isa->load_widened[without_i32(x)->args[0]->type.elem]) {
        x = without_i32(x)->args[0];
        elem = (ir_elem)x->type.elem;
    } else if (x->op == IR_SPLAT) {
        x = without_casts_of_bits(x->args[0]);
        is_number = true;
    }
    if (x->op != IR_LOAD || !vm_is_plain(t, x->value.access) || vm_bytes(type) != t->isa->vector_bytes) return -1;
    if (vm_bytes(x->type) != (is_number ? 4 : t->isa->vector_bytes / 4 * ir_elem_get(elem)->bytes)) return -1;
    operand o = {.access = x->value.access, .reg = VM_NOWHERE, .is_number = is_number, .elem = elem};
    if (tile->loop && !address_in_loop(t, tile, &o)) return -1;
    return add_operand(tile, o);
}

static int32_t operand_of(vm_translator *t, struct vm_tile *tile, const ir_expr *x) {
    x = without_casts_of_bits(x);
    if (x->op == IR_VAR) {
        for (uint32_t i = tile->num_operands; i-- > 0;)
            if (tile->operands[i].var == x->value.var) return (int32_t)i;
        return -1;
    }
    if (x->op == IR_LOAD && x->value.access->buffer->space == IR_REG) {
        const int32_t at = vm_register_of(t, x->value.access);
        for (uint32_t i = tile->num_operands; i-- > 0;)
            if (tile->operands[i].reg == at) return (int32_t)i;
        return -1;
    }
    return read_operand(t, tile, x);
}

/* The place of a sum in memory. False: it changes from turn to turn, or it may lie where another one does. */
static bool borrow_for_loop(vm_translator *t, struct vm_tile *tile, const ir_access *access, int32_t *place) {
    if (tile->num_products && tile->sums != access->buffer) return false;
    tile->sums = access->buffer;
    const vm_sum sum = address_with_counter(t, access, tile->loop);
    vm_op op = {.fn = t->isa->load};
    if (sum.is_wrong || sum.num_counts) return false;
    vm_sum_address(t, vm_storage_of(t, access->buffer)->base, &sum, &op);
    for (uint32_t i = 0; i < tile->num_borrowed; i++) {
        const vm_op *other = &tile->borrowed[i];
        const int64_t distance = op.u.imm - other->u.imm;
        *place = other->out;
        if (op.a != other->a || op.b != other->b || op.d != other->d) return false;
        if (!distance) return true;
        if (distance < t->isa->vector_bytes && -distance < t->isa->vector_bytes) return false;
    }
    if (tile->num_borrowed == MOST_SUMS) return false;
    if (!t->borrowed) t->borrowed = vm_new_place(t, MOST_SUMS * VM_SLOT_BYTES);
    *place = op.out = t->borrowed + (int32_t)tile->num_borrowed * VM_SLOT_BYTES;
    tile->borrowed[tile->num_borrowed++] = op;
    return true;
}

static bool sum_in_loop(vm_translator *t, struct vm_tile *tile, const factors *f, int32_t *place) {
    if (f->is_memory) return borrow_for_loop(t, tile, f->sum, place);
    *place = vm_register_of(t, f->sum);
    return !tile->sums;
}

/* The first operand with the address of this one: turns of inner loops load the same again. */
static uint32_t first_like(const struct vm_tile *tile, int32_t number) {
    const operand *o = &tile->operands[number];
    uint32_t i = 0;
    for (; i < (uint32_t)number; i++) {
        const operand *other = &tile->operands[i];
        const vm_op *x = &o->address, *y = &other->address;
        if (x->a == y->a && x->b == y->b && x->d == y->d && x->u.imm == y->u.imm && o->step == other->step &&
            o->is_number == other->is_number && o->elem == other->elem)
            break;
    }
    return i;
}

static bool add_products(vm_translator *t, struct vm_tile *tile, const factors *f) {
    int32_t sum;
    if (tile->num_products + f->count > MOST_PRODUCTS) return false;
    if (tile->num_products && f->kind != tile->kind) return false;
    if (!sum_in_loop(t, tile, f, &sum)) return false;
    tile->kind = f->kind;
    for (uint32_t i = f->count; i-- > 0;) {
        const int32_t x = operand_of(t, tile, f->products[i].x);
        const int32_t y = x < 0 ? -1 : operand_of(t, tile, f->products[i].y);
        if (x < 0 || y < 0) return false;
        const operand *row = &tile->operands[x], *column = &tile->operands[y];
        const bool turned = column->is_number || (row->elem != IR_F32 && !row->is_number);
        tile->products[tile->num_products++] =
            (product){sum, first_like(tile, turned ? y : x), first_like(tile, turned ? x : y), 0};
    }
    return true;
}

/* ---- The body of a loop ---- */

static bool scan_let(vm_translator *t, struct vm_tile *tile, const ir_stmt *stmt) {
    const ir_expr *value = stmt->u.let.value;
    vm_var *var = &t->vars[stmt->u.let.var->id];
    if (!var->uses || vm_define_index(t, stmt->u.let.var, value)) return true;
    if (vm_is_int(value->type)) return false;
    const int32_t number = read_operand(t, tile, value);
    if (number >= 0) tile->operands[number].var = stmt->u.let.var;
    return number >= 0;
}

static bool is_inside(const ir_block *body, const ir_buffer *buffer) {
    for (const ir_stmt *stmt = body->first; stmt; stmt = stmt->next)
        if (stmt->kind == IR_ALLOC && stmt->u.alloc == buffer) return true;
    return false;
}

static bool scan_store(vm_translator *t, struct vm_tile *tile, const ir_block *body, const ir_stmt *stmt) {
    const ir_access *access = stmt->u.store.access;
    factors f;
    if (access->buffer->space == IR_SCRATCH) return factors_of(t, stmt, &f) && add_products(t, tile, &f);
    if (access->buffer->space != IR_REG) return false;
    if (vm_forward_index(t, access, stmt->u.store.value)) return true;
    const bool inside = is_inside(body, access->buffer);
    if (factors_of(t, stmt, &f)) return !inside && add_products(t, tile, &f);
    if (!inside) return false;
    const int32_t number = read_operand(t, tile, stmt->u.store.value);
    if (number >= 0) tile->operands[number].reg = vm_register_of(t, access);
    return number >= 0;
}

static bool scan_body(vm_translator *t, struct vm_tile *tile, const ir_block *body);

/* Each turn of an inner loop adds to other sums, or later to the same, so that the order of no sum changes. */
static bool scan_inner(vm_translator *t, struct vm_tile *tile, const ir_stmt *loop) {
    const vm_int lo = vm_int_of(t, loop->u.loop.lo), hi = vm_int_of(t, loop->u.loop.hi);
    bool is_ok = lo.is_const && hi.is_const && hi.value - lo.value <= MOST_TURNS * loop->u.loop.step;
    tile->depth++;
    for (int64_t turn = lo.value; is_ok && turn < hi.value; turn += loop->u.loop.step) {
        t->vars[loop->u.loop.var->id].number = vm_int_const(t, turn);
        is_ok = scan_body(t, tile, &loop->u.loop.body);
    }
    tile->depth--;
    return is_ok;
}

static bool scan_body(vm_translator *t, struct vm_tile *tile, const ir_block *body) {
    for (const ir_stmt *stmt = body->first; stmt; stmt = stmt->next) {
        switch (stmt->kind) {
        case IR_ALLOC:
            if (stmt->u.alloc->space != IR_REG || tile->depth) return false;
            vm_alloc(t, stmt->u.alloc);
            break;
        case IR_LET:
            if (!scan_let(t, tile, stmt)) return false;
            break;
        case IR_STORE:
            if (!scan_store(t, tile, body, stmt)) return false;
            break;
        case IR_FOR:
            if (!scan_inner(t, tile, stmt)) return false;
            break;
        case IR_PREFETCH:
        case IR_ASSUME: break;
        default: return false;
        }
    }
    return tile->num_products > 0;
}

/* ---- The shape: parts that each multiply all rows with all columns ---- */

static uint32_t find_or_add(uint32_t *list, uint32_t *count, uint32_t value) {
    uint32_t i = 0;
    while (i < *count && list[i] != value) i++;
    if (i == *count) list[(*count)++] = value;
    return i;
}

/* Orders the products by parts. Each sum keeps the order of its own. Returns how many products a part has; 0: they
 * differ. */
static uint32_t order_by_parts(struct vm_tile *tile) {
    int32_t sums[MOST_SUMS];
    uint32_t counts[MOST_SUMS] = {0}, num_sums = 0;
    for (uint32_t i = 0; i < tile->num_products; i++) {
        uint32_t s = 0;
        while (s < num_sums && sums[s] != tile->products[i].sum) s++;
        if (s == MOST_SUMS) return 0;
        if (s == num_sums) {
            sums[num_sums] = tile->products[i].sum;
            num_sums++;
        }
        tile->products[i].part = counts[s]++;
    }
    for (uint32_t s = 1; s < num_sums; s++)
        if (counts[s] != counts[0]) return 0;
    uint32_t n = 0;
    for (uint32_t part = 0; part < counts[0]; part++)
        for (uint32_t i = 0; i < tile->num_products; i++)
            if (tile->products[i].part == part) tile->ordered[n++] = tile->products[i];
    memcpy(tile->products, tile->ordered, n * sizeof *tile->products);
    return num_sums;
}

/* Gives sums of memory places in the order of the rows and columns. */
static void order_borrowed(struct vm_tile *tile, int32_t sums[MOST_SUMS]) {
    int32_t at[MOST_SUMS];
    const int32_t first = tile->borrowed[0].out;
    for (uint32_t i = 0; i < tile->num_borrowed; i++) at[(sums[i] - first) / VM_SLOT_BYTES] = (int32_t)i;
    for (uint32_t i = 0; i < tile->num_borrowed; i++) {
        sums[i] = first + (int32_t)i * VM_SLOT_BYTES;
        tile->borrowed[i].out = first + at[i] * VM_SLOT_BYTES;
    }
    for (uint32_t i = 0; i < tile->num_products; i++) {
        product *p = &tile->products[i];
        p->sum = first + at[(p->sum - first) / VM_SLOT_BYTES] * VM_SLOT_BYTES;
    }
}

/* The sums of the first part, which lie regularly. */
static bool find_sums(struct vm_tile *tile, uint32_t size) {
    uint32_t rows[MOST_SUMS], columns[MOST_SUMS];
    int32_t sums[MOST_SUMS] = {0};
    bool is_taken[MOST_SUMS] = {false};
    tile->rows = tile->columns = 0;
    if (size > MOST_SUMS) return false;
    for (uint32_t i = 0; i < size; i++) {
        find_or_add(rows, &tile->rows, tile->products[i].row);
        find_or_add(columns, &tile->columns, tile->products[i].column);
    }
    if (tile->rows * tile->columns != size || (tile->rows + tile->columns) * tile->parts > MOST_OPERANDS) return false;
    for (uint32_t i = 0; i < size; i++) {
        const product *p = &tile->products[i];
        const uint32_t r = find_or_add(rows, &tile->rows, p->row), c = find_or_add(columns, &tile->columns, p->column);
        sums[r * tile->columns + c] = p->sum;
        is_taken[r * tile->columns + c] = true;
    }
    for (uint32_t i = 0; i < size; i++)
        if (!is_taken[i]) return false;
    if (tile->num_borrowed) order_borrowed(tile, sums);
    tile->first_sum = sums[0];
    tile->row_distance = tile->rows > 1 ? sums[tile->columns] - sums[0] : 0;
    tile->column_distance = tile->columns > 1 ? sums[1] - sums[0] : 0;
    for (uint32_t i = 0; i < size; i++) {
        const int32_t r = (int32_t)(i / tile->columns), c = (int32_t)(i % tile->columns);
        if (sums[i] != sums[0] + r * tile->row_distance + c * tile->column_distance) return false;
    }
    return true;
}

/* Row and column of a sum. */
static bool find_sum(const struct vm_tile *tile, int32_t sum, uint32_t *r, uint32_t *c) {
    for (*r = 0; *r < tile->rows; ++*r)
        for (*c = 0; *c < tile->columns; ++*c)
            if (sum == tile->first_sum + (int32_t)*r * tile->row_distance + (int32_t)*c * tile->column_distance)
                return true;
    return false;
}

/* All columns are of one type; rows are of f32. */
static bool find_widening(const vm_translator *t, struct vm_tile *tile) {
    const uint32_t width = tile->rows + tile->columns;
    const ir_elem elem = tile->operands[tile->order[tile->rows]].elem;
    for (uint32_t i = 0; i < tile->parts * width; i++)
        if (tile->operands[tile->order[i]].elem != (i % width < tile->rows ? IR_F32 : elem)) return false;
    if (elem == IR_F32) return true;
    if (tile->kind != VM_MULTIPLY_ADD) return false;
    tile->kind = elem == IR_BF16  ? VM_MULTIPLY_ADD_BF16
                 : elem == IR_F16 ? VM_MULTIPLY_ADD_F16
                 : elem == IR_I8  ? VM_MULTIPLY_ADD_I8
                                  : VM_MULTIPLY_ADD_F8;
    return t->isa->tile[tile->kind][0][0][0] != NULL;
}

static bool find_shape(const vm_translator *t, struct vm_tile *tile) {
    const uint32_t size = order_by_parts(tile), none = UINT32_MAX;
    if (!size) return false;
    tile->parts = tile->num_products / size;
    tile->is_number = tile->operands[tile->products[0].row].is_number;
    if (!find_sums(tile, size)) return false;
    const uint32_t width = tile->rows + tile->columns;
    for (uint32_t i = 0; i < tile->parts * width; i++) tile->order[i] = none;
    for (uint32_t i = 0; i < tile->num_products; i++) {
        const product *p = &tile->products[i];
        uint32_t r, c;
        if (!find_sum(tile, p->sum, &r, &c)) return false;
        uint32_t *row = &tile->order[i / size * width + r], *column = &tile->order[i / size * width + tile->rows + c];
        if ((*row != none && *row != p->row) || (*column != none && *column != p->column)) return false;
        if (tile->operands[p->row].is_number != tile->is_number || tile->operands[p->column].is_number) return false;
        *row = p->row;
        *column = p->column;
    }
    for (uint32_t i = 0; i < tile->parts * width; i++)
        if (tile->order[i] == none) return false;
    return find_widening(t, tile);
}

/* ---- Code ---- */

typedef struct turns {
    vm_int lo, hi;
    int64_t step;
    int32_t row_step, column_step; /* places */
} turns;

static void emit_pointers(vm_translator *t, const vm_op *pointers, const struct vm_tile *tile, uint32_t part,
                          uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) vm_emit(t, pointers[part * (tile->rows + tile->columns) + first + i]);
}

static void emit_part(vm_translator *t, const vm_op *pointers, const struct vm_tile *tile, const turns *loop,
                      const uint32_t at[2], const uint32_t size[2], vm_fn *fn) {
    vm_op op = {.fn = fn, .a = loop->lo.at, .b = loop->hi.at, .d = tile->row_distance, .e = tile->column_distance};
    op.out = tile->first_sum + (int32_t)at[0] * tile->row_distance + (int32_t)at[1] * tile->column_distance;
    op.u.imm = loop->step;
    vm_emit(t, op);
    vm_emit(t, (vm_op){.fn = vm_exit, .b = loop->row_step, .c = loop->column_step, .e = (int32_t)tile->parts});
    for (uint32_t part = 0; part < tile->parts; part++) {
        emit_pointers(t, pointers, tile, part, at[0], size[0]);
        emit_pointers(t, pointers, tile, part, tile->rows + at[1], size[1]);
    }
}

/* The largest operation for at most so many rows of so many columns. */
static vm_fn *largest(vm_fn *const table[VM_TILE_ROWS][VM_TILE_COLUMNS], uint32_t rows, uint32_t columns,
                      uint32_t size[2]) {
    for (int r = VM_TILE_ROWS - 1; r >= 0; r--)
        for (int c = 0; c < VM_TILE_COLUMNS; c++)
            if (vm_tile_columns[c] == columns && vm_tile_rows[r] <= rows && table[r][c]) {
                size[0] = vm_tile_rows[r];
                size[1] = columns;
                return table[r][c];
            }
    return NULL;
}

static uint32_t columns_at_once(uint32_t left) {
    int c = VM_TILE_COLUMNS - 1;
    while (vm_tile_columns[c] > left) c--;
    return vm_tile_columns[c];
}

/* Sums do not depend on each other, so a large tile is several, one after the other. */
static void emit_tile(vm_translator *t, const struct vm_tile *tile, const vm_op *pointers, const turns *loop) {
    uint32_t at[2], size[2] = {1, 1};
    for (at[1] = 0; at[1] < tile->columns; at[1] += size[1]) {
        const uint32_t columns = columns_at_once(tile->columns - at[1]);
        for (at[0] = 0; at[0] < tile->rows; at[0] += size[0]) {
            vm_fn *fn = largest(t->isa->tile[tile->kind][tile->is_number], tile->rows - at[0], columns, size);
            emit_part(t, pointers, tile, loop, at, size, fn);
        }
    }
}

/* ---- Loops ---- */

static bool reads_sums(const struct vm_tile *tile) {
    for (uint32_t i = 0; i < tile->num_operands; i++)
        if (tile->operands[i].access && tile->operands[i].access->buffer == tile->sums) return true;
    return false;
}

bool vm_tile_loop(vm_translator *t, const ir_stmt *stmt, vm_int lo, vm_int hi) {
    struct vm_tile *tile = tile_of(t);
    if (!tile) return false;
    tile->loop = stmt;
    tile->lo = lo;
    if (!scan_body(t, tile, &stmt->u.loop.body) || reads_sums(tile) || !find_shape(t, tile)) return false;
    const uint32_t width = tile->rows + tile->columns, count = tile->parts * width;
    vm_op pointers[MOST_OPERANDS];
    turns loop = {.lo = lo, .hi = hi, .step = stmt->u.loop.step, .row_step = VM_NOWHERE, .column_step = VM_NOWHERE};
    for (uint32_t i = 0; i < count; i++) {
        const operand *o = &tile->operands[tile->order[i]];
        int32_t *step = i % width < tile->rows ? &loop.row_step : &loop.column_step;
        if (*step != VM_NOWHERE && *step != o->step) return false;
        *step = o->step;
        pointers[i] = o->address;
    }
    if (t->err->status) return false;
    for (uint32_t i = 0; i < tile->num_borrowed; i++) vm_emit(t, tile->borrowed[i]);
    emit_tile(t, tile, pointers, &loop);
    for (uint32_t i = 0; i < tile->num_borrowed; i++) {
        vm_op store = tile->borrowed[i];
        store.fn = t->isa->store;
        vm_emit(t, store);
    }
    return true;
}

/* ---- Runs of statements ---- */

static bool reads_register(const ir_expr *x, const ir_buffer *buffer);

static bool indices_read(const ir_access *access, const ir_buffer *buffer) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (reads_register(access->indices[d], buffer)) return true;
    return access->mask && reads_register(access->mask, buffer);
}

static bool reads_register(const ir_expr *x, const ir_buffer *buffer) {
    if (x->op == IR_LOAD && (x->value.access->buffer == buffer || indices_read(x->value.access, buffer))) return true;
    for (int i = 0; i < ir_op_get((ir_op)x->op)->arity; i++)
        if (reads_register(x->args[i], buffer)) return true;
    return false;
}

/* A value in a place, which stays until the products are emitted; or in memory, if the run has not loaded it. */
static int32_t hold(vm_translator *t, struct vm_tile *tile, const ir_expr *x, vm_place *held, uint32_t *num_held) {
    for (uint32_t i = 0; x->op == IR_VAR && i < tile->num_operands; i++) {
        if (tile->operands[i].var != x->value.var) continue;
        t->vars[x->value.var->id].uses--;
        return (int32_t)i;
    }
    const vm_place place = vm_value_of(t, x, VM_NOWHERE);
    if (place.is_own) held[(*num_held)++] = place;
    for (uint32_t i = 0; i < tile->num_operands; i++)
        if (!tile->operands[i].access && tile->operands[i].at == place.at) return (int32_t)i;
    return add_operand(tile, (operand){.at = place.at, .reg = VM_NOWHERE, .elem = IR_F32});
}

static void emit_products(vm_translator *t, const struct vm_tile *tile) {
    for (uint32_t i = 0; i < tile->num_products; i++) {
        const product *p = &tile->products[i];
        vm_fn *const plain = tile->kind == VM_MULTIPLY_ADD ? t->isa->by_op[VM_F32][IR_FMA]
                             : tile->kind == VM_DOT2       ? t->isa->dot2
                                                           : t->isa->dot4;
        vm_op pointers[2] = {{.fn = vm_exit, .a = tile->operands[p->row].at, .e = 1},
                             {.fn = vm_exit, .a = tile->operands[p->column].at, .e = 1}};
        if (plain) {
            vm_emit(t, (vm_op){.fn = plain, .out = p->sum, .a = pointers[0].a, .b = pointers[1].a, .c = p->sum});
            continue;
        }
        const struct vm_tile one = {
            .kind = tile->kind, .parts = 1, .rows = 1, .columns = 1, .first_sum = p->sum, .is_number = false};
        const int32_t none = vm_int_const(t, 0).at;
        emit_tile(t, &one, pointers, &(turns){vm_int_const(t, 0), vm_int_const(t, 1), 1, none, none});
    }
}

static void load_operands(vm_translator *t, struct vm_tile *tile) {
    for (uint32_t i = 0; i < tile->num_operands; i++) {
        operand *o = &tile->operands[i];
        if (!o->access) continue;
        vm_op op = {.fn = o->elem == IR_F32 ? t->isa->load : t->isa->load_widened[o->elem], .out = t->loaded[i]};
        if (!t->loaded[i]) op.out = t->loaded[i] = vm_new_place(t, VM_SLOT_BYTES);
        vm_address_of(t, o->access, &op);
        vm_emit(t, op);
        *o = (operand){.at = op.out, .reg = VM_NOWHERE, .elem = IR_F32};
    }
}

static void emit_run(vm_translator *t, struct vm_tile *tile) {
    vm_op pointers[MOST_OPERANDS];
    if (tile->num_products == 1 || !find_shape(t, tile)) {
        load_operands(t, tile);
        emit_products(t, tile);
        return;
    }
    const uint32_t count = tile->parts * (tile->rows + tile->columns);
    for (uint32_t i = 0; i < count; i++) {
        const operand *o = &tile->operands[tile->order[i]];
        pointers[i] = (vm_op){.fn = vm_exit, .a = o->at, .e = 1};
        if (!o->access) continue;
        pointers[i].e = 0;
        vm_address_of(t, o->access, &pointers[i]);
    }
    const int32_t none = vm_int_const(t, 0).at;
    emit_tile(t, tile, pointers, &(turns){vm_int_const(t, 0), vm_int_const(t, 1), 1, none, none});
}

/* ---- Sums in memory: registers in the meantime ---- */

typedef struct run {
    struct vm_tile *tile;
    const ir_buffer *sums;
    vm_place held[MOST_OPERANDS];
    uint32_t num_held, num_stores;
    vm_op stores[MOST_SUMS];
    const ir_access *accesses[MOST_SUMS];
    uint32_t num_put_off;
    const ir_stmt *put_off[MOST_OPERANDS];
} run;

/* Surely other elements: a constant index differs. */
static bool are_apart(const ir_access *a, const ir_access *b) {
    for (int d = 0; d < a->buffer->num_dims; d++) {
        const ir_expr *x = a->indices[d], *y = b->indices[d];
        if (x->op == IR_CONST && y->op == IR_CONST && x->value.i != y->value.i && d != a->axis) return true;
    }
    return false;
}

/* Loads a sum into a register; it is stored after the products. False: it may lie where another one does. */
static bool borrow(vm_translator *t, run *r, const ir_access *access, int32_t *sum) {
    for (uint32_t i = 0; i < r->num_stores; i++)
        if (!are_apart(r->accesses[i], access)) return false;
    if (r->num_stores == MOST_SUMS) return false;
    if (!t->borrowed) t->borrowed = vm_new_place(t, MOST_SUMS * VM_SLOT_BYTES);
    *sum = t->borrowed + (int32_t)r->num_stores * VM_SLOT_BYTES;
    vm_op op = {.fn = t->isa->load, .out = *sum, .e = (int32_t)t->isa->vector_bytes};
    vm_address_of(t, access, &op);
    vm_emit(t, op);
    op.fn = t->isa->store;
    r->accesses[r->num_stores] = access;
    r->stores[r->num_stores++] = op;
    return true;
}

/* Whether `stmt` may be performed before the products so far: it neither reads nor writes their sums. */
static bool may_come_first(const vm_translator *t, const ir_stmt *stmt, const ir_buffer *sums) {
    if (stmt->kind == IR_PREFETCH || stmt->kind == IR_ASSUME) return true;
    if (stmt->kind != IR_LET) return false;
    return !t->vars[stmt->u.let.var->id].uses || !reads_register(stmt->u.let.value, sums);
}

/* A let that only loads a register for the products: they load it themselves. */
static bool put_off(vm_translator *t, run *r, const ir_stmt *stmt) {
    struct vm_tile *tile = r->tile;
    if (stmt->kind != IR_LET || !t->vars[stmt->u.let.var->id].uses || vm_is_int(stmt->u.let.value->type)) return false;
    const ir_expr *value = without_casts_of_bits(stmt->u.let.value);
    if ((value->op != IR_LOAD && value->op != IR_CAST) || tile->num_operands + 2 > MOST_OPERANDS) return false;
    const int32_t number = read_operand(t, tile, value);
    if (number < 0) return false;
    tile->operands[number].var = stmt->u.let.var;
    t->vars[stmt->u.let.var->id].is_put_off = true;
    r->put_off[r->num_put_off++] = stmt;
    return true;
}

/* Whether a value needs a let that has no place. */
static bool needs_put_off(const vm_translator *t, const ir_expr *x) {
    if (x->op == IR_VAR) return t->vars[x->value.var->id].is_put_off;
    if (x->op == IR_LOAD) {
        const ir_access *access = x->value.access;
        if (access->mask && needs_put_off(t, access->mask)) return true;
        for (int d = 0; d < access->buffer->num_dims; d++)
            if (needs_put_off(t, access->indices[d])) return true;
    }
    for (int i = 0; i < ir_op_get((ir_op)x->op)->arity; i++)
        if (needs_put_off(t, x->args[i])) return true;
    return false;
}

static bool factors_need(const vm_translator *t, const factors *f) {
    for (uint32_t i = 0; i < f->count; i++) {
        const ir_expr *x = f->products[i].x, *y = f->products[i].y;
        if ((x->op != IR_VAR && needs_put_off(t, x)) || (y->op != IR_VAR && needs_put_off(t, y))) return true;
    }
    return false;
}

static bool factors_read(const factors *f, const ir_buffer *sums) {
    for (uint32_t i = 0; i < f->count; i++)
        if (reads_register(f->products[i].x, sums) || reads_register(f->products[i].y, sums)) return true;
    return indices_read(f->sum, sums);
}

static bool take_statement(vm_translator *t, run *r, const ir_stmt *stmt) {
    struct vm_tile *tile = r->tile;
    factors f;
    int32_t sum;
    if (!factors_of(t, stmt, &f) || f.sum->buffer != r->sums || (tile->num_products && f.kind != tile->kind))
        return false;
    if (factors_need(t, &f) || factors_read(&f, r->sums) || tile->num_products + f.count > MOST_PRODUCTS) return false;
    if (tile->num_operands + 2 * f.count > MOST_OPERANDS || r->num_held + 2 * f.count > MOST_OPERANDS) return false;
    if (!f.is_memory)
        sum = vm_register_of(t, f.sum);
    else if (!borrow(t, r, f.sum, &sum))
        return false;
    tile->kind = f.kind;
    for (uint32_t i = f.count; i-- > 0;) {
        const int32_t x = hold(t, tile, f.products[i].x, r->held, &r->num_held);
        const int32_t y = hold(t, tile, f.products[i].y, r->held, &r->num_held);
        const bool turned = tile->operands[x].elem != IR_F32;
        tile->products[tile->num_products++] =
            (product){sum, (uint32_t)(turned ? y : x), (uint32_t)(turned ? x : y), 0};
    }
    return true;
}

/* Lets between the products are translated at once, the products together. */
bool vm_tile_run(vm_translator *t, const ir_stmt *stmt, const ir_stmt **after) {
    factors f;
    if (!factors_of(t, stmt, &f) || factors_read(&f, f.sum->buffer)) return false;
    run r = {.tile = tile_of(t), .sums = f.sum->buffer};
    if (!r.tile) return false;
    t->keeps_places = true; /* a let may be the last one to use what a product before it reads */
    for (; stmt && !t->err->status; stmt = stmt->next) {
        if (may_come_first(t, stmt, r.sums)) {
            if (put_off(t, &r, stmt)) continue;
            if (stmt->kind == IR_LET && needs_put_off(t, stmt->u.let.value)) break;
            vm_stmt(t, stmt);
        } else if (!take_statement(t, &r, stmt))
            break;
    }
    emit_run(t, r.tile);
    for (uint32_t i = 0; i < r.num_put_off; i++) {
        vm_var *var = &t->vars[r.put_off[i]->u.let.var->id];
        var->is_put_off = false;
        if (var->uses) vm_stmt(t, r.put_off[i]); /* needed later, too */
    }
    for (uint32_t i = 0; i < r.num_stores; i++) vm_emit(t, r.stores[i]);
    for (uint32_t i = 0; i < r.num_held; i++) vm_free(t, r.held[i]);
    t->keeps_places = false;
    t->num_kept = 0;
    *after = stmt;
    return true;
}
