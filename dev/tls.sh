# shellcheck shell=bash disable=SC2034,SC2154
# What a service needs to speak TLS and to ask for a password; sourced after lib.sh, never run.
# make_tls puts into $stack_dir/tls, once for all services of a stack:
#
#   ca.pem                          what a client is to trust
#   server.pem  server.key          signed by it, for the name `localhost` only: a client that connects to
#                                   127.0.0.1 meets a certificate of another host
#   expired.pem  expired.key        the same, but valid in the year 2020 only
#   other-ca.pem                    an authority that has signed nothing here
#   kafka-password                  the passwords of the users below; hexadecimal, so that they stand in a
#   postgres-password               URL as they are
#
# Certificates can be read by all, keys and passwords by the owner only.

tls=$stack_dir/tls
kafka_user=tracium
postgres_tls_user=tracium_tls
tls_days=365

# openssl's settings; the same file for both authorities and what they sign
tls_conf() {
  cat <<'C'
[req]
distinguished_name = none
prompt = no
x509_extensions = authority
[none]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[ca]
default_ca = sign
[sign]
database = index
new_certs_dir = .
default_md = sha256
unique_subject = no
rand_serial = yes
policy = any
x509_extensions = server
[any]
commonName = supplied
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
C
}

# openssl talks on stderr also when all is well: shown only when it fails
quietly() {
  local out
  out=$("$@" 2>&1 </dev/null) || { say "$out"; die "failed: $1 $2"; }
}

# EC keys, in the PKCS #8 form that Kafka wants: an RSA key takes openssl up to a second.
tls_key() { quietly openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

tls_authority() { # tls_authority NAME: NAME.key and NAME.pem, in the current folder
  tls_key "$1.key"
  quietly openssl req -x509 -new -config conf -sha256 -key "$1.key" -days 3650 -subj "/CN=Tracium stack $1" -out "$1.pem"
}

# tls_sign FOLDER NAME FROM TO: NAME.key and NAME.pem for localhost, by the authority in FOLDER
tls_sign() {
  tls_key "$2.key"
  # `x509 -req` has no dates before openssl 3.4. The name must not be a host's: for an address, some
  # clients look there.
  quietly openssl req -new -config conf -key "$2.key" -subj "/CN=Tracium stack server" -out "$2.csr"
  quietly openssl ca -batch -notext -config conf -cert "$1/ca.pem" -keyfile "$1/ca.key" -in "$2.csr" -out "$2.pem" \
    -startdate "$3" -enddate "$4"
}

tls_sign_server() { # tls_sign_server FOLDER; from yesterday on, for a clock that was put back
  tls_sign "$1" server "$(date -u -d '1 day ago' +%Y%m%d%H%M%SZ)" "$(date -u -d "$tls_days days" +%Y%m%d%H%M%SZ)"
}

# valid_for DAYS FILE
valid_for() { openssl x509 -noout -checkend $(($1 * 86400)) -in "$2" >/dev/null 2>&1; }

# Returns at once when all is there. A running service keeps the certificate that it has started with: one
# that is to expire within a month is renewed for the next start, by the same authority.
make_tls() {
  have openssl || apt_install openssl
  make_stack_dir
  (
    flock 7 # the components of a stack start at once
    authority_stays=
    if valid_for $((tls_days + 30)) "$tls/ca.pem"; then
      if valid_for 30 "$tls/server.pem"; then exit 0; fi
      authority_stays=yes
    fi
    umask 077
    rm -rf "$tls.new"
    mkdir "$tls.new"
    cd "$tls.new" || exit
    tls_conf >conf
    touch index
    if [ "$authority_stays" = yes ]; then
      tls_sign_server "$tls"
      chmod 644 server.pem
      mv server.key server.pem "$tls"
      rm -rf "$tls.new"
      say "tls: renewed the certificate in $tls"
      exit 0
    fi
    tls_authority other-ca
    tls_authority ca
    tls_sign_server .
    tls_sign . expired 20200101000000Z 20210101000000Z
    for user in kafka postgres; do openssl rand -hex 16 >"$user-password"; done
    # nobody signs with the other authority; the rest is openssl's book-keeping
    rm -f other-ca.key conf index* ./*.csr [0-9A-F]*.pem
    chmod 644 ./*.pem
    chmod 755 .
    # made aside and moved: an interrupted run leaves nothing that looks complete
    rm -rf "$tls"
    mv "$tls.new" "$tls"
    say "tls: certificates and passwords in $tls"
  ) 7>"$stack_dir/.tls.lock"
}

password_of() { cat "$tls/$1-password"; } # password_of kafka | postgres

# export_lines [VARIABLE VALUE]...: for a component's `env`. Of a service that is not ours, only its owner
# knows: what he has set is what is printed.
export_lines() {
  while [ "$#" -gt 0 ]; do
    if ! external; then
      printf 'export %s=%q\n' "$1" "$2"
    elif [ -n "${!1:-}" ]; then
      printf 'export %s=%q\n' "$1" "${!1}"
    fi
    shift 2
  done
}
