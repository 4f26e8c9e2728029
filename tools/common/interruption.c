/* The first signal sets a flag that loops look at; the second one ends the process as usual. */
#include "common/interruption.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t came, is_terminal;

static void note(int signal_number) {
    static const char text[] = "\r\033[Kstopping...";
    (void)signal_number;
    came = 1;
    /* The work at hand may take a while. */
    if (is_terminal && write(STDERR_FILENO, text, sizeof text - 1) < 0) is_terminal = 0;
}

void interruption_catch(void) {
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&action.sa_mask);
    is_terminal = isatty(STDERR_FILENO);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool interruption_came(void) { return came; }
