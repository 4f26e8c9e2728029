/* The result of probing this machine, in a file next to the cache files. */
#ifndef ATTUNE_ENGINE_PROBE_FILE_H
#define ATTUNE_ENGINE_PROBE_FILE_H

#include "cache/disk_cache.h"
#include "machine/machine.h"

/* Reads the class that an earlier probe of this CPU stored, unless the class is known already. */
void at_probe_recall(const at_disk_cache *cache, const at_target *target, at_machine_class *machine);

/* Stores the result: a class's name, or a whole description. *is_kept is unchanged if the cache is off. */
attune_status at_probe_keep(at_disk_cache *cache, const char *kept, int *is_kept, at_error *err);

#endif
