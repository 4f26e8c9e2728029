/* What libattune.so.0 needs of a start file. It has none of the C library's and the compiler's: their code is called by
 * address and is often compiled without landing pads, which would take IBT and BTI from the whole library, and they
 * import weak symbols that any library may define (_ITM_registerTMCloneTable). What they do besides, running
 * __cxa_finalize when the library is unloaded, is not needed, because it never is. */

/* Names this library to __cxa_atexit and pthread_atfork. Not in the static archive: a program has one of its own. */
extern __attribute__((visibility("hidden"))) void *const __dso_handle;
void *const __dso_handle = (void *)&__dso_handle;
