#!/usr/bin/env bash
# Fails on an include that the architecture does not allow (the table in docs/design.md). Prints each offender.
set -euo pipefail
cd "$(dirname "$0")/.."

# What each folder may include with quotes, beside its own headers, as an extended regular expression.
declare -A project=(
    [include]='^$'
    [src/base]='^base/'
    [src/target]='^(base|target)/'
    [src/ir]='^(base|ir)/|^target/target\.h$'
    [src/problem]='^(base|problem)/|^ir/ir\.h$'
    [src/schedule]='^(base|problem|schedule)/|^target/target\.h$'
    [src/nest]='^(base|ir|problem|schedule|nest)/|^target/target\.h$'
    [src/attend]='^(base|ir|problem|schedule|nest|attend)/'
    [src/layer]='^(base|ir|problem|schedule|nest|attend|layer)/'
    [src/operator]='^(base|ir|target|problem|schedule|nest|attend|layer|operator)/'
    [src/codegen]='^(base|ir|target|codegen)/|^generator_id\.h$'
    [src/runtime]='^(base|ir|target|problem|schedule|layer|operator|runtime)/|^(generator_id|install_dirs)\.h$'
    [src/plan]='^(base|problem|schedule|runtime|plan)/'
    [src/tune]='^(base|ir|target|problem|schedule|operator|runtime|tune)/|^generator_id\.h$'
    [src/wheel]='^$'
    [tools]='^(common|run|weights|pictures|check|conform|cache|sweep|measure|loop_ir)/|^nearest\.h$'
    [tools/common]='^common/|^ref_block\.h$|^nearest\.h$'
    [tools/measure]='^(common|measure)/'
    [tools/run]='^(common|measure|run)/'
    [tools/weights]='^(common|weights)/'
    [tools/pictures]='^(common|run|pictures)/|^draw/chart\.h$|^draw/draw\.h$|^(install_dirs|trusted)\.h$'
    [tools/check]='^(common|check)/|^(ref_(attention|block)|problem_fields)\.h$'
    [tools/conform]='^(common|conform)/'
    [tools/cache]='^(common|cache|loop_ir)/'
    [tools/sweep]='^(common|measure|pictures|sweep)/|^draw/chart\.h$|^problem_fields\.h$'
    [tools/loop_ir]='^(common|measure|loop_ir)/'
    [tools/draw]='^$'
    [adapters/torch]='^attune\.h$'
)
# System headers: the C library's plain part everywhere; files, threads, processes and CPUs only where they belong.
plain='^(attune|assert|ctype|errno|fenv|float|inttypes|langinfo|limits|locale|math|setjmp|stdarg|stdatomic|stdbool'
plain+='|stddef|stdint|stdio|stdlib|string|strings)\.h$'
declare -A system=(
    [include]="$plain"
    [src/base]="$plain|^(sys/stat|unistd)\.h$"
    [src/target]="$plain|^cpuid\.h$|^pthread\.h$|^unistd\.h$|^sys/(auxv|syscall)\.h$"
    [src/ir]="$plain|^immintrin\.h$|^xmmintrin\.h$"
    [src/problem]="$plain|^xxhash\.h$"
    [src/schedule]="$plain"
    [src/nest]="$plain"
    [src/attend]="$plain"
    [src/layer]="$plain|^xxhash\.h$"
    [src/operator]="$plain|^xxhash\.h$"
    [src/codegen]="$plain|^llvm-c/|^llvm/Config/|^(dlfcn|elf|link|pthread|sched|signal|unistd)\.h$|^sys/"
    [src/runtime]='^((?!llvm).)*$'
    [src/plan]="$plain|^unistd\.h$"
    [src/tune]="$plain|^(dlfcn|fcntl|pthread|sqlite3|sys/random|sys/resource|sys/stat|time|unistd|xxhash)\.h$"
    [src/wheel]='^((?!llvm).)*$'
    [tools]='^((?!llvm|cairo).)*$'
    [tools/common]='^((?!llvm|cairo).)*$'
    [tools/measure]='^((?!llvm|cairo).)*$'
    [tools/run]='^((?!llvm|cairo).)*$'
    [tools/weights]='^((?!llvm|cairo).)*$'
    [tools/pictures]='^((?!llvm|cairo).)*$'
    [tools/check]='^((?!llvm|cairo).)*$'
    [tools/conform]='^((?!llvm|cairo).)*$'
    [tools/cache]='^((?!llvm|cairo).)*$'
    [tools/sweep]='^((?!llvm|cairo).)*$'
    [tools/loop_ir]='^((?!llvm|cairo).)*$'
    [tools/draw]="$plain|^cairo\.h$"
    [adapters/torch]="$plain|^(dlfcn|pthread|xxhash)\.h$"
)

offences=0
includes=0
for folder in "${!project[@]}"; do
    for file in "$folder"/*.[ch] "$folder"/*.def; do
        [ -e "$file" ] || continue
        while IFS=: read -r line text; do
            name=$(sed -E 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]([^>"]+)[>"].*/\1/' <<<"$text")
            includes=$((includes + 1))
            if [[ $text == *'<'* ]]; then
                allowed=${system[$folder]}
            else
                # A header named without a folder is one that lies beside the file.
                [[ $name != */* && -e $folder/$name ]] && continue
                allowed=${project[$folder]}
            fi
            if ! grep -qP "$allowed" <<<"$name"; then
                echo "$file:$line: $folder must not include $name"
                offences=$((offences + 1))
            fi
        done < <(grep -nE '^[[:space:]]*#[[:space:]]*include' "$file" || true)
    done
done
echo "check-deps: $includes includes, $offences not allowed"
[ "$includes" -gt 0 ] && [ "$offences" -eq 0 ]
