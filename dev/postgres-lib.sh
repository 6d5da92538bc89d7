# shellcheck shell=bash disable=SC2034,SC2154
# A PostgreSQL cluster as a component of the stack; sourced, never run. The script that does so sets
#   name, port_var, port, url_var   as every component
#   speaks_tls                      `yes` after sourcing tls.sh, or empty
# and defines
#   server_folders                  prints the folders with a whole server that it may run, the preferred first
#   verb_install

data=$stack_dir/$name-$port
pgdata=$data/pgdata
oldest=15

# Clients prefer TLS when a server has it; the tests and benchmarks that are not about it do without, as they did.
verb_url() { echo "postgres://tracium@127.0.0.1:$port/postgres?sslmode=disable"; }

# initdb and postgres refuse to run as root.
owner=()
if [ "$(id -u)" = 0 ]; then owner=(runuser -u "${TRACIUM_PG_USER:-postgres}" --); fi
as_owner() { "${owner[@]}" "$@"; }
# owner_file PATH: from stdin, for the server's user only
# shellcheck disable=SC2016  # for the inner shell to expand
owner_file() { as_owner sh -c 'umask 077; cat >"$1.new" && mv "$1.new" "$1"' _ "$1"; }

major_of() { "$1/postgres" --version | sed 's/.* \([0-9]\+\).*/\1/'; }

# An existing cluster needs its own major version; a new one takes any that is new enough.
find_bin() {
  local d major wanted=
  if [ -d "$pgdata" ]; then wanted=$(as_owner cat "$pgdata/PG_VERSION"); fi
  for d in $(server_folders); do
    major=$(major_of "$d")
    if [ "$major" = "$wanted" ] || { [ -z "$wanted" ] && [ "$major" -ge "$oldest" ]; }; then
      echo "$d"
      return 0
    fi
  done
  [ -z "$wanted" ] ||
    die "the cluster in $pgdata is of PostgreSQL $wanted, which is not installed; dev/stack reset $name starts anew"
  return 1
}

service_pid() { pid_from "$pgdata/postmaster.pid" "$pgdata"; }

make_cluster() {
  local bin=$1
  if [ "$(id -u)" = 0 ]; then
    id "${TRACIUM_PG_USER:-postgres}" >/dev/null 2>&1 ||
      die_missing "no user '${TRACIUM_PG_USER:-postgres}' to run PostgreSQL as; useradd --system postgres"
    chown "${TRACIUM_PG_USER:-postgres}" "$data"
    as_owner test -w "$data" ||
      die_usage "the user '${TRACIUM_PG_USER:-postgres}' cannot reach $data; set TRACIUM_STACK_DIR to a folder that it can"
  fi
  # Made aside and moved: an interrupted initdb leaves nothing that looks like a cluster.
  as_owner rm -rf "$pgdata.new"
  as_owner "$bin/initdb" -D "$pgdata.new" -U tracium -A trust -E UTF8 --locale=C.UTF-8 --no-sync \
    >"$stack_dir/.initdb-$port.log" 2>&1 || { cat "$stack_dir/.initdb-$port.log" >&2; die "initdb failed"; }
  rm -f "$stack_dir/.initdb-$port.log"
  as_owner tee -a "$pgdata.new/postgresql.conf" <<<"include 'tracium.conf'" >/dev/null
  as_owner mv "$pgdata.new" "$pgdata"
}

# Written at every start: a change here reaches clusters that exist.
write_conf() {
  as_owner tee "$pgdata/tracium.conf" >/dev/null <<P
port = $port
listen_addresses = '127.0.0.1'
# no socket file: copies side by side would need a folder each, and its path may be at most 107 bytes
unix_socket_directories = ''
fsync = on
synchronous_commit = on
wal_level = logical
max_wal_size = 4GB
shared_buffers = 256MB
# every test has a database and pools of its own, and all run at once
max_connections = 400
max_prepared_transactions = 10
max_replication_slots = 20
max_wal_senders = 20
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %u@%d %a '
${speaks_tls:+
ssl = on
ssl_cert_file = 'server.pem'
ssl_key_file = 'server.key'}
${TRACIUM_PG_CONF:-}
P
}

# Likewise at every start. The replication lines are for physical replication only, which `all` does not cover.
write_access() {
  make_tls
  owner_file "$pgdata/server.pem" <"$tls/server.pem"
  owner_file "$pgdata/server.key" <"$tls/server.key"
  owner_file "$pgdata/pg_hba.conf" <<P
hostnossl all,replication $postgres_tls_user all reject
hostssl all,replication $postgres_tls_user 127.0.0.1/32 scram-sha-256
hostssl all,replication $postgres_tls_user ::1/128 scram-sha-256
host all,replication all 127.0.0.1/32 trust
host all,replication all ::1/128 trust
P
}

# The role that must use TLS, in the mode of one backend without a server: that needs no psql, which is of
# another package. The file tells which password is in the cluster.
add_role() {
  local bin=$1 password out
  password=$(password_of postgres)
  as_owner cmp -s "$pgdata/tracium-password" - <<<"$password" && return 0
  out=$(closed_fds "${owner[@]}" "$bin/postgres" --single -D "$pgdata" -c exit_on_error=on \
    -c password_encryption=scram-sha-256 -c log_min_error_statement=panic postgres 2>&1 <<P
DO 'BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = ''$postgres_tls_user'') THEN CREATE ROLE $postgres_tls_user; END IF; END'
ALTER ROLE $postgres_tls_user SUPERUSER LOGIN PASSWORD '$password'
P
  ) || { say "$out"; die "could not add the role $postgres_tls_user"; }
  owner_file "$pgdata/tracium-password" <<<"$password"
}

# After a SIGKILL the pid file is left. PostgreSQL itself removes it when no such process exists, but takes
# a zombie (which a container's pid 1 may keep for long) for a running server. Backends that outlive
# their parent notice within a moment; until then, a second server on the same files would ruin them.
clear_stale_pid() {
  local p end=$((SECONDS + 30))
  as_owner test -e "$pgdata/postmaster.pid" || return 0
  for p in /proc/[0-9]*; do
    while [ "$(readlink "$p/cwd" 2>/dev/null)" = "$pgdata" ]; do # a zombie has no cwd
      [ "$SECONDS" -lt "$end" ] || die "$name: pid ${p#/proc/} of a server that was killed still runs in $pgdata"
      sleep 0.05
    done
  done
  as_owner rm -f "$pgdata/postmaster.pid"
}

verb_start() {
  local bin t0
  if already_up; then return 0; fi
  require_port_free "$port"
  verb_install
  t0=$(now_ms)
  make_data_dir
  cd / # the caller's folder may be closed to the server's user
  bin=$(find_bin)
  [ -d "$pgdata" ] || make_cluster "$bin"
  clear_stale_pid
  write_conf
  if [ -n "$speaks_tls" ]; then
    write_access
    add_role "$bin"
  fi
  closed_fds "${owner[@]}" "$bin/pg_ctl" -D "$pgdata" -l "$data/server.log" -w -t 60 start \
    </dev/null >/dev/null 2>&1 || { as_owner tail -n 20 "$data/server.log" >&2; die "the server did not start"; }
  say "$name: up, pid=$(service_pid) port=$port version=$(major_of "$bin") ms=$(($(now_ms) - t0)) log=$data/server.log"
}

verb_stop() {
  local p bin
  p=$(service_pid) || { say "$name: not running"; return 0; }
  verb_resume 2>/dev/null # a stopped process does not hear a shutdown
  cd /
  bin=$(find_bin)
  as_owner "$bin/pg_ctl" -D "$pgdata" -m fast -w -t 60 stop >/dev/null ||
    die "$name: no clean shutdown within 60 s; dev/stack kill $name ends it"
  say "$name: stopped pid=$p"
}

verb_psql() {
  exec psql -h 127.0.0.1 -p "$port" -U tracium -v ON_ERROR_STOP=1 "$@"
}

# createdb NAME: makes a database unless it is there, and prints its URL
verb_createdb() {
  local url
  [[ ${1:-} =~ ^[a-z][a-z0-9_]*$ ]] || die_usage "createdb NAME: small letters, digits and _, a letter first"
  url=$(service_url)
  have psql || apt_install postgresql-client
  [ "$(psql -X -A -t "$url" -c "SELECT 1 FROM pg_database WHERE datname = '$1'")" = 1 ] ||
    psql -X -q -v ON_ERROR_STOP=1 "$url" -c "CREATE DATABASE $1" >&2 || die "could not make the database $1"
  with_database "$url" "$1"
}

# A row written and claimed as a relay claims it; the version, and whether it keeps what it commits.
verb_check() {
  local url t0 got
  url=$(service_url)
  t0=$(now_ms)
  have psql || apt_install postgresql-client
  got=$(timeout 30 psql -X -q -A -t -v ON_ERROR_STOP=1 "$url" 2>&1 \
    -c 'CREATE TEMP TABLE tracium_check (id int)' -c 'INSERT INTO tracium_check VALUES (1)' \
    -c 'SELECT id FROM tracium_check FOR UPDATE SKIP LOCKED' \
    -c "SELECT current_setting('server_version') || ', fsync ' || current_setting('fsync')") || die "the server refuses: $got"
  [ "${got%%$'\n'*}" = 1 ] || die "a row that was just written is not there: $got"
  say "$name: checked in $(($(now_ms) - t0)) ms, version ${got#*$'\n'}"
}
