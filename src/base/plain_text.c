/* Prints and reads numbers in the "C" locale: printing sets it for this thread alone, and reading passes it to the C
 * library. */
#define _GNU_SOURCE
#include "base/plain_text.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* The C library has this one ready and allocates nothing for it. */
static locale_t plain_locale(void) { return newlocale(LC_ALL_MASK, "C", (locale_t)0); }

static void free_locale(locale_t plain) {
    if (plain) freelocale(plain);
}

int at_vprint(char *text, size_t capacity, const char *format, va_list arguments) {
    const locale_t plain = plain_locale(), callers = uselocale(plain);
    const int length = vsnprintf(text, capacity, format, arguments);
    uselocale(callers);
    free_locale(plain);
    return length;
}

int at_print(char *text, size_t capacity, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = at_vprint(text, capacity, format, arguments);
    va_end(arguments);
    return length;
}

double at_read_double(const char *text, char **end) {
    const locale_t plain = plain_locale();
    const double value = strtod_l(text, end, plain);
    free_locale(plain);
    return value;
}

float at_read_float(const char *text, char **end) {
    const locale_t plain = plain_locale();
    const float value = strtof_l(text, end, plain);
    free_locale(plain);
    return value;
}
