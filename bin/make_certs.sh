#!/usr/bin/env bash
# Make what the deployment needs to know who is who, in certificates/ (or $OUT):
#
#   bin/make_certs.sh [--host NAME]... [hospital ...]        default: hospital-a hospital-b hospital-c
#
#   ca.crt                     the deployment's own authority; every party gets a copy
#   superlink.crt, .key        the coordinator's TLS certificate, for `superlink`, `localhost` and each --host
#   superexec.secret           shared by the SuperLink and the SuperExec, both the coordinator's
#   <hospital>.key             the hospital's identity (ECDSA P-384); stays in the hospital
#   public/<hospital>.pub      its public half, which the coordinator registers
#
# What exists is kept, so a hospital can be added later. For production a hospital makes its own key, and sends
# only the public half:  ssh-keygen -t ecdsa -b 384 -N "" -C hospital-a -f hospital-a.key
set -euo pipefail
cd "$(dirname "$0")/.."

names=(superlink localhost)
hospitals=()
while (($#)); do
    case "$1" in
        --host) names+=("$2"); shift 2 ;;
        -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
        *) hospitals+=("$1"); shift ;;
    esac
done
((${#hospitals[@]})) || hospitals=(hospital-a hospital-b hospital-c)

umask 077 # private keys are the owner's alone
mkdir -p "${OUT:=certificates}/public"
cd "$OUT"

if [[ ! -e ca.crt ]]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -sha384 -days 1825 \
        -subj "/CN=Edelweiss CA" -keyout ca.key -out ca.crt 2>/dev/null
fi
if [[ ! -e superlink.crt ]]; then
    sans="IP:127.0.0.1$(printf ',DNS:%s' "${names[@]}")"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -sha384 -subj "/CN=superlink" \
        -keyout superlink.key -out superlink.csr 2>/dev/null
    openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha384 -days 825 \
        -extfile <(echo "subjectAltName=$sans") -out superlink.crt 2>/dev/null
    rm superlink.csr
fi
[[ -e superexec.secret ]] || openssl rand -hex 32 >superexec.secret
for hospital in "${hospitals[@]}"; do
    [[ -e "$hospital.key" ]] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$hospital" -f "$hospital.key"
    [[ ! -e "$hospital.key.pub" ]] || mv "$hospital.key.pub" "public/$hospital.pub"
done
chmod 644 ca.crt superlink.crt public/*.pub
echo "In $PWD: $(printf '%s ' *)"
