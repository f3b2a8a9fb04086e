# What run.sh and pair.sh share; they source it from the root of the repository.

venv="target/peers/venv"

# Installs what the scripts need, at pinned versions: several GB the first time.
install() {
    local requirements="benches/peers/requirements.txt"
    if ! cmp -s "$requirements" "$venv/installed.txt"; then
        echo "installing the rivals into $venv" >&2
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --requirement "$requirements" >&2
        cp "$requirements" "$venv/installed.txt"
    fi
}

# Builds with the given arguments and prints where the executable is.
build() {
    cargo build --quiet --release "$@" --message-format=json | "$venv/bin/python" -c 'import json, sys
found = [json.loads(line).get("executable") for line in sys.stdin]
print([path for path in found if path][-1])'
}
