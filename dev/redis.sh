#!/usr/bin/env bash
# One Redis server on loopback: dev/redis.sh VERB
#
#   install              the package redis-server, if there is no server
#   start | stop         stop writes its keys to disk, start reads them
#   restart | kill       kill is SIGKILL; what was not yet on disk is lost, as Redis documents
#   pause | resume       SIGSTOP / SIGCONT
#   status | url | env | check | wipe
#   cli ARGS             redis-cli
#
# TRACIUM_REDIS_PORT (56379), TRACIUM_STACK_DIR (where its data lives)
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=redis
port_var=TRACIUM_REDIS_PORT
port=${TRACIUM_REDIS_PORT:-56379}
url_var=TRACIUM_TEST_REDIS_URL
data=$stack_dir/redis-$port
conf=$data/redis.conf

verb_url() { echo "redis://127.0.0.1:$port/0"; }

verb_install() { have redis-server || apt_install redis-server; }

service_pid() { pid_from "$data/redis.pid" "$conf"; }

# it answers an error, and exits with 0, while it loads its keys
answers() { redis-cli -p "$port" ping | grep -q PONG; }

verb_start() {
  local t0
  if already_up; then return 0; fi
  require_port_free "$port"
  verb_install
  t0=$(now_ms)
  make_data_dir
  cat >"$conf" <<P
bind 127.0.0.1
port $port
dir "$data"
daemonize no
# the command line stays as it was: dev/lib.sh tells the process by it
set-proc-title no
P
  spawn "$data/redis.pid" "$data/redis.log" redis-server "$conf"
  await_ready "$data/redis.pid" "$data/redis.log" 30 answers
  say "$name: up, pid=$(service_pid) port=$port version=$(redis-server --version | sed 's/.*v=\([0-9.]*\).*/\1/')" \
    "ms=$(($(now_ms) - t0)) log=$data/redis.log"
}

verb_stop() { stop_by_term 10; }

verb_cli() { exec redis-cli -p "$port" "$@"; }

# A lock as a relay takes one: set if absent, with a lifetime, given up only by its holder.
verb_check() {
  local url key t0 answer
  # shellcheck disable=SC2016  # Lua's
  local release='if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0'
  have redis-cli || apt_install redis-tools
  url=$(service_url)
  key=tracium:check:$$:$RANDOM # gone by itself when we fail
  t0=$(now_ms)
  ask() { # ask COMMAND...: into `answer`
    answer=$(timeout 10 redis-cli -u "$url" --no-auth-warning "$@" 2>&1) ||
      die_missing "no answer to $1: ${answer:-nothing within 10 s}"
  }
  expect() { # expect ANSWER COMMAND...
    local wanted=$1
    shift
    ask "$@"
    [ "$answer" = "$wanted" ] || die "$1 was answered with '$answer', not '$wanted'"
  }
  expect OK SET "$key" holder NX PX 10000
  expect "" SET "$key" other NX PX 10000
  expect 0 EVAL "$release" 1 "$key" other
  expect holder GET "$key"
  expect 1 EVAL "$release" 1 "$key" holder
  expect "" GET "$key"
  ask INFO server
  say "$name: checked in $(($(now_ms) - t0)) ms, version $(tr -d '\r' <<<"$answer" | sed -n 's/^redis_version://p')"
}

component "$@"
