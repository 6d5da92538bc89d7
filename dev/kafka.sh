#!/usr/bin/env bash
# One Apache Kafka broker (KRaft, broker and controller in one process) on loopback: dev/kafka.sh VERB
#
#   install              its jars, by Maven from the versions pinned in kafka/pom.xml
#   start | stop         the storage is formatted at the first start; stop is a clean shutdown
#   restart | kill       kill is SIGKILL; start recovers
#   pause | resume       SIGSTOP / SIGCONT
#   status | url | env | wipe
#   java                 prints the version and path of the Java that would run it
#   topics | configs | groups | get-offsets | txn | dumplog ARGS     the stock command-line tools
#
# Its listeners, from TRACIUM_KAFKA_PORT (59192) on:
#   +0  plaintext, as 127.0.0.1: what the verbs above use
#   +1  the controller
#   +2  SASL_SSL as localhost: user `tracium` by SCRAM-SHA-512, password and authority in the folder that
#       `env` names
#   +3  the same with a certificate that has expired
#
# TRACIUM_KAFKA_PORT, TRACIUM_STACK_DIR (where its data
# lives), TRACIUM_CACHE_DIR (jars), TRACIUM_KAFKA_HEAP (768m), TRACIUM_JAVA (a java binary, 17 or
# newer), TRACIUM_KAFKA_PROPS (lines added to server.properties)
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=dev/tls.sh
source "$dev/tls.sh"

name=kafka
port_var=TRACIUM_KAFKA_PORT
port=${TRACIUM_KAFKA_PORT:-59192}
controller_port=$((port + 1))
tls_port=$((port + 2))
expired_port=$((port + 3))
url_var=TRACIUM_TEST_KAFKA_URL
data=$stack_dir/kafka-$port
props=$data/server.properties
log=$data/kafka.log
cluster_id=MkU3OEVBNTcwNTJENDM2Qg # any fixed base64 UUID
oldest_java=17
# Keyed by the pinned versions: a changed pom fetches anew, and an old checkout keeps its own.
libs=$cache_dir/kafka-$(sha256sum <"$dev/kafka/pom.xml" | cut -c1-12)

verb_url() { echo "127.0.0.1:$port"; }

verb_env() {
  make_tls
  export_lines "$url_var" "$(verb_url)" \
    TRACIUM_TEST_KAFKA_TLS_URL "localhost:$tls_port" TRACIUM_TEST_KAFKA_EXPIRED_URL "localhost:$expired_port" \
    TRACIUM_TEST_KAFKA_USER "$kafka_user" TRACIUM_TEST_KAFKA_PASSWORD "$(password_of kafka)" \
    TRACIUM_TEST_TLS_DIR "$tls"
}

# The newest Java of the machine, by the file that each JDK carries (asking `java -version` takes 0.1 s).
find_java() {
  local j major
  {
    [ -z "${TRACIUM_JAVA:-}" ] || echo "99 $TRACIUM_JAVA"
    for j in "${JAVA_HOME:-/nonexistent}" /usr/lib/jvm/* "$(readlink -f "$(command -v java || true)" | sed 's#/bin/java$##')"; do
      if [ ! -x "$j/bin/java" ] || [ ! -e "$j/release" ]; then continue; fi
      major=$(sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$j/release")
      if [ "${major:-0}" -ge "$oldest_java" ]; then echo "$major $j/bin/java"; fi
    done
  } | sort -srn -k1,1 | head -n 1 | grep .
}

verb_install() {
  local -a missing=()
  find_java >/dev/null || missing+=(default-jre-headless)
  if [ -e "$libs/.complete" ] && [ "${#missing[@]}" = 0 ]; then return 0; fi
  if [ ! -e "$libs/.complete" ] && ! have mvn; then missing+=(maven); fi
  if [ "${#missing[@]}" -gt 0 ]; then
    apt_install "${missing[@]}"
    find_java >/dev/null || die_missing "no Java $oldest_java or newer after installing ${missing[*]}"
  fi
  mkdir -p "$cache_dir"
  (
    flock 8 # several copies may start at once
    [ ! -e "$libs/.complete" ] || exit 0
    say "$name: fetching the broker's jars into $libs"
    rm -rf "$libs"
    mkdir -p "$libs"
    # even its quiet mode prints colour codes: shown only when it fails
    mvn -B -q --strict-checksums -f "$dev/kafka/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
      -DoutputDirectory="$libs" </dev/null >"$libs/mvn.out" 2>&1 ||
      { cat "$libs/mvn.out" >&2; die_missing "mvn could not fetch the broker's jars"; }
    touch "$libs/.complete"
  ) 8>"$cache_dir/.kafka-jars.lock"
}

# The files from which the broker reads a certificate and its key, new at every start.
write_keystores() {
  local c
  make_tls
  for c in server expired; do
    (umask 077; cat "$tls/$c.key" "$tls/$c.pem" >"$data/$c-keystore.pem")
  done
}

service_pid() { pid_from "$data/kafka.pid" "$props"; }

write_props() {
  cat >"$props" <<P
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port,SASL_SSL://127.0.0.1:$tls_port,EXPIRED://127.0.0.1:$expired_port
advertised.listeners=PLAINTEXT://127.0.0.1:$port,SASL_SSL://localhost:$tls_port,EXPIRED://localhost:$expired_port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,EXPIRED:SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.expired.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
listener.name.sasl_ssl.ssl.keystore.location=$data/server-keystore.pem
listener.name.expired.ssl.keystore.location=$data/expired-keystore.pem
# Nobody presents a certificate to the broker; but without this, Java parses all authorities of the machine
# at the start, once for each network thread (three per listener by default).
ssl.truststore.type=PEM
ssl.truststore.location=$tls/ca.pem
listener.name.sasl_ssl.num.network.threads=1
listener.name.expired.num.network.threads=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
controller.quorum.bootstrap.servers=127.0.0.1:$controller_port
log.dirs=$data/log
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# a group of one need not wait for more members
group.initial.rebalance.delay.ms=0
# a misspelt topic must fail, as it does in production
auto.create.topics.enable=false
delete.topic.enable=true
log.segment.delete.delay.ms=1000
log.cleaner.backoff.ms=1000
log.retention.hours=24
# a broker that was killed may register again only once its old session has run out
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
${TRACIUM_KAFKA_PROPS:-}
P
}

# Java options that every one of our JVMs needs; LOGFILE LEVEL
java_common() {
  printf '%s\n' -Djava.awt.headless=true -cp "$libs/*" "-Dkafka.log=$1" "-Dkafka.loglevel=$2" \
    "-Dlog4j2.configurationFile=$dev/kafka/log4j2.properties"
}

verb_start() {
  local p java major t0 mark end
  local -a opts cds=()
  if p=$(service_pid); then
    if [ "$(process_state "$p")" = T ]; then verb_resume; fi
    say "$name: already up, pid=$p port=$port"
    return 0
  fi
  for p in "$port" "$controller_port" "$tls_port" "$expired_port"; do require_port_free "$p"; done
  verb_install
  t0=$(now_ms)
  make_data_dir
  read -r major java < <(find_java)
  write_keystores
  write_props

  if [ ! -e "$data/log/meta.properties" ]; then
    mapfile -t opts < <(java_common "$data/format.log" INFO)
    # in a file: the arguments of a process can be read by all
    secret_file "$data/add-scram" "SCRAM-SHA-512=[name=$kafka_user,password=$(password_of kafka)]"
    "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "${opts[@]}" kafka.tools.StorageTool format \
      -t "$cluster_id" -c "$props" --standalone --add-scram "@$data/add-scram" </dev/null >"$data/format.out" 2>&1 ||
      { cat "$data/format.out" >&2; die "could not format the storage in $data/log"; }
    rm "$data/add-scram"
    password_set
  fi

  # A class-data archive, written at a clean shutdown, halves the later start-ups. It is written once: another
  # name when a broker is to load more than before.
  if [ "$major" -ge 19 ]; then
    cds=(-XX:+AutoCreateSharedArchive "-XX:SharedArchiveFile=$libs/kafka-java$major-sasl-ssl.jsa")
  fi
  mark=$(stat -c %s "$log" 2>/dev/null || echo 0)
  mapfile -t opts < <(java_common "$log" INFO)
  cd "$data" # for what a dying JVM leaves behind
  spawn "$data/kafka.pid" "$data/kafka.out" "$java" -server -Xms256m "-Xmx${TRACIUM_KAFKA_HEAP:-768m}" \
    -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "${cds[@]}" "${opts[@]}" \
    kafka.Kafka "$props"
  # 'Kafka Server started' comes after the broker is registered, has caught up and is unfenced.
  end=$((SECONDS + 90))
  until tail -c +$((mark + 1)) "$log" 2>/dev/null | grep -q 'Kafka Server started' && listening 127.0.0.1 "$port"; do
    # not service_pid: for a moment the pid is that of a shell that is about to become the broker
    wait_gone 0 "$(<"$data/kafka.pid")" && { tail -n 30 "$log" "$data/kafka.out" >&2; die "the broker exited"; }
    [ "$SECONDS" -lt "$end" ] || die "the broker is not ready after 90 s, see $log"
    sleep 0.05
  done
  add_user
  say "$name: up, pid=$(service_pid) port=$port java=$major ms=$(($(now_ms) - t0)) log=$log"
}

secret_file() { (umask 077; printf '%s\n' "$2" >"$1"); } # secret_file FILE CONTENT

# The password lives in the storage, salted; this tells which one.
password_set() { secret_file "$data/kafka-password" "$(password_of kafka)"; }

# For storage that was formatted before there was a user, or with the password of a former tls folder.
add_user() {
  ! cmp -s "$tls/kafka-password" "$data/kafka-password" || return 0
  secret_file "$data/user.properties" "SCRAM-SHA-512=password=$(password_of kafka)"
  (verb_configs --alter --entity-type users --entity-name "$kafka_user" --add-config-file "$data/user.properties") \
    </dev/null >"$data/user.out" 2>&1 ||
    { cat "$data/user.out" >&2; verb_kill; die "could not add the user $kafka_user"; }
  rm "$data/user.properties"
  password_set
}

verb_stop() {
  local p
  p=$(service_pid) || { say "$name: not running"; return 0; }
  kill -CONT "$p" # a stopped process does not hear a shutdown
  kill -TERM "$p"
  wait_gone 30 "$p" || { say "$name: no clean shutdown within 30 s, SIGKILL"; verb_kill; }
  wait_port_free "$port" || true
  say "$name: stopped pid=$p"
}

verb_java() { find_java; }

tool() { # tool CLASS ARGS
  local class=$1 java _
  local -a opts
  shift
  verb_install
  read -r _ java < <(find_java)
  mapfile -t opts < <(java_common /dev/null ERROR)
  exec "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m "${opts[@]}" "$class" "$@"
}
at=(--bootstrap-server "127.0.0.1:$port")
verb_topics() { tool org.apache.kafka.tools.TopicCommand "${at[@]}" "$@"; }
verb_configs() { tool org.apache.kafka.tools.ConfigCommand "${at[@]}" "$@"; }
verb_groups() { tool org.apache.kafka.tools.consumer.group.ConsumerGroupCommand "${at[@]}" "$@"; }
verb_get_offsets() { tool org.apache.kafka.tools.GetOffsetShell "${at[@]}" "$@"; }
verb_txn() { tool org.apache.kafka.tools.TransactionsCommand "${at[@]}" "$@"; }
verb_dumplog() { tool kafka.tools.DumpLogSegments "$@"; }

component "$@"
