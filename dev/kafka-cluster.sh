#!/usr/bin/env bash
# Three Apache Kafka brokers (KRaft, each a broker and a controller) on loopback: dev/kafka-cluster.sh VERB
#
#   install              as kafka.sh, whose jars these are
#   start | stop [N...]  all nodes, or those given (1, 2, 3); a node can start only with a majority of them up
#   kill [N...]          SIGKILL; start recovers
#   pause | resume [N...]   SIGSTOP / SIGCONT
#   restart | status | url | env | check | wipe
#   leader TOPIC [PARTITION]   prints the node that leads it (partition 0); exits 1 when none does
#   wait-isr TOPIC COUNT       until every partition has so many in-sync replicas; exits 1 after 60 s
#   topics | configs | groups | get-offsets | txn | dumplog ARGS     the stock command-line tools
#
# For what one broker cannot show: a topic has three replicas, acks=all needs two of them, and no replica that
# is behind ever becomes the leader. Another node takes over some 3 s after its leader was killed or paused.
#
# Its listeners, from TRACIUM_KAFKA_CLUSTER_PORT (59300) on:
#   +0 +1 +2  plaintext of nodes 1, 2, 3, as 127.0.0.1
#   +3 +4 +5  the controllers
#   +6 +7 +8  SASL_SSL as localhost, as kafka.sh has it
#
# TRACIUM_KAFKA_CLUSTER_PORT, TRACIUM_KAFKA_CLUSTER_HEAP (384m, for each), TRACIUM_STACK_DIR, TRACIUM_CACHE_DIR,
# TRACIUM_JAVA and TRACIUM_KAFKA_PROPS as in kafka.sh
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=kafka-cluster
port_var=TRACIUM_KAFKA_CLUSTER_PORT
port=${TRACIUM_KAFKA_CLUSTER_PORT:-59300}
url_var=TRACIUM_TEST_KAFKA_CLUSTER_URL
data=$stack_dir/kafka-cluster-$port
plaintext=127.0.0.1:$port,127.0.0.1:$((port + 1)),127.0.0.1:$((port + 2))
# shellcheck source=dev/kafka-lib.sh
source "$dev/kafka-lib.sh"

verb_url() { echo "$plaintext"; }

verb_env() {
  make_tls
  export_lines "$url_var" "$(verb_url)" \
    TRACIUM_TEST_KAFKA_CLUSTER_TLS_URL "localhost:$((port + 6)),localhost:$((port + 7)),localhost:$((port + 8))" \
    TRACIUM_TEST_KAFKA_USER "$kafka_user" TRACIUM_TEST_KAFKA_PASSWORD "$(password_of kafka)" \
    TRACIUM_TEST_TLS_DIR "$tls"
}

# The nodes that a verb is for, into `chosen`.
choose() {
  local n
  chosen=("$@")
  [ "$#" -gt 0 ] || chosen=(1 2 3)
  for n in "${chosen[@]}"; do [[ $n == [123] ]] || die_usage "no node '$n'; there are 1, 2 and 3"; done
}

dir_of() { echo "$data/$1"; }
port_of() { echo $((port + $1 - 1)); }
pid_of() { broker_pid "$data/$1"; }

# For lib.sh: of any node that runs
service_pid() { pid_of 1 || pid_of 2 || pid_of 3; }

write_props() { # write_props N
  local n=$1 dir controller=$((port + 2 + $1)) tls_port=$((port + 5 + $1))
  dir=$(dir_of "$n")
  cat >"$dir/server.properties" <<P
process.roles=broker,controller
node.id=$n
listeners=PLAINTEXT://127.0.0.1:$(port_of "$n"),CONTROLLER://127.0.0.1:$controller,SASL_SSL://127.0.0.1:$tls_port
advertised.listeners=PLAINTEXT://127.0.0.1:$(port_of "$n"),SASL_SSL://localhost:$tls_port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
controller.quorum.voters=1@127.0.0.1:$((port + 3)),2@127.0.0.1:$((port + 4)),3@127.0.0.1:$((port + 5))
log.dirs=$dir/log
unclean.leader.election.enable=false
# a follower that hangs leaves the in-sync replicas as soon as one that died
replica.lag.time.max.ms=3000
# three times in the machine's memory: 128 MiB by default
log.cleaner.dedupe.buffer.size=16777216
$(password_listener sasl_ssl "$dir" server)
$(common_props 3 2)
P
}

# shellcheck disable=SC2120  # dev/kafka-cluster.sh start 2
verb_start() {
  local n p t0 up=
  local -a chosen starting=()
  choose "$@"
  for n in "${chosen[@]}"; do
    if p=$(pid_of "$n"); then
      if [ "$(process_state "$p")" = T ]; then verb_resume "$n"; fi
      say "$name: node $n is already up, pid=$p port=$(port_of "$n")"
    else
      for p in 0 3 6; do require_port_free $((port + p + n - 1)); done
      starting+=("$n")
    fi
  done
  [ "${#starting[@]}" -gt 0 ] || return 0
  verb_install
  t0=$(now_ms)
  make_data_dir
  [ -e "$data/kafka-password" ] || format
  for n in "${starting[@]}"; do
    write_keystores "$(dir_of "$n")" server
    write_props "$n"
    spawn_broker "$(dir_of "$n")" -Xms128m "-Xmx${TRACIUM_KAFKA_CLUSTER_HEAP:-384m}" -XX:+UseSerialGC
  done
  for n in "${starting[@]}"; do
    await_broker "$(dir_of "$n")" "$(port_of "$n")"
    up+=" $n:pid=$(pid_of "$n")"
  done
  add_user
  say "$name: up,$up port=$port ms=$(($(now_ms) - t0)) log=$data/N/kafka.log"
}

# All at once. The password's file comes last: without it, an interrupted run is done again.
format() {
  local n
  local -a pids=()
  for n in 1 2 3; do
    mkdir -p "$(dir_of "$n")"
    rm -rf "$(dir_of "$n")/log"
    write_keystores "$(dir_of "$n")" server
    write_props "$n"
    format_storage "$(dir_of "$n")" &
    pids+=($!)
  done
  for n in "${pids[@]}"; do wait "$n"; done
  password_set
}

# The running ones among the nodes given, as "node pid" lines.
running() {
  local n p
  for n in "$@"; do
    if p=$(pid_of "$n"); then echo "$n $p"; fi
  done
}

# signal WORD SIGNAL [N...]
signal() {
  local word=$1 signal=$2 n p
  local -a chosen pids=() nodes=()
  shift 2
  choose "$@"
  while read -r n p; do
    nodes+=("$n")
    pids+=("$p")
  done < <(running "${chosen[@]}")
  # whoever names a node, or all, means that there is one
  [ "${#pids[@]}" -gt 0 ] || die "no such node is running: ${chosen[*]}"
  kill "-$signal" "${pids[@]}"
  if [ "$signal" = KILL ]; then
    wait_gone 10 "${pids[@]}" || die "$name: still there 10 s after SIGKILL"
    for n in "${nodes[@]}"; do wait_port_free "$(port_of "$n")" || true; done
  fi
  say "$name: $word nodes ${nodes[*]}"
}
verb_kill() { signal killed KILL "$@"; }
verb_pause() { signal paused STOP "$@"; }
verb_resume() { signal resumed CONT "$@"; }

# shellcheck disable=SC2120  # likewise
verb_stop() {
  local n p patience=30
  local -a chosen pids=() nodes=()
  choose "$@"
  while read -r n p; do
    nodes+=("$n")
    pids+=("$p")
  done < <(running "${chosen[@]}")
  [ "${#pids[@]}" -gt 0 ] || { say "$name: not running"; return 0; }
  # a broker takes its leave of the controllers, and a minority of these decides nothing
  [ "$(running 1 2 3 | wc -l)" -ge 2 ] || patience=3
  kill -CONT "${pids[@]}" # a stopped process does not hear a shutdown
  kill -TERM "${pids[@]}"
  wait_gone "$patience" "${pids[@]}" || { say "$name: no clean shutdown within $patience s, SIGKILL"; verb_kill "${nodes[@]}"; }
  for n in "${nodes[@]}"; do wait_port_free "$(port_of "$n")" || true; done
  say "$name: stopped nodes ${nodes[*]}"
}

verb_status() {
  local n p state rc=0
  for n in 1 2 3; do
    state=running
    if p=$(pid_of "$n"); then
      [ "$(process_state "$p")" != T ] || state=paused
      echo "$name $state node=$n pid=$p port=$(port_of "$n")" \
        "rss_mib=$(awk '/VmRSS/{print int($2/1024)}' "/proc/$p/status") data=$(dir_of "$n")"
    else
      echo "$name stopped node=$n port=$(port_of "$n") data=$(dir_of "$n")"
      rc=3
    fi
  done
  return "$rc"
}

# partitions TOPIC: "partition leader in-sync-replicas" lines, the leader -1 when there is none; kcat because the
# stock tool takes seconds
partitions() {
  have kcat || apt_install kcat
  # a node that is paused accepts connections and answers nothing: then kcat asks another
  kcat -b "$plaintext" -X socket.timeout.ms=2000 -X socket.connection.setup.timeout.ms=2000 -m 5 -L -J -t "$1" 2>/dev/null |
    python3 -c '
import json, sys
for topic in json.load(sys.stdin)["topics"]:
    if topic.get("error"):
        sys.exit(topic["error"])
    for p in topic["partitions"]:
        print(p["partition"], p["leader"], len(p["isrs"]))'
}

verb_leader() {
  local topic=${1:-} partition=${2:-0} lines p leader _
  [ -n "$topic" ] || die_usage "leader TOPIC [PARTITION]"
  lines=$(partitions "$topic") || die "nothing is known of the topic $topic"
  while read -r p leader _; do
    if [ "$p" = "$partition" ] && [ "$leader" -gt 0 ]; then echo "$leader"; return 0; fi
  done <<<"$lines"
  die "partition $partition of $topic has no leader"
}

verb_wait_isr() {
  local topic=${1:-} count=${2:-} end=$((SECONDS + 60)) lines
  [[ -n $topic && $count == [0-3] ]] || die_usage "wait-isr TOPIC COUNT"
  until lines=$(partitions "$topic" 2>/dev/null) && [ -n "$lines" ] && ! grep -qv " $count\$" <<<"$lines"; do
    [ "$SECONDS" -lt "$end" ] || die "$topic has not $count in-sync replicas after 60 s; partition, leader, replicas: ${lines//$'\n'/, }"
    sleep 0.2
  done
}

component "$@"
