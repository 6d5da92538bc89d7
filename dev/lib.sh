# shellcheck shell=bash disable=SC2034,SC2154
# Shared by the scripts of this folder; sourced, never run. Progress and errors go to stderr, so that a
# caller's stdout stays free for what it prints itself (a path, a URL, one line of JSON).
#
# Exit codes, as for every command of the project: 1 the thing failed, 2 usage or configuration,
# 3 something that we depend on is missing or unreachable.

dev=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$dev")

# rustup's default place: a non-login shell (CI, cron) often has it not on its PATH.
if ! command -v cargo >/dev/null 2>&1 && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
  PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi

# Downloads that every copy of the stack can share: broker jars, example data.
cache_dir=${TRACIUM_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tracium}

# Data, logs and pids of the services. As root, PostgreSQL runs as another user, who cannot enter
# /root (mode 700); /var/tmp is open to all and outlives a reboot.
if [ -n "${TRACIUM_STACK_DIR:-}" ]; then
  stack_dir=$TRACIUM_STACK_DIR
elif [ "$(id -u)" = 0 ]; then
  stack_dir=/var/tmp/tracium-stack
else
  stack_dir=${XDG_CACHE_HOME:-$HOME/.cache}/tracium-stack
fi

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }
die_usage() { say "${0##*/}: $*"; exit 2; }
die_missing() { say "${0##*/}: $*"; exit 3; }
target_dir=${CARGO_TARGET_DIR:-$root/target}
have() { command -v "$1" >/dev/null 2>&1; }
now_ms() { local t=${EPOCHREALTIME//[!0-9]/}; echo "${t%???}"; }

# The comment block at the head of the running script is its help text.
help_text() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# --- a stack of one's own ---------------------------------------------------------------------------

# Moves what dev/stack does from here on to a new folder and free ports, so that a run starts from empty
# services whatever else is up, and harms nothing. Call drop_private_stack at the end.
private_stack() {
  local base
  TRACIUM_STACK_DIR=$(mktemp -d "/var/tmp/tracium-stack.XXXXXX")
  chmod 755 "$TRACIUM_STACK_DIR" # the server's user must get in
  base=$(free_port 24)
  TRACIUM_PG_PORT=$base
  TRACIUM_KAFKA_PORT=$((base + 1)) # four: plaintext, controller, SASL_SSL, expired
  TRACIUM_PG17_PORT=$((base + 5))
  TRACIUM_REDIS_PORT=$((base + 6))
  TRACIUM_ES_PORT=$((base + 7)) # two: HTTP, transport
  TRACIUM_CLICKHOUSE_PORT=$((base + 9))
  TRACIUM_OPENSEARCH_PORT=$((base + 10))    # two
  TRACIUM_KAFKA_CLUSTER_PORT=$((base + 12)) # nine
  export TRACIUM_STACK_DIR TRACIUM_PG_PORT TRACIUM_KAFKA_PORT TRACIUM_PG17_PORT TRACIUM_REDIS_PORT TRACIUM_ES_PORT \
    TRACIUM_CLICKHOUSE_PORT TRACIUM_OPENSEARCH_PORT TRACIUM_KAFKA_CLUSTER_PORT
}

drop_private_stack() {
  "$dev/stack" reset 2>/dev/null || true
  rm -rf -- "${TRACIUM_STACK_DIR:?}"
}

# with_database URL NAME: the URL with another database
with_database() {
  [[ $1 =~ ^([a-z]+://[^/?]*)(/[^?]*)?(\?.*)?$ ]] || die_usage "not a PostgreSQL URL: TRACIUM_TEST_POSTGRES_URL"
  echo "${BASH_REMATCH[1]}/$2${BASH_REMATCH[3]}"
}

# --- packages ---------------------------------------------------------------------------------------

# How we become root, into `as`: as we are, by sudo without a question, or not at all.
apt_as() {
  as=()
  if [ "$(id -u)" != 0 ]; then
    if have sudo && sudo -n true 2>/dev/null; then as=(sudo -n); else return 1; fi
  fi
  have apt-get
}

# Components install at the same time; apt-get waits for the other's installation (DPkg::Lock::Timeout), but not
# for its `update`. Any folder can be locked, and dpkg does not use this lock.
one_apt() {
  (
    flock 7
    "$@" 7<&- # a daemon that a package starts would keep it
  ) 7</var/lib/dpkg
}

# A machine's package lists may be older than the packages that its mirror still has, or not be there.
apt_update() {
  local -a as
  apt_as && one_apt "${as[@]}" apt-get update -qq </dev/null >&2
}

# apt_install PACKAGE...: as root or by sudo without a question; otherwise tells the line and exits 3.
apt_install() {
  local -a as
  if ! apt_as; then
    say "missing packages; install them with (Debian, Ubuntu):"
    say "    sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
    exit 3
  fi
  say "installing: $*"
  { apt_update &&
    one_apt "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      -o DPkg::Lock::Timeout=300 "$@"; } </dev/null >&2 || die_missing "apt-get could not install: $*"
}

# --- ports ------------------------------------------------------------------------------------------

listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# A killed process can hold its sockets for a moment after its pid is gone.
wait_port_free() {
  local _
  for _ in $(seq 100); do listening 127.0.0.1 "$1" || return 0; sleep 0.05; done
  return 1
}

# free_port [SPAN]: a port below the ephemeral range with SPAN free ones in a row (default 1).
free_port() {
  local span=${1:-1} port i _
  for _ in $(seq 200); do
    port=$((20000 + RANDOM % 12000))
    for ((i = 0; i < span; i++)); do
      if listening 127.0.0.1 $((port + i)); then continue 2; fi
    done
    echo "$port"
    return 0
  done
  die "no free port between 20000 and 32000"
}

# --- processes --------------------------------------------------------------------------------------

# pid_from FILE ARGUMENT: the pid in FILE, if that process runs with ARGUMENT on its command line.
# The argument is a path that only this copy uses: a pid that the kernel has reused does not fool us.
pid_from() {
  local p
  [ -s "$1" ] && read -r p <"$1" && [ -n "$p" ] || return 1
  { tr '\0' '\n' <"/proc/$p/cmdline" | grep -qxF -- "$2"; } 2>/dev/null || return 1
  echo "$p"
}

# A pid and all its descendants, the parent first.
process_tree() {
  local child
  echo "$1"
  for child in $(pgrep -P "$1" || true); do process_tree "$child"; done
}

process_state() { ps -o stat= -p "$1" 2>/dev/null | cut -c1; }

# wait_gone SECONDS PID...: a zombie counts as gone (pid 1 of a container may never reap it).
wait_gone() {
  local end=$((SECONDS + $1)) p
  shift
  for p in "$@"; do
    while [ -d "/proc/$p" ] && [ "$(process_state "$p")" != Z ]; do
      [ "$SECONDS" -lt "$end" ] || return 1
      sleep 0.05
    done
  done
}

# A service must hold neither our lock nor a pipe that the caller waits on (make's job server, a $(...)
# around us): these run a command with every inherited descriptor above stderr closed.
# shellcheck disable=SC2016  # for the inner bash to expand
close_fds='for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ "$fd" -le 2 ] || eval "exec $fd>&-"; done'
closed_fds() { bash -c "$close_fds; exec \"\$@\"" _ "$@"; }

# spawn PIDFILE OUTPUT COMMAND...: in the background, in a session of its own (no ^C of the caller's
# terminal reaches it); returns when PIDFILE has its pid.
spawn() {
  local pidfile=$1 out=$2
  shift 2
  rm -f "$pidfile"
  setsid bash -c "$close_fds; echo \$\$ >\"\$0.new\"; mv \"\$0.new\" \"\$0\"; exec \"\$@\"" "$pidfile" "$@" \
    </dev/null >"$out" 2>&1 &
  until [ -s "$pidfile" ]; do sleep 0.01; done
}

# --- components -------------------------------------------------------------------------------------
#
# A component is one executable file, NAME.sh, that sources this one, sets
#   name, port_var, port, data     what it is, the variable that moves it, and its own folder in $stack_dir
#   url_var                        the variable by which the tests find it
# defines
#   verb_install  verb_start  verb_stop  verb_url  service_pid
#   verb_check                     a write and a read that only the real thing answers as it must, in bounded time;
#                                  exits 1 when the answer is wrong, 3 when there is none
# and ends with `component "$@"`. kill, pause, resume, restart, status, env and wipe below then work for it;
# a component may redefine them, and may add verbs of its own (verb_topics is `kafka.sh topics`).

# Set by the user (or CI) to a service that is not ours; `eval "$(dev/stack env)"` sets it to ours.
external() { [ -n "${!url_var:-}" ] && [ "${!url_var}" != "$(verb_url)" ]; }

# host:port of the first server that the variable names; never its password
external_address() {
  local at=${!url_var} custom
  case $at in
    postgres*://*) custom=5432 ;;
    redis://* | rediss://*) custom=6379 ;;
    https://*) custom=443 ;;
    http://*) custom=80 ;;
    *) custom=9092 ;;
  esac
  at=${at#*://}; at=${at##*@}; at=${at%%[/?]*}; at=${at%%,*}
  [[ $at =~ :[0-9]+$ ]] || at+=:$custom
  echo "$at"
}

# Exits 3 unless somebody listens at the address that the variable names.
require_external() {
  local at host
  at=$(external_address)
  host=${at%:*}; host=${host#[}
  listening "${host%]}" "${at##*:}" || die_missing "$url_var is set, but nothing answers at $at"
}

use_external() {
  require_external
  say "$name: using $(external_address), as $url_var says; nothing is started"
}

require_port_free() {
  wait_port_free "$1" ||
    die "$name: port $1 is taken by another process; choose another with $port_var=PORT"
}

make_stack_dir() {
  mkdir -p "$stack_dir"
  # In a folder that all can write to, somebody else may have been here first.
  [ -O "$stack_dir" ] || die_usage "$stack_dir belongs to another user; set TRACIUM_STACK_DIR"
}

make_data_dir() {
  make_stack_dir
  mkdir -p "$data"
}

# For `start`: whether it runs; a paused one goes on.
already_up() {
  local p
  p=$(service_pid) || return 1
  if [ "$(process_state "$p")" = T ]; then verb_resume; fi
  say "$name: already up, pid=$p port=$port"
}

# await_ready PIDFILE LOG SECONDS COMMAND...: until the command succeeds; the end of the log if the process ends first.
await_ready() {
  local pidfile=$1 log=$2 limit=$3 end=$((SECONDS + $3))
  shift 3
  until "$@" >/dev/null 2>&1; do
    # not service_pid: for a moment the pid is that of a shell that is about to become the service
    wait_gone 0 "$(<"$pidfile")" && { tail -n 40 "$log" >&2; die "$name exited"; }
    [ "$SECONDS" -lt "$end" ] || die "$name is not ready after $limit s, see $log"
    sleep 0.1
  done
}

# For `stop`: SIGTERM, and SIGKILL to what has not ended after so many seconds.
stop_by_term() {
  local p
  p=$(service_pid) || { say "$name: not running"; return 0; }
  kill -CONT "$p" # a stopped process does not hear a shutdown
  kill -TERM "$p"
  wait_gone "$1" "$p" || { say "$name: no clean shutdown within $1 s, SIGKILL"; verb_kill; }
  wait_port_free "$port" || true
  say "$name: stopped pid=$p"
}

# Where the service is, ours or not.
service_url() { if external; then echo "${!url_var}"; else verb_url; fi; }

# What the tests read, for eval; a component may print more than its URL.
verb_env() { printf 'export %s=%q\n' "$url_var" "$(service_url)"; }

running_pid() { service_pid || die "$name is not running"; }

# SIGKILL to the whole service, as a power cut would: its data stays as it is, `start` recovers it.
# The parent is stopped first, so that it forks nothing between our look and the kill.
verb_kill() {
  local p pids
  p=$(running_pid)
  kill -STOP "$p" 2>/dev/null || true
  mapfile -t pids < <(process_tree "$p")
  kill -KILL "${pids[@]}" 2>/dev/null || true
  wait_gone 10 "${pids[@]}" || die "$name: still there 10 s after SIGKILL"
  wait_port_free "$port" || true
  say "$name: killed pid=$p"
}

# SIGSTOP: the hung service, whose connections stay open and silent.
verb_pause() {
  local p pids
  p=$(running_pid)
  kill -STOP "$p"
  mapfile -t pids < <(process_tree "$p")
  kill -STOP "${pids[@]}" 2>/dev/null || true
  say "$name: paused pid=$p"
}

verb_resume() {
  local p pids
  p=$(running_pid)
  mapfile -t pids < <(process_tree "$p")
  kill -CONT "${pids[@]}" 2>/dev/null || true
  say "$name: resumed pid=$p"
}

verb_restart() {
  if service_pid >/dev/null; then verb_stop; fi
  verb_start
}

verb_status() {
  local p state=running
  if p=$(service_pid); then
    [ "$(process_state "$p")" != T ] || state=paused
    echo "$name $state pid=$p port=$port rss_mib=$(awk '/VmRSS/{print int($2/1024)}' "/proc/$p/status") data=$data"
  else
    echo "$name stopped port=$port data=$data"
    return 3
  fi
}

verb_wipe() {
  if service_pid >/dev/null; then verb_kill; fi
  rm -rf -- "${data:?}"
  say "$name: wiped $data"
}

component() {
  local verb=${1:-help} fn
  fn=verb_${verb//-/_}
  shift || true
  if ! declare -F "$fn" >/dev/null; then help_text >&2; exit 2; fi

  if external; then
    case $verb in
      url) echo "${!url_var}"; return ;;
      install | stop | wipe) return ;; # not ours: nothing to install, and not to be touched
      start) use_external; return ;;
      check) require_external ;;
      status) echo "$name external at $(external_address), by $url_var"; return ;;
      kill | pause | resume | restart) die_usage "$name: $url_var names a service that is not ours" ;;
    esac
  elif [ "$verb" = check ]; then
    service_pid >/dev/null || die_missing "not running; dev/stack up $name starts it"
  fi

  case $verb in
    # Two of these at once for one copy would trip over each other. kill, pause and resume do not wait:
    # a fault test means now.
    start | stop | restart | wipe)
      mkdir -p "$stack_dir"
      exec 9>"$stack_dir/.$name-$port.lock"
      flock 9
      ;;
  esac
  "$fn" "$@"
}
