# shellcheck shell=bash disable=SC2034,SC2154
# A node of Elasticsearch or OpenSearch from the jars on Maven Central; sourced after lib.sh, never run. The script
# that does so sets
#   name, port_var, port, url_var, data   as every component
#   engine       elasticsearch | opensearch: the profile in elasticsearch/pom.xml, and the name of its settings file
#   version      as in the pom
#   oldest_java, newest_java               majors that it runs on
#   node_class   the launcher's class; an argument of it tells our process

transport_port=$((port + 1))
# Keyed by all that the folder is made from: a change makes a new one, and an old checkout keeps its own.
built=$cache_dir/$engine-$(cat "$dev/elasticsearch/pom.xml" "$dev"/elasticsearch/*.java "$dev/search-lib.sh" | sha256sum | cut -c1-12)

verb_url() { echo "http://127.0.0.1:$port"; }

# The newest JDK (its compiler too) that the engine runs on.
find_jdk() {
  local j major
  {
    for j in "${JAVA_HOME:-/nonexistent}" /usr/lib/jvm/*; do
      if [ ! -x "$j/bin/javac" ] || [ ! -e "$j/release" ]; then continue; fi
      major=$(sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$j/release")
      if [ "${major:-0}" -ge "$oldest_java" ] && [ "$major" -le "$newest_java" ]; then echo "$major $j"; fi
    done
  } | sort -srn -k1,1 | head -n 1 | cut -d' ' -f2- | grep .
}

# Of several that a distribution has, the newest that fits.
jdk_package() {
  local major
  for ((major = newest_java; major >= oldest_java; major--)); do
    if apt-cache policy "openjdk-$major-jdk-headless" 2>/dev/null | grep -q 'Candidate: [0-9]'; then
      echo "openjdk-$major-jdk-headless"
      return 0
    fi
  done
  return 1
}

require_jdk() {
  local package
  if find_jdk >/dev/null; then return 0; fi
  if have apt-get; then
    # a new machine has no lists yet
    if package=$(jdk_package) || { apt_update && package=$(jdk_package); }; then apt_install "$package"; fi
  fi
  find_jdk >/dev/null ||
    die_missing "$name needs a JDK, Java $oldest_java to $newest_java, and this system's packages have none; install one" \
      "(Temurin from Adoptium, say) in /usr/lib/jvm or name it by JAVA_HOME, or name a server of yours by $url_var"
}

# For the oldest Java that may run it, whichever compiles it now.
compile() { # compile FOLDER FILE
  "$jdk/bin/javac" --release "$oldest_java" -nowarn -proc:none -cp "$built.new/lib/*" -d "$1" "$2" >"$built.new/javac.out" 2>&1 ||
    { cat "$built.new/javac.out" >&2; die "javac failed"; }
}

verb_install() {
  local jdk
  require_jdk
  if [ -e "$built" ]; then return 0; fi
  have mvn || apt_install maven
  have curl || apt_install curl
  jdk=$(find_jdk)
  mkdir -p "$cache_dir"
  (
    flock 8 # several copies may start at once
    [ ! -e "$built" ] || exit 0
    say "$name: fetching its jars into $built"
    rm -rf "$built.new"
    mkdir -p "$built.new/lib" "$built.new/classes"
    mvn -B -q --strict-checksums -f "$dev/elasticsearch/pom.xml" -P "$engine" dependency:copy-dependencies \
      -DincludeScope=runtime -DoutputDirectory="$built.new/lib" </dev/null >"$built.new/mvn.out" 2>&1 ||
      { cat "$built.new/mvn.out" >&2; die_missing "mvn could not fetch the jars of $name"; }
    "build_$engine"
    mv "$built.new" "$built"
  ) 8>"$cache_dir/.$engine.lock"
}

# The server loads its modules from folders of their own; the one that answers GET / is not on Maven Central.
build_elasticsearch() {
  local netty=$built.new/modules/transport-netty4 root_module=$built.new/modules/rest-root platform=linux-x64 v z
  [ "$(uname -m)" != aarch64 ] || platform=linux-aarch64
  mkdir -p "$netty" "$root_module" "$built.new/root-classes" "$built.new/platform/$platform"
  mv "$built.new"/lib/netty-*.jar "$built.new"/lib/transport-netty4-*.jar "$netty/"
  (
    cd "$netty" || exit
    "$jdk/bin/jar" xf transport-netty4-*.jar META-INF/es-plugins/transport-netty4/plugin-descriptor.properties
    mv META-INF/es-plugins/transport-netty4/plugin-descriptor.properties .
    rm -r META-INF
  )
  compile "$built.new/classes" "$dev/elasticsearch/EsNode.java"
  compile "$built.new/root-classes" "$dev/elasticsearch/RootPlugin.java"
  "$jdk/bin/jar" cf "$root_module/rest-root.jar" -C "$built.new/root-classes" .
  # a jar, since class-data sharing takes no folders
  "$jdk/bin/jar" cf "$built.new/launcher.jar" -C "$built.new/classes" .
  v=$(sed -n 's/^version=//p' "$netty/plugin-descriptor.properties")
  printf '%s\n' 'description=root' "version=$v" 'name=rest-root' 'classname=RootPlugin' 'java.version=21' \
    "elasticsearch.version=$v" >"$root_module/plugin-descriptor.properties"
  # It loads libzstd itself; without one, native calls are off, which is fine for tests.
  z=$(find /usr/lib -name libzstd.so.1 -print -quit 2>/dev/null || true)
  [ -z "$z" ] || cp -L "$z" "$built.new/platform/$platform/libzstd.so"
}

build_opensearch() { compile "$built.new/classes" "$dev/elasticsearch/OsNode.java"; }

service_pid() {
  local p
  p=$(pid_from "$data/$engine.pid" "$node_class") || return 1
  # the folder tells this copy from another
  tr '\0' '\n' <"/proc/$p/cmdline" | grep -qxF -- "$data" || return 1
  echo "$p"
}

write_settings() {
  mkdir -p "$data"/{config,data,logs,tmp,lib,plugins}
  cat >"$data/config/log4j2.properties" <<'P'
status = error
appender.c.type = Console
appender.c.name = c
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] [%node_name]%marker %m%n
rootLogger.level = info
rootLogger.appenderRef.c.ref = c
P
  cat >"$data/config/$engine.yml" <<P
cluster.name: tracium
node.name: node
path.data: $data/data
path.logs: $data/logs
network.host: 127.0.0.1
http.port: $port
transport.port: $transport_port
discovery.type: single-node
# a nearly full disk of a developer is no reason to refuse writes
cluster.routing.allocation.disk.threshold_enabled: false
node.processors: 2
P
}

verb_start() {
  local jdk t0
  local -a command
  if already_up; then return 0; fi
  require_port_free "$port"
  require_port_free "$transport_port"
  verb_install
  t0=$(now_ms)
  make_data_dir
  write_settings
  jdk=$(find_jdk)
  command=("$jdk/bin/java" -Xms64m "-Xmx$heap" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dfile.encoding=UTF-8
    "-Djava.io.tmpdir=$data/tmp" -Dlog4j2.disable.jmx=true)
  if [ "$engine" = elasticsearch ]; then
    ln -sfn "$built/modules" "$data/modules"
    ln -sfn "$built/platform" "$data/lib/platform"
    # shellcheck disable=SC2054  # the commas are the JVM's
    command+=(-XX:+AutoCreateSharedArchive "-XX:SharedArchiveFile=$built/node.jsa" -Xlog:disable -Xlog:all=warning:stderr
      --enable-native-access=ALL-UNNAMED,org.elasticsearch.nativeaccess,org.elasticsearch.foreign,org.apache.lucene.core
      --sun-misc-unsafe-memory-access=allow -Dorg.elasticsearch.nativeaccess.enableVectorLibrary=false "-Des.path.home=$data"
      --module-path "$built/lib" --add-modules=ALL-MODULE-PATH,jdk.net -cp "$built/launcher.jar" "$node_class" "$data")
  else
    command+=(-cp "$built/classes:$built/lib/*" "$node_class" "$data")
  fi
  spawn "$data/$engine.pid" "$data/server.log" env "JAVA_HOME=$jdk" "${command[@]}"
  await_ready "$data/$engine.pid" "$data/server.log" 240 \
    curl -sf -m 5 "$(verb_url)/_cluster/health?wait_for_status=yellow&timeout=4s"
  say "$name: up, pid=$(service_pid) port=$port version=$version java=${jdk##*/} ms=$(($(now_ms) - t0)) log=$data/server.log"
}

verb_stop() { stop_by_term 30; }

# What keeps late writes harmless: an external version that is lower is refused with 409.
verb_check() {
  local url index t0 body status seen
  have curl || apt_install curl
  url=$(service_url)
  url=${url%/}
  index=tracium-check-$$-$RANDOM
  t0=$(now_ms)
  send() { # send METHOD PATH [JSON]: prints the body, and the status on a line of its own
    curl -sS -m 20 -w '\n%{http_code}' -X "$1" -H 'content-type: application/json' ${3:+-d "$3"} "$url$2" 2>&1
  }
  expect() { # expect STATUS METHOD PATH [JSON]: the body into `body`
    local wanted=$1
    shift
    body=$(send "$@") || die_missing "no answer to $1 $2: ${body%%$'\n'*}"
    status=${body##*$'\n'}
    body=${body%$'\n'*}
    [ "$status" != "$wanted" ] || return 0
    send DELETE "/$index" >/dev/null || true
    body=${body//$'\n'/ }
    die "$1 $2 was answered with $status, not $wanted: ${body:0:200}"
  }
  expect 200 PUT "/$index" '{"settings":{"number_of_shards":1,"number_of_replicas":0}}'
  expect 201 PUT "/$index/_doc/1?version_type=external&version=5" '{"n":5}'
  expect 409 PUT "/$index/_doc/1?version_type=external&version=4" '{"n":4}'
  expect 200 PUT "/$index/_doc/1?version_type=external&version=6" '{"n":6}'
  expect 200 GET "/$index/_source/1" # by its key, so at once
  seen=$body
  expect 200 DELETE "/$index"
  [ "$seen" = '{"n":6}' ] || die "the document is $seen, not that of the highest version"
  expect 200 GET /
  say "$name: checked in $(($(now_ms) - t0)) ms, version $(sed -n 's/.*"number" *: *"\([^"]*\)".*/\1/p' <<<"$body")"
}
