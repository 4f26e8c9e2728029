/* Every public function in a locale with a decimal comma: results, keys and text are those of the "C" locale. */
#include "support/every_function/every_function.h"
#include "support/every_function/record.h"
#include "support/temp_dir.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Numbers with a decimal comma, and an i whose capital is no I. Their data are made here, unless the system has none.
 */
static void other_locales(void **state) {
    (void)state;
    static const char *const names[][2] = {{"de_DE", "UTF-8"}, {"tr_TR", "ISO-8859-9"}};
    char dir[TEMP_DIR_CHARS], command[2 * TEMP_DIR_CHARS], name[64];
    record usual, other;
    bool has_comma = false;
    temp_dir_make(dir);
    record_run(&usual, ENV_DEFAULT, go_through_all);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.%s", names[i][0], names[i][1]);
        snprintf(command, sizeof command, "localedef -i %s -f %s '%s/%s' >/dev/null 2>&1", names[i][0], names[i][1],
                 dir, name);
        const int made = system(command); /* warnings count as failures, so only the result is asked */
        setenv("LOCPATH", dir, 1);
        if (made >= 0 && setlocale(LC_ALL, name) && localeconv()->decimal_point[0] == ',') {
            has_comma = true;
            record_run(&other, ENV_DEFAULT, go_through_all);
            setlocale(LC_ALL, "C");
            assert_same_record(&usual, &other);
            free(other.text);
        }
        unsetenv("LOCPATH");
    }
    temp_dir_remove_all(dir);
    free(usual.text);
    if (!has_comma) {
        print_message("localedef makes no locale with a decimal comma here\n");
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_locales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
