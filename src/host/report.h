/* The end of each public function: its failure becomes the thread's last message. */
#ifndef ATTUNE_HOST_REPORT_H
#define ATTUNE_HOST_REPORT_H

#include "base/error.h"

/* Keeps the failure's sentence for attune_last_message, and returns its status. */
attune_status at_report(const at_error *err);

#endif
