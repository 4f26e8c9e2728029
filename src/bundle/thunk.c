/* The machine code that attune writes by hand: landing pads, and jumps. */
#include "bundle/bundle.h"

#include <elf.h>
#include <string.h>

/* ---- x86-64 ---- */

static const unsigned char endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
enum { JUMP = 0xe9 };

/* lea ADDRESS(%rip), %REGISTER: rdi, rsi, rdx, rcx, r8, r9. */
static const unsigned char load_address[6][3] = {{0x48, 0x8d, 0x3d}, {0x48, 0x8d, 0x35}, {0x48, 0x8d, 0x15},
                                                 {0x48, 0x8d, 0x0d}, {0x4c, 0x8d, 0x05}, {0x4c, 0x8d, 0x0d}};

static uint64_t jump_x86(at_object *o, uint32_t text, uint64_t offset) {
    unsigned char code[AT_THUNK_BYTES];
    memset(code, 0xcc, sizeof code);
    const uint64_t at = at_object_append(o, text, NULL, 0, AT_THUNK_BYTES);
    const int32_t distance = (int32_t)((int64_t)offset - (int64_t)(at + sizeof endbr64 + 5));
    memcpy(code, endbr64, sizeof endbr64);
    code[sizeof endbr64] = JUMP;
    memcpy(code + sizeof endbr64 + 1, &distance, sizeof distance);
    return at_object_append(o, text, code, sizeof code, AT_THUNK_BYTES);
}

static uint64_t call_x86(at_object *o, uint32_t text, int number, uint32_t value, uint32_t function) {
    unsigned char code[AT_THUNK_BYTES];
    size_t n = sizeof endbr64;
    memset(code, 0xcc, sizeof code);
    const uint64_t at = at_object_append(o, text, NULL, 0, AT_THUNK_BYTES);
    memcpy(code, endbr64, sizeof endbr64);
    if (number >= 0) {
        memcpy(code + n, load_address[number], 3);
        memset(code + n + 3, 0, 4);
        at_object_relocate(o, text, at + n + 3, R_X86_64_PC32, value, -4);
        n += 7;
    }
    code[n] = JUMP;
    memset(code + n + 1, 0, 4);
    at_object_relocate(o, text, at + n + 1, R_X86_64_PLT32, function, -4);
    return at_object_append(o, text, code, sizeof code, AT_THUNK_BYTES);
}

/* ---- AArch64 ---- */

enum { BTI_C = 0xd503245f, UDF = 0 };
static const uint32_t BRANCH = 0x14000000, ADRP = 0x90000000, ADD = 0x91000000;

static uint64_t jump_arm(at_object *o, uint32_t text, uint64_t offset) {
    const uint64_t at = at_object_append(o, text, NULL, 0, AT_THUNK_BYTES);
    const int64_t words = ((int64_t)offset - (int64_t)(at + 4)) / 4;
    const uint32_t code[4] = {BTI_C, BRANCH | ((uint32_t)words & 0x3ffffff), UDF, UDF};
    return at_object_append(o, text, code, sizeof code, AT_THUNK_BYTES);
}

static uint64_t call_arm(at_object *o, uint32_t text, int number, uint32_t value, uint32_t function) {
    const uint64_t at = at_object_append(o, text, NULL, 0, AT_THUNK_BYTES);
    uint32_t code[4] = {BTI_C, BRANCH, UDF, UDF};
    if (number >= 0) {
        const uint32_t reg = (uint32_t)number;
        code[1] = ADRP | reg;
        code[2] = ADD | reg << 5 | reg;
        code[3] = BRANCH;
        at_object_relocate(o, text, at + 4, R_AARCH64_ADR_PREL_PG_HI21, value, 0);
        at_object_relocate(o, text, at + 8, R_AARCH64_ADD_ABS_LO12_NC, value, 0);
    }
    at_object_relocate(o, text, at + (number >= 0 ? 12 : 4), R_AARCH64_JUMP26, function, 0);
    return at_object_append(o, text, code, sizeof code, AT_THUNK_BYTES);
}

uint64_t at_thunk_jump(at_object *o, uint32_t text, uint64_t offset) {
    return o->machine == EM_AARCH64 ? jump_arm(o, text, offset) : jump_x86(o, text, offset);
}

uint64_t at_thunk_call(at_object *o, uint32_t text, int number, uint32_t value, uint32_t function) {
    return o->machine == EM_AARCH64 ? call_arm(o, text, number, value, function)
                                    : call_x86(o, text, number, value, function);
}
