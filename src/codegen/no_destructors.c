/* Linked into a plug-in that has an LLVM of its own: the destructors of LLVM's static objects are never registered.
 *
 * The plug-in is never unloaded, so they would only run in exit(), while another thread may be compiling with these
 * very objects. The version script hides this function from others. */

int __cxa_atexit(void (*destroy)(void *), void *object, void *library);

int __cxa_atexit(void (*destroy)(void *), void *object, void *library) {
    (void)destroy, (void)object, (void)library;
    return 0;
}
