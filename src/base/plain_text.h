/* Text and numbers as in the "C" locale, whatever the host's locale is: a decimal comma would end a pair of a problem's
 * text. All formatting of attune goes through at_vprint, and all reading of floating-point numbers through the readers.
 * Rounding is to nearest under AT_DEFAULT_FPENV (base/fpenv.h). */
#ifndef ATTUNE_BASE_PLAIN_TEXT_H
#define ATTUNE_BASE_PLAIN_TEXT_H

#include <stdarg.h>
#include <stddef.h>

/* vsnprintf and snprintf. */
int at_vprint(char *text, size_t capacity, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));
int at_print(char *text, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* strtod and strtof. */
double at_read_double(const char *text, char **end);
float at_read_float(const char *text, char **end);

static inline char at_upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c; }

#endif
