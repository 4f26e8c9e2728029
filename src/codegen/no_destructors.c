/* Linked into a plug-in that contains LLVM: the destructors of LLVM's static objects are never registered.
 *
 * The plug-in is never unloaded, so they would run only in exit(), while another thread may still be compiling with
 * these objects. The version script hides this function from other libraries. */

int __cxa_atexit(void (*destroy)(void *), void *object, void *library);

int __cxa_atexit(void (*destroy)(void *), void *object, void *library) {
    (void)destroy, (void)object, (void)library;
    return 0;
}
