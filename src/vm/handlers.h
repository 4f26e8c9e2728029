/* The operations on whole registers, for one instruction set. The file of an instruction set defines these macros, and
 * includes this header once:
 *
 *   VM_ISA             the name of the table
 *   VM_TARGET          the attribute that enables the instructions in a function, or nothing
 *   VM_BYTES           of a register
 *   VM_FMA32, VM_FMA64, VM_SQRT32, VM_SQRT64; VM_RINT32, VM_RINT64, VM_LDEXP32, VM_LDEXP64 or not
 *   VM_WIDEN_F16, VM_NARROW_F16 or not
 *   VM_WIDEN_BYTES(from), VM_WIDEN_SIGNED_BYTES(from) to i32, or not
 *   VM_TRUNCATE32      f32 to i32, INT32_MIN if the value does not fit
 *   VM_PERMUTE4(x, y, picks) or not
 *   VM_LEAVE           run at the end, before code of other instruction sets (vzeroupper)
 *
 * Everything else uses the compiler's vector extensions. Macros with "or not" may be missing: then evaluators replace
 * them. */
#include "vm/program.h"

#include <string.h>

#define OP(name)         VM_TARGET static const vm_op *name(const vm_op *op, char *frame)
#define VECTOR(T, bytes) T __attribute__((vector_size(bytes), may_alias))

enum { LANES4 = VM_BYTES / 4, LANES8 = VM_BYTES / 8 };

typedef VECTOR(float, VM_BYTES) f32s;
typedef VECTOR(double, VM_BYTES) f64s;
typedef VECTOR(int32_t, VM_BYTES) i32s;
typedef VECTOR(uint32_t, VM_BYTES) u32s;
typedef VECTOR(int64_t, VM_BYTES) i64s;
typedef VECTOR(uint8_t, VM_BYTES) u8s;
typedef VECTOR(uint8_t, VM_BYTES / 4) bool4s; /* a bool for each 4-byte lane */
typedef VECTOR(uint8_t, VM_BYTES / 8) bool8s;
typedef VECTOR(int8_t, VM_BYTES / 4) i8s;
typedef VECTOR(uint16_t, VM_BYTES / 2) u16s;
typedef VECTOR(uint32_t, VM_BYTES / 2) half;
typedef VECTOR(uint32_t, VM_BYTES / 4) quarter;

#define OUT(T) VM_AT(T, op->out)
#define A(T)   VM_AT(T, op->a)
#define B(T)   VM_AT(T, op->b)
#define C(T)   VM_AT(T, op->c)

/* ---- Arithmetic ---- */

#define UNARY(name, T, EXPR)                                                                                           \
    OP(name) {                                                                                                         \
        const T x = A(T);                                                                                              \
        OUT(T) = EXPR;                                                                                                 \
        VM_NEXT;                                                                                                       \
    }
#define BINARY(name, T, EXPR)                                                                                          \
    OP(name) {                                                                                                         \
        const T x = A(T), y = B(T);                                                                                    \
        OUT(T) = EXPR;                                                                                                 \
        VM_NEXT;                                                                                                       \
    }
#define COMPARE(name, T, BOOL, SYMBOL)                                                                                 \
    OP(name) {                                                                                                         \
        OUT(BOOL) = __builtin_convertvector(A(T) SYMBOL B(T), BOOL) & 1;                                               \
        VM_NEXT;                                                                                                       \
    }

/* Selects lanes of x or y by masks of all ones or zeros. */
#define PICK(T, MASK, which, x, y) (T)(((MASK)(x) & (which)) | ((MASK)(y) & ~(which)))

/* clang-format off */
#define COMPARISONS(name, T, BOOL)                                                                                     \
    COMPARE(name##_eq, T, BOOL, ==) COMPARE(name##_ne, T, BOOL, !=) COMPARE(name##_lt, T, BOOL, <)                     \
    COMPARE(name##_le, T, BOOL, <=) COMPARE(name##_gt, T, BOOL, >) COMPARE(name##_ge, T, BOOL, >=)
#define FLOATS(name, T, MASK, BOOL, SIGN, FMA, SQRT)                                                                   \
    BINARY(name##_add, T, x + y) BINARY(name##_sub, T, x - y) BINARY(name##_mul, T, x * y) BINARY(name##_div, T, x / y)\
    BINARY(name##_min, T, PICK(T, MASK, (MASK)(x < y), x, y))                                                          \
    BINARY(name##_max, T, PICK(T, MASK, (MASK)(x > y), x, y))                                                          \
    UNARY(name##_neg, T, (T)((MASK)x ^ (SIGN))) UNARY(name##_abs, T, (T)((MASK)x & ~(SIGN)))                           \
    UNARY(name##_sqrt, T, SQRT(x))                                                                                     \
    COMPARISONS(name, T, BOOL)
/* clang-format on */

FLOATS(f32, f32s, i32s, bool4s, INT32_MIN, , VM_SQRT32)
FLOATS(f64, f64s, i64s, bool8s, INT64_MIN, , VM_SQRT64)

#define SELECT(name, T, BOOL)                                                                                          \
    OP(name) {                                                                                                         \
        const T which = -__builtin_convertvector(A(BOOL), T);                                                          \
        OUT(T) = PICK(T, T, which, B(T), C(T));                                                                        \
        VM_NEXT;                                                                                                       \
    }
SELECT(select4, i32s, bool4s)
SELECT(select8, i64s, bool8s)

#if defined(VM_FMA32)
OP(f32_fma) {
    OUT(f32s) = (f32s)VM_FMA32(A(f32s), B(f32s), C(f32s));
    VM_NEXT;
}
OP(f64_fma) {
    OUT(f64s) = (f64s)VM_FMA64(A(f64s), B(f64s), C(f64s));
    VM_NEXT;
}
#endif

#if defined(VM_RINT32)
UNARY(f32_rint, f32s, (f32s)VM_RINT32(x))
UNARY(f64_rint, f64s, (f64s)VM_RINT64(x))
#endif

#if defined(VM_LDEXP32)
BINARY(f32_ldexp, f32s, (f32s)VM_LDEXP32(x, y))
BINARY(f64_ldexp, f64s, (f64s)VM_LDEXP64(x, y))
#endif

BINARY(i32_add, u32s, x + y)
BINARY(i32_sub, u32s, x - y)
BINARY(i32_mul, u32s, x *y)
BINARY(i32_and, u32s, x &y)
BINARY(i32_or, u32s, x | y)
BINARY(i32_xor, u32s, x ^ y)
BINARY(i32_shl, u32s, x << (y & 31))
BINARY(i32_shr, i32s, x >> (y & 31))
BINARY(i32_min, i32s, PICK(i32s, i32s, x < y, x, y))
BINARY(i32_max, i32s, PICK(i32s, i32s, x > y, x, y))
UNARY(i32_neg, u32s, 0 - x)
UNARY(i32_not, u32s, ~x)
COMPARISONS(i32, i32s, bool4s)

BINARY(bool_and, u8s, x &y)
BINARY(bool_or, u8s, x | y)
BINARY(bool_xor, u8s, x ^ y)
UNARY(bool_not, u8s, x ^ 1)

/* ---- Splats ---- */

OP(splat1) {
    memset(frame + op->out, VM_AT(uint8_t, op->a), VM_SLOT_BYTES);
    VM_NEXT;
}

OP(splat4) {
    OUT(u32s) = (u32s){0} + VM_AT(uint32_t, op->a);
    VM_NEXT;
}

OP(splat8) {
    OUT(i64s) = (i64s){0} + VM_AT(int64_t, op->a);
    VM_NEXT;
}

OP(int_to_i32) {
    OUT(u32s) = (u32s){0} + (uint32_t)VM_AT(int64_t, op->a);
    VM_NEXT;
}

/* ---- Memory ---- */

typedef uint32_t __attribute__((may_alias, aligned(1))) any4;
typedef uint64_t __attribute__((may_alias, aligned(1))) any8;

OP(load_splat4) {
    OUT(u32s) = (u32s){0} + *(const any4 *)vm_address(op, frame);
    VM_NEXT;
}

OP(load_splat8) {
    OUT(i64s) = (i64s){0} + (int64_t)*(const any8 *)vm_address(op, frame);
    VM_NEXT;
}

OP(load) {
    u8s x;
    memcpy(&x, vm_address(op, frame), sizeof x);
    OUT(u8s) = x;
    VM_NEXT;
}

OP(store) {
    const u8s x = OUT(u8s);
    memcpy(vm_address(op, frame), &x, sizeof x);
    VM_NEXT;
}

#define LOAD_LOW(name, T, type)                                                                                        \
    OP(name) {                                                                                                         \
        type part;                                                                                                     \
        memcpy(&part, vm_address(op, frame), sizeof part);                                                             \
        T x = {0};                                                                                                     \
        memcpy(&x, &part, sizeof part);                                                                                \
        OUT(T) = x;                                                                                                    \
        VM_NEXT;                                                                                                       \
    }
LOAD_LOW(load_half, u32s, half)
#if VM_BYTES > 32
LOAD_LOW(load_quarter, u32s, quarter)
#endif

#if !defined(VM_LOAD_MASKED4)
OP(load_masked4) {
    const char *address = vm_address(op, frame);
    const uint8_t *mask = &VM_AT(uint8_t, op->c);
    u32s out = {0};
    for (int l = 0; l < op->e; l++)
        if (mask[l]) out[l] = ((const any4 *)address)[l];
    OUT(u32s) = out;
    VM_NEXT;
}

OP(store_masked4) {
    char *address = vm_address(op, frame);
    const uint8_t *mask = &VM_AT(uint8_t, op->c);
    for (int l = 0; l < op->e; l++)
        if (mask[l]) ((any4 *)address)[l] = (&VM_AT(any4, op->out))[l];
    VM_NEXT;
}
#else
OP(load_masked4) {
    OUT(u32s) = (u32s)VM_LOAD_MASKED4(vm_address(op, frame), C(bool4s), op->e);
    VM_NEXT;
}

OP(store_masked4) {
    VM_STORE_MASKED4(vm_address(op, frame), C(bool4s), op->e, OUT(u32s));
    VM_NEXT;
}
#endif

#if defined(VM_PERMUTE4)
OP(permute4) {
    OUT(u32s) = (u32s)VM_PERMUTE4(A(i32s), B(i32s), C(i32s));
    VM_NEXT;
}

/* The lane numbers of the second permutation are at d. */
OP(permute_add) {
    const i32s x = A(i32s), y = B(i32s);
    OUT(f32s) = (f32s)VM_PERMUTE4(x, y, C(i32s)) + (f32s)VM_PERMUTE4(x, y, VM_AT(i32s, op->d));
    VM_NEXT;
}

OP(permute_max) {
    const i32s a = A(i32s), b = B(i32s);
    const f32s x = (f32s)VM_PERMUTE4(a, b, C(i32s)), y = (f32s)VM_PERMUTE4(a, b, VM_AT(i32s, op->d));
    OUT(f32s) = PICK(f32s, i32s, (i32s)(x > y), x, y);
    VM_NEXT;
}
#endif

/* ---- Casts ---- */

OP(bf16_to_f32) {
    OUT(u32s) = __builtin_convertvector(A(u16s), u32s) << 16;
    VM_NEXT;
}

/* From memory of any alignment. */
VM_TARGET static inline f32s widen_bf16(const char *from) {
    u16s x;
    memcpy(&x, from, sizeof x);
    return (f32s)(__builtin_convertvector(x, u32s) << 16);
}

OP(load_bf16) {
    OUT(f32s) = widen_bf16(vm_address(op, frame));
    VM_NEXT;
}

#if !defined(VM_WIDEN_BYTES)
VM_TARGET static inline i32s widen_signed_bytes(const char *from) {
    i8s x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, i32s);
}
#define VM_WIDEN_SIGNED_BYTES(from) widen_signed_bytes(from)
#define VM_WIDEN_BYTES(from)        (widen_signed_bytes(from) & 0xff)
#endif

VM_TARGET static inline f32s widen_i8(const char *from) {
    return __builtin_convertvector((i32s)VM_WIDEN_SIGNED_BYTES(from), f32s);
}

/* The exponent's bias is 7. If the exponent bits are 0, the value is the mantissa times 2^-9; all ones are NaN. */
VM_TARGET static inline f32s widen_f8(const char *from) {
    const i32s code = (i32s)VM_WIDEN_BYTES(from), magnitude = code & 0x7f;
    const i32s normal = (magnitude << 20) + ((127 - 7) << 23);
    const i32s small = (i32s)(__builtin_convertvector(magnitude, f32s) * 0x1p-9f);
    const i32s number = PICK(i32s, i32s, magnitude < 8, small, normal);
    const i32s nan = (i32s){0} + 0x7fc00000;
    return (f32s)(PICK(i32s, i32s, magnitude == 0x7f, nan, number) | (i32s)((u32s)(code & 0x80) << 24));
}

OP(load_i8) {
    OUT(f32s) = widen_i8(vm_address(op, frame));
    VM_NEXT;
}

OP(load_f8) {
    OUT(f32s) = widen_f8(vm_address(op, frame));
    VM_NEXT;
}

OP(f32_to_bf16) {
    const u32s bits = A(u32s);
    const f32s x = A(f32s);
    const i32s is_nan = x != x;
    const i32s quiet = (i32s)(bits >> 16 | 0x40), rounded = (i32s)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    OUT(u16s) = __builtin_convertvector((u32s)PICK(i32s, i32s, is_nan, quiet, rounded), u16s);
    VM_NEXT;
}

#if defined(VM_WIDEN_F16)
OP(f16_to_f32) {
    OUT(f32s) = (f32s)VM_WIDEN_F16(frame + op->a);
    VM_NEXT;
}

VM_TARGET static inline f32s widen_f16(const char *from) { return (f32s)VM_WIDEN_F16(from); }

OP(load_f16) {
    OUT(f32s) = widen_f16(vm_address(op, frame));
    VM_NEXT;
}

OP(f32_to_f16) {
    VM_NARROW_F16(frame + op->out, A(f32s));
    VM_NEXT;
}
#endif

OP(i8_to_f32) {
    OUT(f32s) = widen_i8(frame + op->a);
    VM_NEXT;
}

OP(f8_to_f32) {
    OUT(f32s) = widen_f8(frame + op->a);
    VM_NEXT;
}

OP(i8_to_i32) {
    OUT(i32s) = (i32s)VM_WIDEN_SIGNED_BYTES(frame + op->a);
    VM_NEXT;
}

OP(f32_to_i32) {
    OUT(i32s) = (i32s)VM_TRUNCATE32(A(f32s));
    VM_NEXT;
}

OP(i32_to_f32) {
    OUT(f32s) = __builtin_convertvector(A(i32s), f32s);
    VM_NEXT;
}

/* ---- Tiles of sums ----
 *
 * sum[r][c] += row[r] * column[c], in registers, for the iterations of a loop. An iteration has one or more parts, each
 * with its own rows and columns. Operands are in several consecutive operations:
 *
 *     first     out: place of sum[0][0];  d, e: distances between rows, columns of it;  a, b, imm: loop from a to
 *               before b by imm
 *     second    e: number of parts;  b, c: places of the strides in bytes of rows, columns from iteration to iteration
 *     then      for each part, its rows and its columns: an address each, or with e a place in the frame */

static inline int64_t turns_of(const vm_op *op, const char *frame) {
    const int64_t lo = *(const int64_t *)(frame + op->a), hi = *(const int64_t *)(frame + op->b);
    return lo < hi ? (int64_t)(((uint64_t)hi - (uint64_t)lo + (uint64_t)op->u.imm - 1) / (uint64_t)op->u.imm) : 0;
}

static inline uint32_t find_addresses(const vm_op *op, const char *frame, uint32_t count, const char **to) {
    for (uint32_t i = 0; i < count; i++) to[i] = op[i].e ? frame + op[i].a : vm_address(op + i, frame);
    return count;
}

#if defined(VM_FMA32)
#define MULTIPLY_ADD(x, y, sum) (f32s) VM_FMA32(x, y, sum)
#else
#define MULTIPLY_ADD(x, y, sum) ((f32s)(x) * (f32s)(y) + (f32s)(sum))
#endif

VM_TARGET static inline f32s load_register(const char *from) {
    f32s x;
    memcpy(&x, from, sizeof x);
    return x;
}

VM_TARGET static inline f32s load_number(const char *from) { return (f32s)((u32s){0} + *(const any4 *)from); }

#define TILE(name, attribute, LOAD_ROW, LOAD_COLUMN, PRODUCT, ROWS, COLUMNS)                                           \
    attribute static const vm_op *name(const vm_op *op, char *frame) {                                                 \
        const char *addresses[VM_TILE_POINTERS];                                                                       \
        const uint32_t parts = (uint32_t)op[1].e;                                                                      \
        const uint32_t count = find_addresses(op + 2, frame, parts * (ROWS + COLUMNS), addresses);                     \
        const int64_t row_step = VM_AT(int64_t, op[1].b), column_step = VM_AT(int64_t, op[1].c);                       \
        int64_t row_at = 0, column_at = 0;                                                                             \
        f32s sum[ROWS][COLUMNS];                                                                                       \
        _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)                                                         \
            _Pragma("GCC unroll 4") for (int c = 0; c < COLUMNS; c++) sum[r][c] =                                      \
                VM_AT(f32s, op->out + r * op->d + c * op->e);                                                          \
        for (int64_t left = turns_of(op, frame); left > 0; left--) {                                                   \
            const char *const *at = addresses;                                                                         \
            for (uint32_t part = 0; part < parts; part++, at += ROWS + COLUMNS) {                                      \
                f32s column[COLUMNS];                                                                                  \
                _Pragma("GCC unroll 4") for (int c = 0; c < COLUMNS; c++) column[c] =                                  \
                    LOAD_COLUMN(at[ROWS + c] + column_at);                                                             \
                _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++) {                                               \
                    const f32s row = LOAD_ROW(at[r] + row_at);                                                         \
                    _Pragma("GCC unroll 4") for (int c = 0; c < COLUMNS; c++) sum[r][c] =                              \
                        PRODUCT(row, column[c], sum[r][c]);                                                            \
                }                                                                                                      \
            }                                                                                                          \
            row_at += row_step;                                                                                        \
            column_at += column_step;                                                                                  \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)                                                         \
            _Pragma("GCC unroll 4") for (int c = 0; c < COLUMNS; c++) VM_AT(f32s, op->out + r * op->d + c * op->e) =   \
                sum[r][c];                                                                                             \
        VM_GO(op + 2 + count);                                                                                         \
    }

/* Tile sizes whose sums leave registers for a row and the columns. */
/* clang-format off */
#if VM_BYTES > 32
#define LARGE_TILES(M, ...) M(8, 2, __VA_ARGS__) M(4, 4, __VA_ARGS__) M(6, 4, __VA_ARGS__)
#define LARGE_ROWS(M, ...) [4] = {[0] = M(8, 1, __VA_ARGS__), [1] = M(8, 2, __VA_ARGS__)}, \
    [2] = {M(4, 1, __VA_ARGS__), M(4, 2, __VA_ARGS__), M(4, 4, __VA_ARGS__)}, \
    [3] = {M(6, 1, __VA_ARGS__), M(6, 2, __VA_ARGS__), M(6, 4, __VA_ARGS__)}
#else
#define LARGE_TILES(M, ...)
#define LARGE_ROWS(M, ...) [4] = {[0] = M(8, 1, __VA_ARGS__)}, \
    [2] = {M(4, 1, __VA_ARGS__), M(4, 2, __VA_ARGS__)}, \
    [3] = {M(6, 1, __VA_ARGS__), M(6, 2, __VA_ARGS__)}
#endif
#define TILES(M, ...)                                                                                                  \
    M(1, 1, __VA_ARGS__) M(1, 2, __VA_ARGS__) M(1, 4, __VA_ARGS__) M(2, 1, __VA_ARGS__) M(2, 2, __VA_ARGS__)           \
    M(2, 4, __VA_ARGS__) M(4, 1, __VA_ARGS__) M(4, 2, __VA_ARGS__) M(6, 1, __VA_ARGS__) M(6, 2, __VA_ARGS__)           \
    M(8, 1, __VA_ARGS__) LARGE_TILES(M, __VA_ARGS__)
#define NAME_OF(ROWS, COLUMNS, name) name##_##ROWS##x##COLUMNS
#define DEFINE(ROWS, COLUMNS, name, attribute, LOAD_ROW, LOAD_COLUMN, PRODUCT) \
    TILE(NAME_OF(ROWS, COLUMNS, name), attribute, LOAD_ROW, LOAD_COLUMN, PRODUCT, ROWS, COLUMNS)
#define TABLE(name) {                                                                                                  \
    [0] = {NAME_OF(1, 1, name), NAME_OF(1, 2, name), NAME_OF(1, 4, name)},                                             \
    [1] = {NAME_OF(2, 1, name), NAME_OF(2, 2, name), NAME_OF(2, 4, name)},                                             \
    LARGE_ROWS(NAME_OF, name)}
/* clang-format on */

TILES(DEFINE, multiply_number, VM_TARGET, load_number, load_register, MULTIPLY_ADD)
TILES(DEFINE, multiply_register, VM_TARGET, load_register, load_register, MULTIPLY_ADD)
TILES(DEFINE, multiply_number_bf16, VM_TARGET, load_number, widen_bf16, MULTIPLY_ADD)
TILES(DEFINE, multiply_register_bf16, VM_TARGET, load_register, widen_bf16, MULTIPLY_ADD)
TILES(DEFINE, multiply_number_i8, VM_TARGET, load_number, widen_i8, MULTIPLY_ADD)
TILES(DEFINE, multiply_register_i8, VM_TARGET, load_register, widen_i8, MULTIPLY_ADD)
TILES(DEFINE, multiply_number_f8, VM_TARGET, load_number, widen_f8, MULTIPLY_ADD)
TILES(DEFINE, multiply_register_f8, VM_TARGET, load_register, widen_f8, MULTIPLY_ADD)
#if defined(VM_WIDEN_F16)
TILES(DEFINE, multiply_number_f16, VM_TARGET, load_number, widen_f16, MULTIPLY_ADD)
TILES(DEFINE, multiply_register_f16, VM_TARGET, load_register, widen_f16, MULTIPLY_ADD)
#endif
#if defined(VM_DOT2)
TILES(DEFINE, dot2_number, VM_WITH_DOT2, load_number, load_register, VM_DOT2)
TILES(DEFINE, dot2_register, VM_WITH_DOT2, load_register, load_register, VM_DOT2)
#endif

/* A polynomial of the variable at a, with e coefficients, the highest first. Their places fill the following
 * operations. */
OP(polynomial) {
    const f32s x = A(f32s);
    int32_t places[2 * VM_PLACES] = {0};
    const int32_t more = (op->e + VM_PLACES - 1) / VM_PLACES;
    for (int32_t i = 0; i < more; i++) memcpy(places + i * VM_PLACES, &op[1 + i].out, VM_PLACES * sizeof *places);
    f32s sum = VM_AT(f32s, places[0]);
    for (int32_t i = 1; i < op->e; i++) sum = MULTIPLY_ADD(sum, x, VM_AT(f32s, places[i]));
    OUT(f32s) = sum;
    VM_GO(op + 1 + more);
}

OP(leave) {
    (void)op, (void)frame;
    VM_LEAVE;
    return NULL;
}

/* ---- The table ---- */

#define NUMBERS_ROW(name)                                                                                              \
    [IR_ADD] = name##_add, [IR_SUB] = name##_sub, [IR_MUL] = name##_mul, [IR_MIN] = name##_min, [IR_MAX] = name##_max, \
    [IR_NEG] = name##_neg, [IR_EQ] = name##_eq, [IR_NE] = name##_ne, [IR_LT] = name##_lt, [IR_LE] = name##_le,         \
    [IR_GT] = name##_gt, [IR_GE] = name##_ge
#define FLOATS_ROW(name) NUMBERS_ROW(name), [IR_DIV] = name##_div, [IR_ABS] = name##_abs, [IR_SQRT] = name##_sqrt

const vm_isa VM_ISA = {
    .vector_bytes = VM_BYTES,
    .by_op =
        {
            [VM_F32] =
                {
                    FLOATS_ROW(f32),
                    [IR_SELECT] = select4,
#if defined(VM_FMA32)
                    [IR_FMA] = f32_fma,
#endif
#if defined(VM_RINT32)
                    [IR_RINT] = f32_rint,
#endif
#if defined(VM_LDEXP32)
                    [IR_LDEXP] = f32_ldexp,
#endif
                },
            [VM_F64] =
                {
                    FLOATS_ROW(f64),
                    [IR_SELECT] = select8,
#if defined(VM_FMA32)
                    [IR_FMA] = f64_fma,
#endif
#if defined(VM_RINT32)
                    [IR_RINT] = f64_rint,
#endif
#if defined(VM_LDEXP32)
                    [IR_LDEXP] = f64_ldexp,
#endif
                },
            [VM_I32] = {NUMBERS_ROW(i32), [IR_SELECT] = select4, [IR_NOT] = i32_not, [IR_AND] = i32_and,
                        [IR_OR] = i32_or, [IR_XOR] = i32_xor, [IR_SHL] = i32_shl, [IR_SHR] = i32_shr},
        },
    .cast =
        {
            [IR_F32] =
                {
                    [IR_BF16] = bf16_to_f32,
                    [IR_I8] = i8_to_f32,
                    [IR_F8] = f8_to_f32,
                    [IR_I32] = i32_to_f32,
#if defined(VM_WIDEN_F16)
                    [IR_F16] = f16_to_f32,
#endif
                },
            [IR_I32] = {[IR_I8] = i8_to_i32, [IR_F32] = f32_to_i32},
            [IR_BF16] = {[IR_F32] = f32_to_bf16},
#if defined(VM_WIDEN_F16)
            [IR_F16] = {[IR_F32] = f32_to_f16},
#endif
        },
    .bits = {[IR_AND] = bool_and, [IR_OR] = bool_or, [IR_XOR] = bool_xor, [IR_NOT] = bool_not},
    .splat1 = splat1,
    .splat4 = splat4,
    .splat8 = splat8,
    .int_to_i32 = int_to_i32,
    .load_splat4 = load_splat4,
    .load_splat8 = load_splat8,
    .load = load,
    .load_half = load_half,
#if VM_BYTES > 32
    .load_quarter = load_quarter,
#endif
    .store = store,
    .load_widened =
        {
            [IR_BF16] = load_bf16,
            [IR_I8] = load_i8,
            [IR_F8] = load_f8,
#if defined(VM_WIDEN_F16)
            [IR_F16] = load_f16,
#endif
        },
    .load_masked4 = load_masked4,
    .store_masked4 = store_masked4,
#if defined(VM_PERMUTE4)
    .permute4 = permute4,
    .permute_add = permute_add,
    .permute_max = permute_max,
#endif
#if defined(VM_DOT2)
    .dot2 = dot2,
    .pack2 = pack2,
#endif
#if defined(VM_DOT4)
    .dot4 = dot4,
#endif
    .tile =
        {
            [VM_MULTIPLY_ADD] = {TABLE(multiply_register), TABLE(multiply_number)},
            [VM_MULTIPLY_ADD_I8] = {TABLE(multiply_register_i8), TABLE(multiply_number_i8)},
            [VM_MULTIPLY_ADD_F8] = {TABLE(multiply_register_f8), TABLE(multiply_number_f8)},
            [VM_MULTIPLY_ADD_BF16] = {TABLE(multiply_register_bf16), TABLE(multiply_number_bf16)},
#if defined(VM_WIDEN_F16)
            [VM_MULTIPLY_ADD_F16] = {TABLE(multiply_register_f16), TABLE(multiply_number_f16)},
#endif
#if defined(VM_DOT2)
            [VM_DOT2] = {TABLE(dot2_register), TABLE(dot2_number)},
#endif
        },
    .polynomial = polynomial,
    .leave = leave,
};
