/* The floating-point environment in which attune computes, prints and parses: the default one, whatever the caller's
 * is. Every public function that does any of these begins with AT_DEFAULT_FPENV. So does every function of attune's
 * that a host calls on a thread of its own: ranges and helpers of runners. Threads that attune starts inherit the
 * environment from the function that starts them; a worker begins with that of a new program.
 *
 * The default: round to nearest even, denormals are numbers, exceptions are masked. x86-64 has it twice, since printf,
 * strtod and fegetround look at the control word of the x87. */
#ifndef ATTUNE_BASE_FPENV_H
#define ATTUNE_BASE_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

typedef struct at_fpenv {
    uint32_t mxcsr;
    uint16_t control;  /* of the x87 */
    uint32_t whole[7]; /* of the x87, as fnstenv writes it; only if `control` is not the default */
} at_fpenv;

enum { AT_DEFAULT_MXCSR = 0x1f80, AT_DEFAULT_X87 = 0x37f };

/* Writing a register takes longer than testing whether it must be written. The low bits of MXCSR are status flags only.
 */
static inline void at_fpenv_enter(at_fpenv *saved) {
    const uint16_t control = AT_DEFAULT_X87;
    saved->mxcsr = _mm_getcsr();
    if ((saved->mxcsr & ~(uint32_t)_MM_EXCEPT_MASK) != AT_DEFAULT_MXCSR) _mm_setcsr(AT_DEFAULT_MXCSR);
    __asm__ volatile("fnstcw %0" : "=m"(saved->control));
    if (__builtin_expect(saved->control != AT_DEFAULT_X87, 0))
        __asm__ volatile("fnstenv %0\n\tfldcw %1" : "=m"(saved->whole) : "m"(control));
}

/* The flags of the x87 come back too where exceptions may be unmasked: a flag of attune's would be a signal there. */
static inline void at_fpenv_leave(const at_fpenv *saved) {
    if (__builtin_expect(saved->control != AT_DEFAULT_X87, 0)) __asm__ volatile("fldenv %0" : : "m"(saved->whole));
    if (_mm_getcsr() != saved->mxcsr) _mm_setcsr(saved->mxcsr);
}
#elif defined(__aarch64__)
typedef struct at_fpenv {
    uint64_t fpcr, fpsr;
} at_fpenv;

static inline void at_fpenv_enter(at_fpenv *saved) {
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(saved->fpcr), "=r"(saved->fpsr) : : "memory");
    if (saved->fpcr) __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
}

static inline void at_fpenv_leave(const at_fpenv *saved) {
    if (saved->fpcr) __asm__ volatile("msr fpcr, %0" : : "r"(saved->fpcr) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(saved->fpsr) : "memory");
}
#else
#error "attune does not know the floating-point control register of this architecture"
#endif

/* For the rest of the block the environment is the default one. Then, on every way out, it is the caller's again, with
 * the exception flags that were set there and no others. */
#define AT_DEFAULT_FPENV                                                                                               \
    __attribute__((cleanup(at_fpenv_leave), unused)) at_fpenv at_callers_fpenv;                                        \
    at_fpenv_enter(&at_callers_fpenv)

#endif
