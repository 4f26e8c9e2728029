/* Translates a kernel to its program: for each phase code and constants, joined into one block of memory without
 * pointers to anything outside. */
#include "vm/translate.h"

#include "target/kernel_abi.h"

#include <string.h>

/* ---- Phases during translation ---- */

typedef struct draft {
    at_vm_phase phase;
    vm_code entry, task;
} draft;

static const vm_isa *isa_of(const at_target *target) {
#if defined(__x86_64__)
    if (target->vector_bytes == 64) return &vm_isa_avx512;
    if (target->vector_bytes == 32) return &vm_isa_avx2;
#endif
    (void)target;
    return &vm_isa_base;
}

static bool begin_phase(vm_translator *t) {
    const ir_kernel *kernel = t->kernel;
    const size_t vars = (kernel->num_vars + 1) * sizeof *t->vars;
    const size_t storage = (kernel->num_buffers + 1) * sizeof *t->storage;
    const size_t pointers = (kernel->num_params + kernel->num_shared + 1) * sizeof *t->pointers;
    t->vars = at_arena_alloc(t->arena, vars);
    t->storage = at_arena_alloc(t->arena, storage);
    t->pointers = at_arena_alloc(t->arena, pointers);
    if (!t->vars || !t->storage || !t->pointers) {
        at_fail_memory(t->err, vars + storage + pointers);
        return false;
    }
    memset(t->vars, 0, vars);
    memset(t->storage, 0, storage);
    t->num_pointers = t->num_constants = t->num_spare = t->num_lets = 0;
    t->memo = NULL;
    t->borrowed = 0;
    memset(t->loaded, 0, sizeof t->loaded);
    t->table_size = 0;
    t->top = t->ints = t->ints_end = 0;
    t->scratch = t->most_scratch = 0;
    t->level = 0;
    t->levels[0] = (vm_level){.serial = t->next_serial++};
    t->scratch_at = vm_new_int(t);
    return true;
}

/* All scalars have places; those of idx have 8 bytes. */
static void add_scalars(vm_translator *t, at_vm_phase *phase) {
    vm_scalar *scalars = at_arena_alloc(t->arena, (t->kernel->num_params + 1) * sizeof *scalars);
    uint32_t n = 0;
    if (!scalars) {
        at_fail_memory(t->err, t->kernel->num_params * sizeof *scalars);
        return;
    }
    for (uint32_t p = 0; p < t->kernel->num_params; p++) {
        const ir_var *var = t->kernel->params[p].var;
        if (!var) continue;
        const int32_t at = vm_is_int(var->type) ? vm_new_int(t) : vm_new_place(t, VM_SLOT_BYTES);
        scalars[n] = (vm_scalar){at, n, var->type.elem};
        t->vars[var->id].number = (vm_int){.at = at};
        n++;
    }
    phase->scalars = scalars;
    phase->num_scalars = n;
}

static void exit_code(vm_translator *t, vm_code *code) {
    vm_emit(t, (vm_op){.fn = vm_exit});
    *code = t->levels[t->level].code;
}

static void translate_phase(vm_translator *t, const ir_phase *source, draft *d) {
    at_vm_phase *phase = &d->phase;
    phase->isa = t->isa;
    if (!begin_phase(t)) return;
    add_scalars(t, phase);
    vm_count_uses(t, &source->body);
    phase->num_loops = source->num_loops;
    for (int l = 0; l < source->num_loops; l++) phase->loops[l].hi = vm_int_of(t, source->loops[l].hi).at;
    if (!vm_open(t)) return;
    for (int l = 0; l < source->num_loops; l++) {
        phase->loops[l].var = vm_new_int(t);
        t->vars[source->loops[l].var->id].number = (vm_int){.at = phase->loops[l].var, .level = t->level};
    }
    vm_block(t, &source->body);
    exit_code(t, &d->task);
    t->levels[t->level] = (vm_level){0}; /* its memory is the draft's */
    t->level--;
    exit_code(t, &d->entry);
    phase->pointers = t->pointers;
    phase->num_pointers = t->num_pointers;
    phase->scratch = t->scratch_at;
    phase->constant_bytes = t->num_constants * VM_SLOT_BYTES;
    phase->frame_at = t->most_scratch + phase->constant_bytes;
    phase->scratch_bytes = phase->frame_at + (uint64_t)t->top;
    char *constants = at_arena_alloc(t->arena, phase->constant_bytes + 1);
    if (!constants) return;
    for (uint32_t n = 0; n < t->num_constants; n++) /* constant 0 is next to the middle of the frame */
        memcpy(constants + (t->num_constants - 1 - n) * VM_SLOT_BYTES, t->constants + n * VM_SLOT_BYTES, VM_SLOT_BYTES);
    phase->constants = constants;
    if (phase->scratch_bytes > AT_MAX_SCRATCH)
        at_fail(t->err, ATTUNE_INVALID_IR, "kernel @%s needs %llu bytes of scratch", t->kernel->name,
                (unsigned long long)phase->scratch_bytes);
}

/* ---- Sizes ---- */

typedef struct sizes_draft {
    vm_size_list list;
    vm_size *sizes;
    uint32_t *num_factors;
    uint64_t *units;
    uint32_t count, num_sizes;
} sizes_draft;

static void add_size(vm_translator *t, sizes_draft *d, const ir_expr *x) {
    d->sizes[d->num_sizes++] = vm_size_of(t, &d->list, x);
    d->num_factors[d->count]++;
}

static void translate_sizes(vm_translator *t, sizes_draft *d) {
    const ir_kernel *kernel = t->kernel;
    const uint32_t most = kernel->num_phases + kernel->num_shared + 1;
    d->sizes = at_arena_alloc(t->arena, most * (size_t)IR_MAX_LOOPS * sizeof *d->sizes);
    d->num_factors = at_arena_alloc(t->arena, most * sizeof *d->num_factors);
    d->units = at_arena_alloc(t->arena, most * sizeof *d->units);
    if (!d->sizes || !d->num_factors || !d->units) {
        at_fail_memory(t->err, most * sizeof *d->sizes);
        return;
    }
    memset(d->num_factors, 0, most * sizeof *d->num_factors);
    for (const ir_phase *phase = kernel->phases; phase; phase = phase->next) {
        for (int l = 0; l < phase->num_loops; l++) add_size(t, d, phase->loops[l].hi);
        d->units[d->count++] = 1;
    }
    for (uint32_t s = 0; s < kernel->num_shared; s++) {
        for (int i = 0; i < kernel->shared[s]->num_dims; i++) add_size(t, d, kernel->shared[s]->dims[i]);
        d->units[d->count++] = ir_elem_get((ir_elem)kernel->shared[s]->type.elem)->bytes;
    }
}

/* ---- The block ---- */

/* Adds up the bytes of all parts, and then copies them into one block. */
typedef struct block {
    char *memory; /* NULL: only counts */
    size_t bytes;
} block;

static void *put(block *b, const void *from, size_t bytes) {
    char *to = b->memory ? b->memory + b->bytes : NULL;
    if (to && bytes) memcpy(to, from, bytes);
    b->bytes += (bytes + 15) / 16 * 16;
    return to;
}

static at_vm_program *put_all(block *b, const ir_kernel *kernel, const draft *drafts, const sizes_draft *s) {
    at_vm_program *program = put(b, &(at_vm_program){0}, sizeof *program);
    at_vm_phase *phases = NULL;
    for (uint32_t p = 0; p < kernel->num_phases; p++) {
        at_vm_phase *phase = put(b, &drafts[p].phase, sizeof *phase);
        if (p == 0) phases = phase;
    }
    for (uint32_t p = 0; p < kernel->num_phases; p++) {
        at_vm_phase phase = drafts[p].phase;
        phase.constants = put(b, phase.constants, phase.constant_bytes);
        phase.scalars = put(b, phase.scalars, phase.num_scalars * sizeof *phase.scalars);
        phase.pointers = put(b, phase.pointers, phase.num_pointers * sizeof *phase.pointers);
        phase.entry = put(b, drafts[p].entry.ops, drafts[p].entry.count * sizeof *phase.entry);
        phase.task = put(b, drafts[p].task.ops, drafts[p].task.count * sizeof *phase.task);
        if (phases) phases[p] = phase;
    }
    const at_vm_program whole = {.num_phases = kernel->num_phases,
                                 .num_shared = kernel->num_shared,
                                 .phases = phases,
                                 .sizes = put(b, s->sizes, s->num_sizes * sizeof *s->sizes),
                                 .num_factors = put(b, s->num_factors, s->count * sizeof *s->num_factors),
                                 .units = put(b, s->units, s->count * sizeof *s->units),
                                 .size_ops = put(b, s->list.ops, s->list.count * sizeof *s->list.ops)};
    if (program) {
        *program = whole;
        program->bytes = b->bytes;
    }
    return program;
}

static attune_status translate(vm_translator *t, const attune_allocator *allocator, at_vm_program **program) {
    const size_t bytes = t->kernel->num_phases * sizeof(draft);
    draft *drafts = at_arena_alloc(t->arena, bytes);
    sizes_draft sizes = {0};
    if (!drafts) return at_fail_memory(t->err, bytes);
    memset(drafts, 0, bytes);
    uint32_t n = 0;
    for (const ir_phase *phase = t->kernel->phases; phase && !t->err->status; phase = phase->next)
        translate_phase(t, phase, &drafts[n++]);
    if (!t->err->status) translate_sizes(t, &sizes);
    if (t->arena->failed) return at_fail_memory(t->err, 0);
    if (t->err->status) return t->err->status;
    block b = {0};
    put_all(&b, t->kernel, drafts, &sizes);
    b.memory = at_alloc_aligned(allocator, b.bytes, 64);
    if (!b.memory) return at_fail_memory(t->err, b.bytes);
    b.bytes = 0;
    *program = put_all(&b, t->kernel, drafts, &sizes);
    return ATTUNE_OK;
}

attune_status at_vm_translate(const ir_kernel *kernel, const at_target *target, const attune_allocator *allocator,
                              at_vm_program **program, at_error *err) {
    at_arena arena;
    at_error own = {0};
    at_arena_init(&arena, allocator);
    vm_translator *t = at_arena_alloc(&arena, sizeof *t);
    *program = NULL;
    if (t) {
        memset(t, 0, sizeof *t);
        t->kernel = kernel;
        t->target = target;
        t->isa = isa_of(target);
        t->arena = &arena;
        t->err = &own;
        t->next_serial = 1;
        translate(t, allocator, program);
    } else {
        at_fail_memory(&own, sizeof *t);
    }
    at_arena_free(&arena);
    return own.status ? at_fail(err, own.status, "%s", own.message) : ATTUNE_OK;
}
