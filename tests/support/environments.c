#define _GNU_SOURCE
#include "support/environments.h"

#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

const char *const environment_names[NUM_ENVIRONMENTS] = {"the default", "downward", "upward", "flush to zero", "traps"};

/* Control and flags; of the x87, too. */
typedef struct registers {
    uint64_t control, flags, x87;
} registers;

static _Thread_local registers expected;

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FLUSH = 0x8040, MASKS = 0x1f80, FLAGS = 0x3f, X87_DEFAULT = 0x37f, X87_MASKS = 0x3f };

static registers read_registers(void) {
    uint16_t control, status;
    __asm__ volatile("fnstcw %0\n\tfnstsw %1" : "=m"(control), "=m"(status));
    const uint32_t mxcsr = _mm_getcsr();
    return (registers){mxcsr & ~(uint32_t)FLAGS, mxcsr & FLAGS, (uint64_t)control << 16 | status};
}

static void set_flush(void) { _mm_setcsr(_mm_getcsr() | FLUSH); }

/* Of the x87 as well, with the flags down: one that is up would be a signal at once. */
static void set_traps(void) {
    const uint16_t control = X87_DEFAULT & ~X87_MASKS;
    __asm__ volatile("fnclex\n\tfldcw %0" : : "m"(control));
    _mm_setcsr(0);
}
#else
enum { FLUSH = 1 << 24, TRAPS = 0x9f00 };

static uint64_t read_control(void) {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}

static void write_control(uint64_t control) { __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory"); }

static registers read_registers(void) {
    uint64_t flags;
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags));
    return (registers){read_control(), flags, 0};
}

static void set_flush(void) { write_control(read_control() | FLUSH); }

/* A CPU without them reads zeros. */
static void set_traps(void) { write_control(read_control() | TRAPS); }
#endif

void environment_enter(environment which) {
    fesetenv(FE_DFL_ENV);
    feclearexcept(FE_ALL_EXCEPT);
    if (which != ENV_TRAPS) feraiseexcept(FE_DIVBYZERO);
    if (which == ENV_DOWNWARD) fesetround(FE_DOWNWARD);
    if (which == ENV_UPWARD) fesetround(FE_UPWARD);
    if (which == ENV_FLUSH) set_flush();
    if (which == ENV_TRAPS) set_traps();
    expected = read_registers();
}

void environment_leave(environment which, const char *what) {
    const registers found = read_registers();
    fesetenv(FE_DFL_ENV);
    if (memcmp(&found, &expected, sizeof found))
        fail_msg("%s under %s: control %llx, flags %llx, x87 %llx became %llx, %llx, %llx", what,
                 environment_names[which], (unsigned long long)expected.control, (unsigned long long)expected.flags,
                 (unsigned long long)expected.x87, (unsigned long long)found.control, (unsigned long long)found.flags,
                 (unsigned long long)found.x87);
}
