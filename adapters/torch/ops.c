/* Operators of attune's own: attune::… */
#include "adapter.h"

const char *ops_define(void) {
    /* Kept for the life of the process. */
    torch_library definitions;
    if (torch.aoti_torch_library_init_fragment("attune", __FILE__, __LINE__, &definitions))
        return "PyTorch refused attune's operators; its reason is on stderr";
    return NULL;
}
