#!/usr/bin/env bash
# The ClickHouse 26.9 engine on loopback behind its HTTP interface: dev/clickhouse.sh VERB
#
#   install              the engine, by pip from the version and hash pinned here
#   start | stop | restart | kill | pause | resume
#   status | url | env | check | wipe
#
# Parsing, MergeTree, dedup, FINAL, formats and errors are ClickHouse's own code (PyPI chdb-core, by ClickHouse's chDB
# team); the HTTP layer is clickhouse/chdb_http.py, whose head says in what it differs from a server's. Clients must
# not ask for ClickHouse's own block compression. For timing, memory and load, name a real server by
# TRACIUM_TEST_CLICKHOUSE_URL.
#
# TRACIUM_CLICKHOUSE_PORT (58123), TRACIUM_STACK_DIR (where its data lives), TRACIUM_CACHE_DIR (the engine, 560 MB)
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=clickhouse
port_var=TRACIUM_CLICKHOUSE_PORT
port=${TRACIUM_CLICKHOUSE_PORT:-58123}
url_var=TRACIUM_TEST_CLICKHOUSE_URL
data=$stack_dir/clickhouse-$port
version=26.9.0
# of the wheels for x86-64 and for ARM, which serve every Python from 3.9 on
pin="chdb-core==$version --hash=sha256:707e2ec3fe0f7953bac97942eaeb7a1ed1d66b1e56ecef3f0aa2130f61f6e735 \
  --hash=sha256:46148d3fc1edd6d6f701922be0f18e2aa6e60349e418b430e69bbb87ab6b95a9"
venv=$cache_dir/chdb-core-$version

verb_url() { echo "http://127.0.0.1:$port"; }

verb_install() {
  if [ -e "$venv/.complete" ]; then return 0; fi
  python3 -c 'import ensurepip' 2>/dev/null || apt_install python3-venv
  have curl || apt_install curl
  mkdir -p "$cache_dir"
  (
    flock 8 # several copies may start at once
    [ ! -e "$venv/.complete" ] || exit 0
    say "$name: fetching the engine into $venv"
    rm -rf "$venv"
    python3 -m venv "$venv"
    echo "$pin" >"$venv/requirements.txt"
    # without what it can hand results to: pandas, pyarrow
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
      --require-hashes -r "$venv/requirements.txt" </dev/null >&2 || die_missing "pip could not fetch chdb-core $version"
    touch "$venv/.complete"
  ) 8>"$cache_dir/.chdb-core.lock"
}

service_pid() { pid_from "$data/clickhouse.pid" "--data=$data/engine"; }

verb_start() {
  local t0
  if already_up; then return 0; fi
  require_port_free "$port"
  verb_install
  t0=$(now_ms)
  make_data_dir
  cd "$data" # the engine writes beside itself
  spawn "$data/clickhouse.pid" "$data/server.log" "$venv/bin/python" "$dev/clickhouse/chdb_http.py" \
    "--data=$data/engine" "--port=$port"
  await_ready "$data/clickhouse.pid" "$data/server.log" 60 curl -fsS -m 2 "$(verb_url)/ping"
  say "$name: up, pid=$(service_pid) port=$port version=$version ms=$(($(now_ms) - t0)) log=$data/server.log"
}

verb_stop() { stop_by_term 30; }

# What keeps late writes harmless: of two versions of a row, FINAL shows the higher one.
verb_check() {
  local url table t0 answer seen
  have curl || apt_install curl
  url=$(service_url)
  table=tracium_check_$$_$RANDOM
  t0=$(now_ms)
  send() { curl -sS --fail-with-body -m 20 --data-binary "$1" "$url" 2>&1; }
  ask() { # ask QUERY: into `answer`
    local code=0
    answer=$(send "$1") || code=$?
    [ "$code" != 0 ] || return 0
    answer=${answer//$'\n'/ }
    [ "$code" = 22 ] || die_missing "no answer to ${1%% "$table"*}: ${answer:0:200}"
    send "DROP TABLE IF EXISTS $table" >/dev/null || true
    die "${1%% "$table"*} was refused: ${answer:0:200}"
  }
  ask "CREATE TABLE $table (id UInt32, n UInt32, version UInt64) ENGINE = ReplacingMergeTree(version) ORDER BY id"
  ask "INSERT INTO $table VALUES (1, 20, 2)"
  ask "INSERT INTO $table VALUES (1, 10, 1)"
  ask "SELECT n FROM $table FINAL"
  seen=$answer
  ask "DROP TABLE $table"
  [ "$seen" = 20 ] || die "FINAL shows '$seen', not the row of the higher version"
  ask "SELECT version()"
  say "$name: checked in $(($(now_ms) - t0)) ms, version $answer"
}

component "$@"
