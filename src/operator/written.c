/* The row for kernels that a user wrote in loop IR. They have no schedule, as the text decides everything. */
#define XXH_INLINE_ALL
#include "operator/operator.h"

#include "ir/text.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const at_written *written_of(at_operation operation) { return operation.problem; }

attune_status at_written_read(const char *text, at_string *canonical, at_written *written, at_error *err) {
    at_arena arena;
    at_arena_init(&arena, canonical->allocator);
    const ir_kernel *const kernel = ir_parse(&arena, text, strlen(text), err);
    if (kernel) ir_print(kernel, canonical);
    at_arena_free(&arena);
    if (kernel && (canonical->failed || !canonical->data)) at_fail_memory(err, canonical->capacity);
    *written = (at_written){canonical->data, canonical->length};
    return err->status;
}

static uint8_t *put_u64(uint8_t *at, uint64_t value) {
    for (int i = 0; i < 8; i++) *at++ = (uint8_t)(value >> 8 * i);
    return at;
}

/* A text may be longer than a key can be, so the key has its length and two hashes of it, 256 bits. Cache files also
 * have the text, which is compared. */
static size_t key(at_operation o, uint8_t bytes[AT_OPERATION_KEY_BYTES]) {
    const at_written *w = written_of(o);
    uint8_t *at = put_u64(bytes, w->length);
    for (uint64_t seed = 0; seed < 2; seed++) {
        const XXH128_hash_t hash = XXH3_128bits_withSeed(w->text, w->length, seed);
        at = put_u64(put_u64(at, hash.low64), hash.high64);
    }
    return (size_t)(at - bytes);
}

static size_t print(at_operation o, char *text, size_t capacity) {
    const char *const name = written_of(o)->text + strlen("kernel ");
    return (size_t)snprintf(text, capacity, "%.*s", (int)strcspn(name, " "), name);
}

static const char *source(at_operation o) { return written_of(o)->text; }

static attune_status refuse_schedule(at_operation o, at_error *err) {
    char name[100];
    print(o, name, sizeof name);
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is written in loop IR, which has no schedule", name);
}

static attune_status schedule_check(at_operation o, const mha_schedule *schedule, const at_target *target,
                                    at_error *err) {
    (void)schedule;
    (void)target;
    return refuse_schedule(o, err);
}

static void schedule_choose(at_operation o, const at_target *target, const at_description *machine,
                            mha_schedule *schedule) {
    (void)o;
    (void)target;
    (void)machine;
    (void)schedule;
}

static attune_status schedule_parse(at_operation o, const char *text, mha_schedule *schedule, at_error *err) {
    (void)schedule;
    return *text ? refuse_schedule(o, err) : ATTUNE_OK;
}

static size_t schedule_print(at_operation o, const mha_schedule *schedule, char *text, size_t capacity) {
    (void)o;
    (void)schedule;
    if (capacity) *text = '\0';
    return 0;
}

static ir_kernel *build(at_arena *arena, at_operation o, const mha_schedule *schedule, const at_target *target,
                        at_error *err) {
    const at_written *w = written_of(o);
    (void)schedule;
    (void)target;
    return ir_parse(arena, w->text, w->length, err);
}

static attune_dtype arithmetic(at_operation o, const mha_schedule *schedule, const at_target *target) {
    (void)o;
    (void)schedule;
    (void)target;
    return ATTUNE_F32;
}

const at_operator at_written_ir = {.name = "ir", .keeps_ir = true, AT_OPERATOR_FUNCTIONS};
