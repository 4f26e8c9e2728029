/* What a run of many functions gives, as text: two runs under different circumstances must give the same. */
#ifndef ATTUNE_TESTS_RECORD_H
#define ATTUNE_TESTS_RECORD_H

#include "support/calls.h"
#include "support/environments.h"

#include <attune.h>

enum { RECORD_BYTES = 1 << 20 };

typedef struct record {
    environment where;
    const char *dir; /* empty at first, the run's own */
    char *text;
    size_t length;
} record;

extern record *now; /* the one under way */

/* Runs a function that notes what it gets. The text is the caller's to free. */
void record_run(record *r, environment where, void (*run)(void));
/* The test fails with the first line in which two texts differ. */
void assert_same_record(const record *usual, const record *other);
/* Runs it in the default floating-point environment and in every other one. */
void compare_environments(void (*run)(void));

/* ---- Calls ---- */

void remember(const char *call);
bool was_called(const char *name); /* in this test program, by one of the macros below */

/* One call in the environment. */
#define CALL(call)                                                                                                     \
    do {                                                                                                               \
        remember(#call);                                                                                               \
        environment_enter(now->where);                                                                                 \
        call;                                                                                                          \
        environment_leave(now->where, #call);                                                                          \
    } while (0)

/* One that returns a status: what it says is noted. */
#define STATUS(call)                                                                                                   \
    do {                                                                                                               \
        attune_status status_;                                                                                         \
        CALL(status_ = call);                                                                                          \
        note("%.60s: %s %s\n", #call, attune_status_name(status_), status_ ? attune_last_message() : "");              \
    } while (0)

/* One that must succeed. */
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        attune_status status_;                                                                                         \
        CALL(status_ = call);                                                                                          \
        if (status_) fail_msg("%s under %s: %s", #call, environment_names[now->where], attune_last_message());         \
    } while (0)

/* ---- What they give ---- */

void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note_bytes(const char *what, const void *data, size_t bytes);
void note_double(const char *what, double value);
void note_kernel(const attune_kernel *kernel);
void note_outputs(const sample_call *call);
void note_emitted(attune_context *context, const attune_problem *problem, attune_stage stage);

/* Puts numbers that are smaller than the smallest normal one into the first quarter of each input of f32. */
void make_denormals(const sample_call *call);

/* With a disk cache in the record's folder. */
attune_context *record_context(attune_compile_mode mode);

#endif
