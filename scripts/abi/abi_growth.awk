# awk -f abi_growth.awk NEW-DUMP REPORT: reads a dump of the ABI and abidiff's report of changed types. Prints all of the
# report that is more than growth, and fails if there is such:
#   - new functions
#   - members after the end of a struct that begins with struct_size
#   - enumerators with new numbers; the one that counts them changes
# Structs that are embedded, come in arrays or have no size of their own may not change at all.

# ---- The dump: which structs may grow ----

FNR == NR && /<class-decl name=/ { split($0, part, "'"); struct = part[2]; member = 0; next }
FNR == NR && /<var-decl name=/ && struct != "" {
    split($0, part, "'")
    if (++member == 1 && part[2] == "struct_size") may_grow[struct] = 1
    next
}
FNR == NR { next }

# ---- The report ----

/^$/ || /summary: / { next }
/^[0-9]+ Added functions?:/ { kind = "added"; next }
/^  \[A\] / && kind == "added" { print "new: " $0; next }
/^'(struct|enum) [a-z0-9_]+( at .*)?' changed:/ || /^'(struct|enum) [a-z0-9_]+' changed:/ {
    split($0, part, "[' ]")
    kind = part[2]
    name = part[3]
    heading = $0
    size = -1
    next
}
kind == "enum" && /^ *type size hasn't changed$/ { next }
kind == "enum" && /^ *[0-9]+ enumerator (insertions?|changes?):/ { next }
kind == "enum" && /^ *'[a-z0-9_]+::[A-Z0-9_]+' value '-?[0-9]+'$/ { print "new: " $0; next }
kind == "enum" && /_(COUNT|NUM_WEIGHTS)' from value '[0-9]+' to '[0-9]+'$/ { next }
kind == "struct" && name in may_grow && /^ *type size changed from [0-9]+ to [0-9]+ \(in bits\)$/ {
    match($0, /from [0-9]+/)
    size = substr($0, RSTART + 5, RLENGTH - 5) + 0
    next
}
kind == "struct" && size >= 0 && /^ *[0-9]+ data member insertions?:/ { next }
kind == "struct" && size >= 0 && /^ *'.*', at offset [0-9]+ \(in bits\)( at .*)?$/ {
    match($0, /at offset [0-9]+/)
    if (substr($0, RSTART + 10, RLENGTH - 10) + 0 >= size) {
        print "new: " $0 " of " name
        next
    }
}
{
    if (heading != "") print heading
    heading = ""
    print
    broken++
}
END { exit broken > 0 }
