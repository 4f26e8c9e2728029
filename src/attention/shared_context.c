/* One context for all attentions that were created without one. It lives as long as there is such an attention. */
#include "attention/attention.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static attune_context *shared;
static size_t users;

attune_status an_shared_context_take(attune_context **context) {
    attune_status status = ATTUNE_OK;
    pthread_mutex_lock(&lock);
    if (!shared) status = attune_context_create(NULL, &shared);
    if (!status) users++;
    *context = shared;
    pthread_mutex_unlock(&lock);
    return status;
}

void an_shared_context_give_back(void) {
    pthread_mutex_lock(&lock);
    attune_context *const ended = --users ? NULL : shared;
    if (ended) shared = NULL;
    pthread_mutex_unlock(&lock);
    attune_context_destroy(ended);
}
