#!/usr/bin/env bash
# One Apache Kafka broker (KRaft, broker and controller in one process) on loopback: dev/kafka.sh VERB
#
#   install              its jars, by Maven from the versions pinned in kafka/pom.xml
#   start | stop         the storage is formatted at the first start; stop is a clean shutdown
#   restart | kill       kill is SIGKILL; start recovers
#   pause | resume       SIGSTOP / SIGCONT
#   status | url | env | check | wipe
#   java                 prints the version and path of the Java that would run it
#   topics | configs | groups | get-offsets | txn | dumplog ARGS     the stock command-line tools
#   run FILE.java ARGS   a program in one file, with Kafka's own client beside it
#
# Its listeners, from TRACIUM_KAFKA_PORT (59192) on:
#   +0  plaintext, as 127.0.0.1: what the verbs above use
#   +1  the controller
#   +2  SASL_SSL as localhost: user `tracium` by SCRAM-SHA-512, password and authority in the folder that
#       `env` names
#   +3  the same with a certificate that has expired
#
# TRACIUM_KAFKA_PORT, TRACIUM_STACK_DIR (where its data lives), TRACIUM_CACHE_DIR (jars),
# TRACIUM_KAFKA_HEAP (768m), TRACIUM_JAVA (a java binary, 17 or newer), TRACIUM_KAFKA_PROPS (lines added to
# server.properties)
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=kafka
port_var=TRACIUM_KAFKA_PORT
port=${TRACIUM_KAFKA_PORT:-59192}
controller_port=$((port + 1))
tls_port=$((port + 2))
expired_port=$((port + 3))
url_var=TRACIUM_TEST_KAFKA_URL
data=$stack_dir/kafka-$port
plaintext=127.0.0.1:$port
# shellcheck source=dev/kafka-lib.sh
source "$dev/kafka-lib.sh"

verb_url() { echo "$plaintext"; }

verb_env() {
  make_tls
  export_lines "$url_var" "$(verb_url)" \
    TRACIUM_TEST_KAFKA_TLS_URL "localhost:$tls_port" TRACIUM_TEST_KAFKA_EXPIRED_URL "localhost:$expired_port" \
    TRACIUM_TEST_KAFKA_USER "$kafka_user" TRACIUM_TEST_KAFKA_PASSWORD "$(password_of kafka)" \
    TRACIUM_TEST_TLS_DIR "$tls"
}

service_pid() { broker_pid "$data"; }

write_props() {
  cat >"$data/server.properties" <<P
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port,SASL_SSL://127.0.0.1:$tls_port,EXPIRED://127.0.0.1:$expired_port
advertised.listeners=PLAINTEXT://127.0.0.1:$port,SASL_SSL://localhost:$tls_port,EXPIRED://localhost:$expired_port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,EXPIRED:SASL_SSL
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
controller.quorum.bootstrap.servers=127.0.0.1:$controller_port
log.dirs=$data/log
$(password_listener sasl_ssl "$data" server)
$(password_listener expired "$data" expired)
$(common_props 1 1)
P
}

verb_start() {
  local p t0
  if already_up; then return 0; fi
  for p in "$port" "$controller_port" "$tls_port" "$expired_port"; do require_port_free "$p"; done
  verb_install
  t0=$(now_ms)
  make_data_dir
  write_keystores "$data" server expired
  write_props
  if [ ! -e "$data/log/meta.properties" ]; then
    format_storage "$data" --standalone
    password_set
  fi
  spawn_broker "$data" -Xms256m "-Xmx${TRACIUM_KAFKA_HEAP:-768m}" \
    -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35
  await_broker "$data" "$port"
  add_user
  say "$name: up, pid=$(service_pid) port=$port java=$(find_java | cut -d' ' -f1) ms=$(($(now_ms) - t0)) log=$data/kafka.log"
}

verb_stop() { stop_by_term 30; }

component "$@"
