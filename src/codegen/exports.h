/* The plug-in's one visible symbol. */
#ifndef ATTUNE_CODEGEN_EXPORTS_H
#define ATTUNE_CODEGEN_EXPORTS_H

#include "target/codegen_abi.h"

ATTUNE_API const at_codegen_exports *attune_codegen_exports(void);

#endif
