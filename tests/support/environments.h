/* Floating-point environments of a host, which attune must neither mind nor change. */
#ifndef ATTUNE_TESTS_ENVIRONMENTS_H
#define ATTUNE_TESTS_ENVIRONMENTS_H

typedef enum environment {
    ENV_DEFAULT,
    ENV_DOWNWARD,
    ENV_UPWARD,
    ENV_FLUSH, /* denormals are zero, in and out */
    ENV_TRAPS, /* every exception is a signal */
    NUM_ENVIRONMENTS
} environment;

extern const char *const environment_names[NUM_ENVIRONMENTS];

/* Makes it this thread's. Where exceptions are no signals, the flag of a division by zero is raised. Nothing between
 * the two functions may compute, except what is tested. */
void environment_enter(environment which);

/* Back to the default. The test fails unless the environment is what environment_enter has left, flags included. */
void environment_leave(environment which, const char *what);

#endif
