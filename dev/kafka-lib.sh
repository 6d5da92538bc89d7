# shellcheck shell=bash disable=SC2034,SC2154
# Kafka brokers as components of the stack; sourced after lib.sh, never run. The script that does so sets
#   name, port_var, port, url_var, data   as every component
#   plaintext                             host:port,... for the stock tools
# A broker has a folder here, DIR: its server.properties, pid, logs and storage.

# shellcheck source=dev/tls.sh
source "$dev/tls.sh"

cluster_id=MkU3OEVBNTcwNTJENDM2Qg # any fixed base64 UUID
oldest_java=17
# Keyed by the pinned versions: a changed pom fetches anew, and an old checkout keeps its own.
libs=$cache_dir/kafka-$(sha256sum <"$dev/kafka/pom.xml" | cut -c1-12)

# "MAJOR JAVA" of each Java of the machine that is new enough, the newest first; by the file that each JDK carries
# (asking `java -version` takes 0.1 s).
javas() {
  local j major
  {
    [ -z "${TRACIUM_JAVA:-}" ] || echo "99 $TRACIUM_JAVA"
    for j in "${JAVA_HOME:-/nonexistent}" /usr/lib/jvm/* "$(readlink -f "$(command -v java || true)" | sed 's#/bin/java$##')"; do
      if [ ! -x "$j/bin/java" ] || [ ! -e "$j/release" ]; then continue; fi
      major=$(sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$j/release")
      if [ "${major:-0}" -ge "$oldest_java" ]; then echo "$major $j/bin/java"; fi
    done
  } | sort -srn -k1,1
}

find_java() { javas | head -n 1 | grep .; }

# one that has a compiler beside it
find_jdk() {
  local major java
  while read -r major java; do
    if [ -x "${java%java}javac" ]; then echo "$major $java"; return 0; fi
  done < <(javas)
  return 1
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

# Java options that every one of our JVMs needs; LOGFILE LEVEL
java_common() {
  printf '%s\n' -Djava.awt.headless=true -cp "$libs/*" "-Dkafka.log=$1" "-Dkafka.loglevel=$2" \
    "-Dlog4j2.configurationFile=$dev/kafka/log4j2.properties"
}

broker_pid() { pid_from "$1/kafka.pid" "$1/server.properties"; }

secret_file() { (umask 077; printf '%s\n' "$2" >"$1"); } # secret_file FILE CONTENT

# write_keystores DIR CERTIFICATE...: the files from which a broker reads a certificate and its key, new at
# every start.
write_keystores() {
  local dir=$1 c
  shift
  make_tls
  for c in "$@"; do
    (umask 077; cat "$tls/$c.key" "$tls/$c.pem" >"$dir/$c-keystore.pem")
  done
}

# password_listener LISTENER DIR CERTIFICATE: the properties of one that asks for TLS and a password
password_listener() {
  cat <<P
listener.name.$1.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.$1.ssl.keystore.location=$2/$3-keystore.pem
listener.name.$1.num.network.threads=1
P
}

# common_props REPLICAS MIN_IN_SYNC
common_props() {
  cat <<P
sasl.enabled.mechanisms=SCRAM-SHA-512
ssl.keystore.type=PEM
# Nobody presents a certificate to the broker; but without this, Java parses all authorities of the machine
# at the start, once for each network thread (three per listener by default).
ssl.truststore.type=PEM
ssl.truststore.location=$tls/ca.pem
num.partitions=1
default.replication.factor=$1
min.insync.replicas=$2
offsets.topic.replication.factor=$1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=$1
transaction.state.log.min.isr=$2
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=$1
share.coordinator.state.topic.min.isr=$2
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

# format_storage DIR ARGS: unless it is
format_storage() {
  local dir=$1 java _
  local -a opts
  shift
  [ ! -e "$dir/log/meta.properties" ] || return 0
  read -r _ java < <(find_java)
  mapfile -t opts < <(java_common "$dir/format.log" INFO)
  # in a file: the arguments of a process can be read by all
  secret_file "$dir/add-scram" "SCRAM-SHA-512=[name=$kafka_user,password=$(password_of kafka)]"
  "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "${opts[@]}" kafka.tools.StorageTool format \
    -t "$cluster_id" -c "$dir/server.properties" --add-scram "@$dir/add-scram" "$@" </dev/null >"$dir/format.out" 2>&1 ||
    { cat "$dir/format.out" >&2; die "could not format the storage in $dir/log"; }
  rm "$dir/add-scram"
}

# spawn_broker DIR JVM_OPTIONS: returns when its process is there
spawn_broker() {
  local dir=$1 java major
  local -a opts cds=()
  shift
  read -r major java < <(find_java)
  # A class-data archive, written at a clean shutdown, halves the later start-ups. It is written once: another
  # name when a broker is to load more than before.
  if [ "$major" -ge 19 ]; then
    cds=(-XX:+AutoCreateSharedArchive "-XX:SharedArchiveFile=$libs/kafka-java$major-sasl-ssl.jsa")
  fi
  stat -c %s "$dir/kafka.log" >"$dir/log-mark" 2>/dev/null || echo 0 >"$dir/log-mark"
  mapfile -t opts < <(java_common "$dir/kafka.log" INFO)
  cd "$dir" || exit # for what a dying JVM leaves behind
  spawn "$dir/kafka.pid" "$dir/kafka.out" "$java" -server "$@" "${cds[@]}" "${opts[@]}" kafka.Kafka "$dir/server.properties"
}

# await_broker DIR PORT
await_broker() {
  local dir=$1 mark end=$((SECONDS + 240))
  mark=$(<"$dir/log-mark")
  # 'Kafka Server started' comes after the broker is registered, has caught up and is unfenced.
  until tail -c +$((mark + 1)) "$dir/kafka.log" 2>/dev/null | grep -q 'Kafka Server started' && listening 127.0.0.1 "$2"; do
    # not broker_pid: for a moment the pid is that of a shell that is about to become the broker
    wait_gone 0 "$(<"$dir/kafka.pid")" && { tail -n 30 "$dir/kafka.log" "$dir/kafka.out" >&2; die "the broker exited"; }
    [ "$SECONDS" -lt "$end" ] || die "the broker is not ready after 240 s, see $dir/kafka.log"
    sleep 0.05
  done
}

# The password lives in the storage, salted; the file tells which one.
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

verb_java() { find_java; }

# A message through a topic of its own, acknowledged by all replicas.
verb_check() {
  local at topic t0 got version=
  at=$(service_url)
  topic=tracium-check-$$
  t0=$(now_ms)
  have kcat || apt_install kcat
  plaintext=$at verb_quiet topics --create --topic "$topic" --partitions 1
  echo "it is there" | timeout 90 kcat -q -P -b "$at" -t "$topic" -k k -X acks=all || die "the message was not taken"
  got=$(timeout 90 kcat -q -C -b "$at" -t "$topic" -o beginning -c 1 -f '%k=%s')
  plaintext=$at verb_quiet topics --delete --topic "$topic"
  [ "$got" = "k=it is there" ] || die "the topic holds '$got'"
  # a broker does not tell its own
  external || version=$(sed -n 's#.*<kafka.version>\(.*\)</kafka.version>.*#\1#p' "$dev/kafka/pom.xml")
  say "$name: checked in $(($(now_ms) - t0)) ms${version:+, version $version}"
}
# a stock tool, whose exec must not end the caller
verb_quiet() {
  local tool=$1 out
  shift
  out=$("verb_$tool" "$@" 2>&1) || { say "$out"; die "$tool $1 failed"; }
}

tool() { # tool CLASS ARGS
  local class=$1 java _
  local -a opts
  shift
  verb_install
  read -r _ java < <("${java_by:-find_java}")
  mapfile -t opts < <(java_common /dev/null ERROR)
  exec "$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx256m "${opts[@]}" "$class" "$@"
}
verb_topics() { tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$plaintext" "$@"; }
verb_configs() { tool org.apache.kafka.tools.ConfigCommand --bootstrap-server "$plaintext" "$@"; }
verb_groups() { tool org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$plaintext" "$@"; }
verb_get_offsets() { tool org.apache.kafka.tools.GetOffsetShell --bootstrap-server "$plaintext" "$@"; }
verb_txn() { tool org.apache.kafka.tools.TransactionsCommand --bootstrap-server "$plaintext" "$@"; }
verb_dumplog() { tool org.apache.kafka.tools.DumpLogSegments "$@"; }

verb_run() {
  find_jdk >/dev/null || apt_install default-jdk-headless
  find_jdk >/dev/null || die_missing "no JDK $oldest_java or newer after installing default-jdk-headless"
  # Kafka's zstd is native code, at which a new Java wonders
  java_by=find_jdk tool --enable-native-access=ALL-UNNAMED "$@"
}
