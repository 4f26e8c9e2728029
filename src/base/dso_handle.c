/* Replaces the start files in libattune.so.0. Those of the C library and the compiler are called by address and are
 * often compiled without landing pads, so the whole library would lose IBT and BTI. They also import weak symbols that
 * any library may define (_ITM_registerTMCloneTable). They run __cxa_finalize when the library is unloaded; this
 * library never is. */

/* Names this library to __cxa_atexit and pthread_atfork. It is not in the static archive, because a program has its
 * own. */
extern __attribute__((visibility("hidden"))) void *const __dso_handle;
void *const __dso_handle = (void *)&__dso_handle;
