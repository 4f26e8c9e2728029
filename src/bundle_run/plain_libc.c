/* What the shared sources use of the C library, so that a bundle needs nothing of it except memcpy. All of these are
 * local to the run time (the Makefile sees to that). */
#include "problem/signature.h"

#include "base/plain_text.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* ---- string.h: the Makefile keeps the compiler from making calls of themselves out of these loops ---- */

void *memset(void *to, int byte, size_t count) {
    for (size_t i = 0; i < count; i++) ((unsigned char *)to)[i] = (unsigned char)byte;
    return to;
}

/* Each call compares its arguments with those before: by words, as bytes took more than 1 % of a short call. */
int memcmp(const void *a, const void *b, size_t count) {
    const unsigned char *x = a, *y = b;
    for (uint64_t u, v; count >= sizeof u; x += sizeof u, y += sizeof v, count -= sizeof u) {
        __builtin_memcpy(&u, x, sizeof u);
        __builtin_memcpy(&v, y, sizeof v);
        if (u != v) break;
    }
    for (size_t i = 0; i < count; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}

int strcmp(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return (unsigned char)*a - (unsigned char)*b;
}

/* ---- base/plain_text.h and stdio.h. Messages have the formats %s %.Ns %d %u %ld %lu %lld %llu %zu %x %llx %p %g %c
 * %% ---- */

typedef struct sink {
    char *text;
    size_t capacity, length; /* the length that the whole text would have */
} sink;

static void put(sink *s, char c) {
    if (s->length + 1 < s->capacity) s->text[s->length] = c;
    s->length++;
}

static void put_text(sink *s, const char *text, size_t most) {
    for (size_t i = 0; i < most && text[i]; i++) put(s, text[i]);
}

static void put_number(sink *s, unsigned long long value, unsigned base) {
    char digits[24];
    size_t count = 0;
    do digits[count++] = "0123456789abcdef"[value % base];
    while (value /= base);
    while (count) put(s, digits[--count]);
}

static void put_signed(sink *s, long long value) {
    if (value < 0) put(s, '-');
    put_number(s, value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value, 10);
}

/* Six digits and a power of ten, 1.50000e+38: enough to tell a number that was refused. */
static void put_double(sink *s, double value) {
    if (value != value) return put_text(s, "nan", 3);
    if (value < 0) put(s, '-');
    if (value < 0) value = -value;
    if (value > DBL_MAX) return put_text(s, "inf", 3);
    int power = 0;
    for (; value >= 10; value /= 10) power++;
    for (; value > 0 && value < 1; value *= 10) power--;
    unsigned long long digits = (unsigned long long)(value * 1e5 + 0.5);
    if (digits >= 1000000) digits /= 10, power++;
    put(s, (char)('0' + digits / 100000));
    put(s, '.');
    for (unsigned long long rest = digits % 100000, unit = 10000; unit; unit /= 10)
        put(s, (char)('0' + rest / unit % 10));
    put(s, 'e');
    put_signed(s, power);
}

typedef struct directive {
    bool has_precision;
    size_t precision;
    int longs; /* l, or ll and z, which are as wide as long */
} directive;

static const char *parse_directive(const char *format, directive *d) {
    *d = (directive){0};
    while (*format == '0' || *format == '#' || (*format >= '1' && *format <= '9')) format++;
    if (*format == '.')
        for (format++, d->has_precision = true; *format >= '0' && *format <= '9'; format++)
            d->precision = d->precision * 10 + (size_t)(*format - '0');
    for (; *format == 'l' || *format == 'z' || *format == 'h'; format++) d->longs += *format != 'h';
    return format;
}

int at_vprint(char *text, size_t capacity, const char *format, va_list arguments) {
    sink s = {text, capacity, 0};
    for (; *format; format++) {
        directive d;
        if (*format != '%') {
            put(&s, *format);
            continue;
        }
        format = parse_directive(format + 1, &d);
        switch (*format) {
        case 's': put_text(&s, va_arg(arguments, const char *), d.has_precision ? d.precision : SIZE_MAX); break;
        case 'd': put_signed(&s, d.longs ? va_arg(arguments, long) : va_arg(arguments, int)); break;
        case 'u': put_number(&s, d.longs ? va_arg(arguments, unsigned long) : va_arg(arguments, unsigned), 10); break;
        case 'x': put_number(&s, d.longs ? va_arg(arguments, unsigned long) : va_arg(arguments, unsigned), 16); break;
        case 'p':
            put_text(&s, "0x", 2);
            put_number(&s, (uintptr_t)va_arg(arguments, void *), 16);
            break;
        case 'g': put_double(&s, va_arg(arguments, double)); break;
        case 'c': put(&s, (char)va_arg(arguments, int)); break;
        default: put(&s, *format); break;
        }
    }
    if (capacity) text[s.length < capacity ? s.length : capacity - 1] = '\0';
    return (int)s.length;
}

int snprintf(char *text, size_t capacity, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = at_vprint(text, capacity, format, arguments);
    va_end(arguments);
    return length;
}

/* ---- The rest ---- */

double fabs(double value) { return __builtin_fabs(value); }

#if defined(__aarch64__)
/* The C library's function would be one more that a bundle needs. Linux requires these two of every CPU; without the
 * third the model is not known, so the generic class is used. */
unsigned long getauxval(unsigned long type) { return type == AT_HWCAP ? HWCAP_FP | HWCAP_ASIMD : 0; }
#endif

/* How much work a call is decides how many threads it gets. A bundle has none. */
double mha_call_flops(const attune_problem *canonical, const mha_sizes *sizes) {
    (void)canonical, (void)sizes;
    return 0;
}
