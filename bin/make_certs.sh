#!/usr/bin/env bash
# Make what the deployment needs to know who is who, in certificates/ (or $OUT):
#
#   bin/make_certs.sh [--host NAME|ADDRESS]... [hospital ...]        default: hospital-a hospital-b hospital-c
#
#   ca.crt                     the deployment's own authority; every party gets a copy
#   superlink.crt, .key        the coordinator's TLS certificate, for `superlink`, `localhost` and each --host
#   superexec.secret           shared by the SuperLink and the SuperExec, both the coordinator's
#   study.key, .pub            signs each run (docs/signed-runs.md); only .pub goes to the parties. Keep .key off the servers
#   executor.key, .pub         signs each question to the hospitals; .key is for the machine of the ServerApp
#   <hospital>.key             the hospital's identity (ECDSA P-384); stays in the hospital
#   public/<hospital>.pub      its public half, which the coordinator registers
#   public/<hospital>.crt      the certificate for it, which the hospital shows to the coordinator
#   operator.crt, .key         what the coordinator's own commands show at the port that takes jobs
#
# What exists is kept, so a hospital can be added later; a certificate with less than 60 days left is signed anew, for
# the same key. A --host that the certificate does not name yet is added to it: the same authority signs a new one. For
# production a hospital makes its own key, and sends only the public half:
#   ssh-keygen -t ecdsa -b 384 -N "" -C hospital-a -f hospital-a.key
# Copy that to certificates/public/hospital-a.pub, call this script, and send public/hospital-a.crt back.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
names=(IP:127.0.0.1 DNS:localhost DNS:superlink)
hospitals=()
while (($#)); do
    case "$1" in
        --host)
            case "${2:-}" in
                "" | -*) usage ;;
                *[!0-9.]*) names+=("DNS:$2") ;;
                *) names+=("IP:$2") ;;
            esac
            shift 2
            ;;
        -*) usage ;;
        *) hospitals+=("$1"); shift ;;
    esac
done
((${#hospitals[@]})) || hospitals=(hospital-a hospital-b hospital-c)

umask 077 # private keys are the owner's alone
mkdir -p "${OUT:=certificates}/public"
cd "$OUT"
lasts() { openssl x509 -in "$1" -noout -checkend $((60 * 86400)) >/dev/null 2>&1; } # false, too, if there is none
new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out "$1"; }

if [[ ! -e ca.crt ]]; then
    new_key ca.key
    openssl req -x509 -new -key ca.key -sha384 -days 1825 -subj "/CN=Edelweiss CA" -out ca.crt
fi
[[ -e superlink.key ]] || new_key superlink.key

named=()
if [[ -e superlink.crt ]]; then
    readarray -t named < <(openssl x509 -in superlink.crt -noout -ext subjectAltName |
        grep -oE '(DNS|IP Address):[^, ]+' | sed 's/^IP Address/IP/' | sort)
fi
readarray -t names < <(printf '%s\n' "${names[@]}" "${named[@]}" | sort -u | grep .)
if [[ "${names[*]}" != "${named[*]}" ]] || ! lasts superlink.crt; then
    [[ -e ca.key ]] || { echo "superlink.crt is to name ${names[*]}: bring ca.key back to $PWD to sign it" >&2; exit 1; }
    openssl req -new -key superlink.key -sha384 -subj "/CN=superlink" |
        openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -sha384 -days 825 \
            -extfile <(IFS=,; echo "subjectAltName=${names[*]}") -out superlink.crt 2>/dev/null
    echo "superlink.crt is for ${names[*]}${named:+; the coordinator uses it after: docker compose restart superlink}"
fi
[[ -e superexec.secret ]] || openssl rand -hex 32 >superexec.secret
for name in study executor; do
    [[ -e $name.pub || -e $name.key ]] || openssl genpkey -algorithm ed25519 -out "$name.key"
    [[ -e $name.pub ]] || openssl pkey -in "$name.key" -pubout -out "$name.pub"
done
for hospital in "${hospitals[@]}"; do
    [[ -e "$hospital.key" || -e public/$hospital.pub ]] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$hospital" -f "$hospital.key"
    [[ ! -e "$hospital.key.pub" ]] || mv "$hospital.key.pub" "public/$hospital.pub"
done
if ! lasts operator.crt; then # signed by itself: what the authority signs is for hospitals
    [[ -e operator.key ]] || new_key operator.key
    openssl req -x509 -new -key operator.key -sha384 -days 825 -subj "/CN=operator" -out operator.crt
fi
for public in public/*.pub; do
    hospital=$(basename "$public" .pub)
    key=$(ssh-keygen -e -m PKCS8 -f "$public")
    ! lasts "public/$hospital.crt" || [[ $(openssl x509 -in "public/$hospital.crt" -noout -pubkey) != "$key" ]] || continue
    [[ -e ca.key ]] || { echo "public/$hospital.crt is to be signed: bring ca.key back to $PWD to sign it" >&2; exit 1; }
    openssl x509 -new -force_pubkey <(echo "$key") -subj "/CN=$hospital" -sha384 -days 825 \
        -CA ca.crt -CAkey ca.key -CAcreateserial -extfile <(echo extendedKeyUsage=clientAuth) -out "public/$hospital.crt"
done
chmod 644 ca.crt superlink.crt operator.crt ./*.pub public/*
echo "In $PWD: $(printf '%s ' *)"
[[ $(id -u):$(id -g) == 1000:1000 ]] || echo "Add to .env: EDELWEISS_USER=\"$(id -u):$(id -g)\""
