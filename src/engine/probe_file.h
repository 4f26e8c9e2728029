/* What a probe of this machine has found, in a file beside the cache's. */
#ifndef ATTUNE_ENGINE_PROBE_FILE_H
#define ATTUNE_ENGINE_PROBE_FILE_H

#include "cache/disk_cache.h"
#include "machine/machine.h"

/* If the class is not known yet: takes the one that an earlier probe of this CPU has left beside the cache. */
void at_probe_recall(const at_disk_cache *cache, const at_target *target, at_machine_class *machine);

/* Keeps it: a class's name, or a whole description. *is_kept stays as it is where the cache is off. */
attune_status at_probe_keep(at_disk_cache *cache, const char *kept, int *is_kept, at_error *err);

#endif
