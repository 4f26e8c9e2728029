/* The table of operators: what keys, caches and the runtime need to know of a problem of any operator.
 *
 * In: a canonical problem, and a schedule. Out: the bytes of its key, text for people, and loop IR. Nothing here uses
 * files, threads or LLVM. attention.c has the row for all problems of attune_problem, written.c that for kernels that a
 * user wrote in loop IR, own.c those of users' operators. */
#ifndef ATTUNE_OPERATOR_OPERATOR_H
#define ATTUNE_OPERATOR_OPERATOR_H

#include "ir/ir.h"
#include "problem/mha.h"
#include "schedule/schedule_fields.h"
#include "target/description.h"
#include "target/target.h"

typedef struct at_operator at_operator;

/* One problem of an operator. It is passed by value and borrows the problem. */
typedef struct at_operation {
    const at_operator *op;
    const void *problem; /* canonical; of a type that the operator knows */
} at_operation;

/* AT_SCHEDULE_TEXT: a buffer large enough for the text of any operator's schedules. */
enum { AT_OPERATION_KEY_BYTES = MHA_KEY_BYTES, AT_SCHEDULE_TEXT = 1024 };

/* All functions get an at_operation of this operator. Only the operator interprets a schedule's numbers; caches,
 * kernels and the tuner copy and compare them. */
struct at_operator {
    const char *name; /* begins every key: at most 63 bytes */
    bool keeps_ir;    /* a cache file has the loop IR, as it cannot be rebuilt from the text of a problem */

    /* Everything that the kernel is specialised for; returns the number of bytes. */
    size_t (*key)(at_operation operation, uint8_t key[AT_OPERATION_KEY_BYTES]);
    /* One line for people; returns its length, as snprintf does. */
    size_t (*print)(at_operation operation, char *text, size_t capacity);
    /* The loop IR, if the problem is just that; else NULL. */
    const char *(*source)(at_operation operation);

    attune_status (*schedule_check)(at_operation operation, const mha_schedule *schedule, const at_target *target,
                                    at_error *err);
    void (*schedule_choose)(at_operation operation, const at_target *target, const at_description *machine,
                            mha_schedule *schedule);
    attune_status (*schedule_parse)(at_operation operation, const char *text, mha_schedule *schedule, at_error *err);
    size_t (*schedule_print)(at_operation operation, const mha_schedule *schedule, char *text, size_t capacity);

    /* Scheduled IR, or NULL with *err filled. */
    ir_kernel *(*build)(at_arena *arena, at_operation operation, const mha_schedule *schedule, const at_target *target,
                        at_error *err);
    /* The element type of most multiplications. */
    attune_dtype (*arithmetic)(at_operation operation, const mha_schedule *schedule, const at_target *target);
};

/* A row's functions, those of its file by the members' names. */
#define AT_OPERATOR_FUNCTIONS                                                                                          \
    .key = key, .print = print, .source = source, .schedule_check = schedule_check,                                    \
    .schedule_choose = schedule_choose, .schedule_parse = schedule_parse, .schedule_print = schedule_print,            \
    .build = build, .arithmetic = arithmetic

/* Attention, probabilities, rotary, merge and the block. */
extern const at_operator at_attention;

static inline at_operation at_attention_of(const attune_problem *canonical) {
    return (at_operation){&at_attention, canonical};
}

/* A kernel that a user wrote: its canonical text, as ir_print gives it. */
typedef struct at_written {
    const char *text;
    size_t length;
} at_written;

/* Writes the canonical form of a text to the string, which the caller frees in any case. */
attune_status at_written_read(const char *text, at_string *canonical, at_written *written, at_error *err);

extern const at_operator at_written_ir;

static inline at_operation at_written_of(const at_written *written) { return (at_operation){&at_written_ir, written}; }

#endif
