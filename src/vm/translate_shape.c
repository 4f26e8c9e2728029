/* The shape of sums of products: parts, each of which multiplies all rows with all columns, and the operations that
 * compute them:
 *
 *               column 0    column 1
 *     row 0     sum[0][0]   sum[0][1]        sum[r][c] += row[r] * column[c], for part 0, part 1, …
 *     row 1     sum[1][0]   sum[1][1] */
#include "vm/translate_tile.h"

#include <string.h>

/* ---- Parts ---- */

static uint32_t find_or_add(uint32_t *list, uint32_t *count, uint32_t value) {
    uint32_t i = 0;
    while (i < *count && list[i] != value) i++;
    if (i == *count) list[(*count)++] = value;
    return i;
}

/* Orders the products by parts; the order of each sum's products stays. Returns how many products a part has; 0: sums
 * have different numbers of products. */
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

/* Reassigns the places of sums in memory in the order of rows and columns. */
static void order_borrowed(struct vm_tile *tile, int32_t sums[MOST_SUMS]) {
    int32_t at[MOST_SUMS];
    const int32_t first = tile->borrowed[0].out;
    for (uint32_t i = 0; i < tile->num_borrowed; i++) at[(sums[i] - first) / VM_SLOT_BYTES] = (int32_t)i;
    for (uint32_t i = 0; i < tile->num_borrowed; i++) {
        sums[i] = first + (int32_t)i * VM_SLOT_BYTES;
        tile->borrowed[i].out = first + at[i] * VM_SLOT_BYTES;
    }
    for (uint32_t i = 0; i < tile->num_products; i++) {
        vm_product *p = &tile->products[i];
        p->sum = first + at[(p->sum - first) / VM_SLOT_BYTES] * VM_SLOT_BYTES;
    }
}

/* Finds rows and columns of the first part. False: the places of the sums are not regular. */
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
        const vm_product *p = &tile->products[i];
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

/* The kind of the products: all columns have one type, and rows are f32. */
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

bool vm_find_shape(const vm_translator *t, struct vm_tile *tile) {
    const uint32_t size = order_by_parts(tile), none = UINT32_MAX;
    if (!size) return false;
    tile->parts = tile->num_products / size;
    tile->is_number = tile->operands[tile->products[0].row].is_number;
    if (!find_sums(tile, size)) return false;
    const uint32_t width = tile->rows + tile->columns;
    for (uint32_t i = 0; i < tile->parts * width; i++) tile->order[i] = none;
    for (uint32_t i = 0; i < tile->num_products; i++) {
        const vm_product *p = &tile->products[i];
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

static void emit_pointers(vm_translator *t, const vm_op *pointers, const struct vm_tile *tile, uint32_t part,
                          uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) vm_emit(t, pointers[part * (tile->rows + tile->columns) + first + i]);
}

static void emit_part(vm_translator *t, const vm_op *pointers, const struct vm_tile *tile, const vm_turns *loop,
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

/* The largest operation for at most so many rows and columns. */
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

/* Sums are independent, so a large tile becomes several operations, one after the other. */
void vm_emit_tile(vm_translator *t, const struct vm_tile *tile, const vm_op *pointers, const vm_turns *loop) {
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
    struct vm_tile *tile = vm_tile_new(t);
    if (!tile) return false;
    tile->loop = stmt;
    tile->lo = lo;
    if (!vm_scan_body(t, tile, &stmt->u.loop.body) || reads_sums(tile) || !vm_find_shape(t, tile)) return false;
    const uint32_t width = tile->rows + tile->columns, count = tile->parts * width;
    vm_op *const pointers = tile->pointers;
    vm_turns loop = {.lo = lo, .hi = hi, .step = stmt->u.loop.step, .row_step = VM_NOWHERE, .column_step = VM_NOWHERE};
    for (uint32_t i = 0; i < count; i++) {
        const vm_operand *o = &tile->operands[tile->order[i]];
        int32_t *step = i % width < tile->rows ? &loop.row_step : &loop.column_step;
        if (*step != VM_NOWHERE && *step != o->step) return false;
        *step = o->step;
        pointers[i] = o->address;
    }
    if (t->err->status) return false;
    for (uint32_t i = 0; i < tile->num_borrowed; i++) vm_emit(t, tile->borrowed[i]);
    vm_emit_tile(t, tile, pointers, &loop);
    for (uint32_t i = 0; i < tile->num_borrowed; i++) {
        vm_op store = tile->borrowed[i];
        store.fn = t->isa->store;
        vm_emit(t, store);
    }
    return true;
}
