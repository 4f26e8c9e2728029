/* Runs statements other than stores. Each has a function, to which its resolved form points; a block is a linked list
 * of them. */
#include "ir/interp/interp_internal.h"

void interp_run_block(interp *run, const interp_action *first) {
    for (const interp_action *action = first; action; action = action->next) {
        run->current = action;
        action->perform(action);
    }
}

void interp_run_for(const interp_action *action) {
    const int64_t lo = interp_affine_eval(&action->u.loop.lo), hi = interp_affine_eval(&action->u.loop.hi);
    const int64_t step = action->source->u.loop.step;
    for (int64_t i = lo; i < hi;) {
        *action->u.loop.var = i;
        interp_run_block(action->run, action->u.loop.body);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
}

void interp_run_let(const interp_action *action) {
    memcpy(action->u.let.var, interp_eval(action->u.let.value), action->u.let.bytes);
}

void interp_run_let_in(const interp_action *action) {
    const int64_t lo = interp_affine_eval(&action->u.let.lo), hi = interp_affine_eval(&action->u.let.hi);
    int64_t value;
    interp_run_let(action);
    memcpy(&value, action->u.let.var, sizeof value);
    if (value < lo || value >= hi)
        interp_check_failed(action->run, "%lld is not in %lld..%lld", (long long)value, (long long)lo, (long long)hi);
}

void interp_run_if(const interp_action *action) {
    const uint8_t *condition = interp_eval(action->u.branch.condition);
    interp_run_block(action->run, *condition ? action->u.branch.then : action->u.branch.otherwise);
}

void interp_run_alloc(const interp_action *action) { interp_forget(action->u.alloc); }

/* A prefetch accesses no memory, so its address may be out of bounds. Loads in its indices are checked as always. */
void interp_run_prefetch(const interp_action *action) {
    const interp_access *access = action->u.prefetch;
    for (uint32_t d = 0; d < access->num_dims; d++)
        if (access->dims[d].lanes)
            interp_eval(access->dims[d].lanes);
        else
            interp_affine_eval(&access->dims[d].index);
}

/* Row by row, after a check that the last row is in bounds. */
static void move_rows(const interp_action *action, bool loads) {
    const interp_access *memory = action->u.tile.args[loads], *tile = action->u.tile.args[!loads];
    char *row = interp_lanes(tile, 0, loads);
    interp_lanes(action->u.tile.last, 0, !loads);
    for (int r = 0; r < IR_TILE_ROWS; r++, row += IR_TILE_ROW_BYTES) {
        char *at = interp_lanes(memory, r * action->u.tile.distance, !loads);
        memcpy(loads ? row : at, loads ? at : row, IR_TILE_ROW_BYTES);
    }
}

void interp_run_tile(const interp_action *action) {
    const interp_access *const *args = action->u.tile.args;
    switch (action->source->u.tile.op) {
    case IR_TILE_ZERO: memset(interp_lanes(args[0], 0, true), 0, IR_TILE_ROWS * IR_TILE_ROW_BYTES); break;
    case IR_TILE_LOAD: move_rows(action, true); break;
    case IR_TILE_STORE: move_rows(action, false); break;
    default:
        interp_lanes(args[0], 0, false);
        ir_eval_tile_dot2((void *)interp_lanes(args[0], 0, true), (const void *)interp_lanes(args[1], 0, false),
                          (const void *)interp_lanes(args[2], 0, false));
    }
}

void interp_run_assume(const interp_action *action) {
    const uint8_t *holds = interp_eval(action->u.assume);
    if (!*holds) interp_check_failed(action->run, "the assumption does not hold");
}
