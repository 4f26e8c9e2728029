/* A case runs by machine code and by the interpreter on the same inputs: their bits must be the same, and both must be
 * near the reference. */
#define _GNU_SOURCE
#include "check/check_case.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

attune_context *check_context(check_machine *machine, uint32_t isa, uint32_t threads) {
    attune_context **const slot = &machine->contexts[isa][threads - 1];
    const tool_common common = {.isa = machine->isas[isa]};
    if (!*slot) *slot = tool_open_context(&common, threads, "");
    return *slot;
}

void check_close(check_machine *machine) {
    for (uint32_t isa = 0; isa < machine->num_isas; isa++)
        for (uint32_t threads = 0; threads < CHECK_MAX_THREADS; threads++)
            attune_context_destroy(machine->contexts[isa][threads]);
}

/* ---- The caller's floating-point mode ---- */

#if defined(__x86_64__)
enum { FLUSH_MODE = 0x8040 }; /* FTZ and DAZ */
static unsigned get_mode(void) { return _mm_getcsr() & ~0x3fu; /* without the sticky flags */ }
static void set_mode(unsigned mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
enum { FLUSH_MODE = 1 << 24 }; /* FPCR.FZ */
static unsigned get_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (unsigned)mode;
}
static void set_mode(unsigned mode) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode)); }
#else
enum { FLUSH_MODE = 0 };
static unsigned get_mode(void) { return 0; }
static void set_mode(unsigned mode) { (void)mode; }
#endif

/* ---- Running ---- */

/* Two runs of one case: `jit` owns everything, `interp` shares its inputs. */
typedef struct case_data {
    tensors jit, interp;
    ref_result wanted, plain; /* empty where the data is beyond the reference */
} case_data;

static void free_data(case_data *d) {
    ref_result_free(&d->wanted);
    ref_result_free(&d->plain);
    tensors_free(&d->interp);
    tensors_free(&d->jit);
}

/* Scores that overflow the arithmetic have no reference in a wider one: only bits are compared there. */
static bool has_reference(const check_case *c) { return c->inputs != INPUT_OVERFLOW; }

static bool create_data(case_data *d, const check_case *c) {
    *d = (case_data){.jit = {.count = 0}};
    if (!tensors_create_sized(&d->jit, &c->problem, &c->sizes) || !tensors_fill(&d->jit, c->inputs, c->seed))
        return false;
    tensors_clear_outputs(&d->jit);
    return tensors_share(&d->interp, &d->jit);
}

/* Reads the interpreter's tensors before it runs, because caches that are appended to are inputs, too. Machine code has
 * run before, so the library has checked the call, and its caches are known. */
static bool run_references(const check_case *c, case_data *d, char *reason) {
    attune_tensor list[REF_MAX_TENSORS];
    ref_call call = tensors_call(&d->interp, list);
    check_take_caches(&call, &d->jit);
    if (!has_reference(c) || (ref_compute(&call, &d->wanted) && ref_compute_plain(&call, &d->plain))) return true;
    snprintf(reason, ATTUNE_MESSAGE_BYTES, "out of memory for the reference");
    return false;
}

static check_outcome run_jit(check_machine *machine, const check_case *c, const char *schedule, const tensors *t,
                             char *reason) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    attune_kernel *kernel = NULL;
    if (!context || attune_compile(context, &c->problem, schedule, &kernel) != ATTUNE_OK) {
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "compiling failed: %.480s", attune_last_message());
        return CHECK_NOT_COMPILED;
    }
    const unsigned before = get_mode(), mode = c->ftz ? before | FLUSH_MODE : before;
    set_mode(mode);
    const attune_status status = tensors_run(t, context, kernel, NULL, ATTUNE_ENGINE_JIT);
    const unsigned after = get_mode();
    set_mode(before);
    attune_kernel_release(kernel);
    if (status != ATTUNE_OK) {
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "running failed: %.480s", attune_last_message());
        return CHECK_NOT_RUN;
    }
    if (after == mode) return CHECK_PASSED;
    snprintf(reason, ATTUNE_MESSAGE_BYTES, "the caller's floating-point mode was %#x and is %#x", mode, after);
    return CHECK_MODE_CHANGED;
}

static check_outcome run_interpreter(check_machine *machine, const check_case *c, const tensors *t, char *reason) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    if (context &&
        tensors_run(t, context, NULL, mha_schedule_text(&c->schedule).text, ATTUNE_ENGINE_INTERPRETER) == ATTUNE_OK)
        return CHECK_PASSED;
    snprintf(reason, ATTUNE_MESSAGE_BYTES, "the interpreter failed: %.480s", attune_last_message());
    return CHECK_NOT_INTERPRETED;
}

/* Runs a reproducible problem by the schedule that attune would choose, too: the bits must be the same. */
static check_outcome run_again(check_machine *machine, const check_case *c, const tensors *expected, char *reason) {
    char difference[DIFFERENCE_TEXT];
    tensors again;
    attune_context *const context = check_context(machine, c->isa, c->threads);
    if (!c->problem.reproducible) return CHECK_PASSED;
    if (!context || !tensors_create_sized(&again, &c->problem, &c->sizes)) {
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "no second run: %.480s", attune_last_message());
        return CHECK_NOT_CREATED;
    }
    check_outcome outcome = tensors_fill(&again, c->inputs, c->seed) ? CHECK_PASSED : CHECK_NOT_CREATED;
    tensors_clear_outputs(&again);
    if (!outcome) outcome = run_jit(machine, c, "", &again, reason);
    if (!outcome && !tensors_same_outputs(&again, expected, difference)) {
        outcome = CHECK_NOT_REPRODUCED;
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "reproducible=1, with the chosen schedule instead: %s", difference);
    }
    tensors_free(&again);
    return outcome;
}

static check_outcome run_all(check_machine *machine, const check_case *c, case_data *d, check_errors *errors,
                             char *reason) {
    char difference[DIFFERENCE_TEXT];
    check_outcome outcome = run_jit(machine, c, mha_schedule_text(&c->schedule).text, &d->jit, reason);
    if (!outcome && !run_references(c, d, reason)) outcome = CHECK_NOT_CREATED;
    if (!outcome) outcome = run_interpreter(machine, c, &d->interp, reason);
    if (outcome) return outcome;
    if (!tensors_same_outputs(&d->jit, &d->interp, difference)) {
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "%s and interpreter: %s",
                 *tool_vm_option() ? "virtual machine" : "machine code", difference);
        return CHECK_DIFFERENT_BITS;
    }
    if (has_reference(c) && !check_reference(&d->jit, &d->wanted, &d->plain, c->inputs, errors, reason))
        return CHECK_WRONG;
    return run_again(machine, c, &d->jit, reason);
}

check_outcome check_run(check_machine *machine, const check_case *c, check_errors *errors,
                        char reason[ATTUNE_MESSAGE_BYTES]) {
    case_data d;
    check_outcome outcome = CHECK_NOT_CREATED;
    if (create_data(&d, c))
        outcome = run_all(machine, c, &d, errors, reason);
    else
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "the tensors could not be made: %.440s", attune_last_message());
    free_data(&d);
    return outcome;
}

check_outcome check_measure(check_machine *machine, const check_case *c, check_errors *errors,
                            char reason[ATTUNE_MESSAGE_BYTES]) {
    case_data d;
    check_outcome outcome = CHECK_NOT_CREATED;
    snprintf(reason, ATTUNE_MESSAGE_BYTES, "the tensors could not be made: %.440s", attune_last_message());
    if (create_data(&d, c) && (outcome = run_jit(machine, c, NULL, &d.jit, reason)) == CHECK_PASSED) {
        if (!run_references(c, &d, reason))
            outcome = CHECK_NOT_CREATED;
        else if (!check_reference(&d.jit, &d.wanted, &d.plain, c->inputs, errors, reason))
            outcome = CHECK_WRONG;
    }
    free_data(&d);
    return outcome;
}

char *check_command(const check_machine *machine, const check_case *c) {
    char *const problem = problem_text(&c->problem);
    char *command = NULL, sizes[SIZES_TEXT];
    sizes_print(&c->sizes, sizes);
    const char *const quote = problem && strchr(problem, '"') ? "'" : ""; /* functions and tensors, for a shell */
    if (!problem ||
        asprintf(&command,
                 "attune-lab check %s%s%s%s%s --schedule=%s --isa=%s --threads=%u --inputs=%s%s%s --seed=%llu", quote,
                 problem, quote, *sizes ? " --sizes=" : "", sizes, mha_schedule_text(&c->schedule).text,
                 machine->isas[c->isa], c->threads, input_kind_name(c->inputs), c->ftz ? " --ftz" : "",
                 tool_vm_option(), (unsigned long long)c->seed) < 0)
        command = NULL;
    free(problem);
    return command;
}
