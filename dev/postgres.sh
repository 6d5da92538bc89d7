#!/usr/bin/env bash
# One PostgreSQL cluster (15 or newer) on loopback, run by an unprivileged user: dev/postgres.sh VERB
#
#   install              the server's package, if no server is found
#   start | stop         a cluster is made at the first start; stop is a fast, clean shutdown
#   restart | kill       kill is SIGKILL to all its processes; start recovers
#   pause | resume       SIGSTOP / SIGCONT to all its processes
#   status | url | env | check | wipe
#   psql ARGS            psql as the superuser
#   createdb NAME        makes a database unless it is there, and prints its URL
#   found                prints the folder of the server that would run; exits non-zero if there is none
#
# The superuser is `tracium`, trusted on loopback, with or without TLS. Another one, `tracium_tls`, must use TLS
# and its password, which `env` prints, with the folder of the authority to trust. Durability is what production has (fsync and
# synchronous_commit on): the tests are about what survives.
#
# TRACIUM_PG_PORT (55440), TRACIUM_STACK_DIR (where its data lives), TRACIUM_PG_BIN (a folder with
# initdb and postgres), TRACIUM_PG_USER (postgres; used only when you are root), TRACIUM_PG_CONF
# (lines added to the configuration)
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=dev/tls.sh
source "$dev/tls.sh"

name=postgres
port_var=TRACIUM_PG_PORT
port=${TRACIUM_PG_PORT:-55440}
url_var=TRACIUM_TEST_POSTGRES_URL
speaks_tls=yes
# shellcheck source=dev/postgres-lib.sh
source "$dev/postgres-lib.sh"

verb_env() {
  make_tls
  export_lines "$url_var" "$(verb_url)" \
    TRACIUM_TEST_POSTGRES_TLS_URL "postgres://$postgres_tls_user:$(password_of postgres)@localhost:$port/postgres" \
    TRACIUM_TEST_TLS_DIR "$tls"
}

# Folders that have a whole server, the preferred first. Debian keeps them off the PATH.
server_folders() {
  local d
  {
    [ -z "${TRACIUM_PG_BIN:-}" ] || echo "$TRACIUM_PG_BIN"
    if d=$(command -v initdb); then dirname "$(readlink -f "$d")"; fi
    printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV
    if have pg_config; then pg_config --bindir; fi
  } | while read -r d; do
    if [ -x "$d/initdb" ] && [ -x "$d/postgres" ] && [ -x "$d/pg_ctl" ]; then echo "$d"; fi
  done
}

verb_install() {
  # find_bin exits by itself for a cluster that no installed server can run
  if find_bin >/dev/null; then return 0; fi
  apt_install postgresql
  find_bin >/dev/null || die_missing "no PostgreSQL $oldest or newer after installing the package postgresql"
}

verb_found() { find_bin; }

component "$@"
