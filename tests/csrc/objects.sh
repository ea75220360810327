# Sourced by run and sanitized: csrc/ under ASan and UBSan, once for both, as .build/csrc/*.o.
#
#   CC       the C compiler (default: cc)

CC=${CC:-cc}
WARNINGS="-std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
SANITIZERS="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
INCLUDES="-Icsrc $(printf -- '-Icsrc/%s ' broker connections log net rows server sst steady tables)"
build=.build/csrc
workers=$(getconf _NPROCESSORS_ONLN)
export CC WARNINGS SANITIZERS INCLUDES build

# compile SOURCE OBJECT
compile() {
    # shellcheck disable=SC2086  # The flags are words.
    "$CC" $WARNINGS $SANITIZERS -O1 -g -fPIC $INCLUDES -Itests/csrc -c "$1" -o "$2"
}

# object SOURCE: of csrc/.
object() { compile "$1" "$build/$(basename "$1" .c).o"; }

# each FUNCTION WORD...: calls it with every word, on all cores; fails when one of them does.
each() {
    local function=$1
    shift
    printf '%s\0' "$@" | xargs -0 -n 1 -P "$workers" bash -euc "$function"' "$1"' each
}
export -f compile object

# objects: those of csrc/ as it is now.
objects() {
    local wanted
    wanted=$(cat csrc/*.h csrc/*/* "${BASH_SOURCE[0]}" | cksum)-$("$CC" --version | cksum)
    [ "$(cat "$build/stamp" 2>/dev/null)" != "$wanted" ] || return 0
    rm -rf "$build"
    mkdir -p "$build"
    each object csrc/*/*.c
    echo "$wanted" >"$build/stamp"
}
