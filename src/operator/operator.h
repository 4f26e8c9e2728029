/* The table of operators: all questions that keys, caches and the runtime ask about a problem of any operator.
 *
 * In: a problem that its operator has made canonical, and a schedule. Out: the bytes of its key, text for people, and
 * loop IR. Here nothing knows files, threads or LLVM. attention.c has the row of all problems of attune_problem,
 * written.c that of kernels which a user wrote in loop IR, own.c those of the user's operators. */
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

/* AT_SCHEDULE_TEXT: a buffer that holds each operator's schedules as text. */
enum { AT_OPERATION_KEY_BYTES = MHA_KEY_BYTES, AT_SCHEDULE_TEXT = 1024 };

/* All functions get an at_operation of this operator. Only the operator knows the meaning of a schedule's numbers;
 * caches, kernels and the tuner only copy and compare them. */
struct at_operator {
    const char *name; /* begins every key: at most 63 bytes */
    bool keeps_ir;    /* an entry of the cache holds the loop IR, because no text of a problem leads to it */

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
    /* The type of most multiplications. */
    attune_dtype (*arithmetic)(at_operation operation, const mha_schedule *schedule, const at_target *target);
};

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

/* The canonical text of any text. Gives it to the string, which the caller frees in any case. */
attune_status at_written_read(const char *text, at_string *canonical, at_written *written, at_error *err);

extern const at_operator at_written_ir;

static inline at_operation at_written_of(const at_written *written) { return (at_operation){&at_written_ir, written}; }

#endif
