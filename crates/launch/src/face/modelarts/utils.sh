# Functions of ModelArts' start script, which images of users call as well.

# The first variable names of other jobs in the same pool of machines, as the platform writes them.
_dls_foreign='^([A-Z0-9]{6}_[0-9]{8}_|KUBERNETES_)'

unset_job_env() {
    unset_job_env_except_self ""
}

# unset_job_env_except_self JOB: removes the variables of other jobs.
unset_job_env_except_self() {
    local own name
    own=$(printf %s "$1" | tr 'a-z-' 'A-Z_')
    for name in $(compgen -e); do
        [[ $name =~ $_dls_foreign ]] || continue
        [[ -n $own && $name == "$own"* ]] && continue
        unset "$name"
    done
}

# Exports DLS_AES__NAME, decrypted, as NAME.
decrypt_dls_aes_env() {
    local name value
    if [[ -z $DLS_DECRYPTOR_KEY_FILE && ( -z $DLS_KEY_ENDPOINT || -z $DLS_KEY_JOB_ID ) ]]; then
        echo "decrypt: no related env found"
        return 0
    fi
    for name in $(compgen -e DLS_AES__); do
        value=$(printf %s "${!name}" | /usr/bin/dls-decryptor) || return 1
        export "${name#DLS_AES__}=$value"
    done
}

# dls_create_log FILE
dls_create_log() {
    [[ -n $1 ]] || return 0
    if command -v modelarts-pipe > /dev/null; then
        modelarts-pipe create "$1"
    else
        (umask 0022 && mkdir -p "$(dirname "$1")" && : > "$1")
    fi
}

# dls_logger FILE [append]: keeps what comes in.
dls_logger() {
    if [[ -z $1 ]]; then
        cat > /dev/null
    elif [[ $2 == append ]]; then
        cat >> "$1"
    else
        cat > "$1"
    fi
}

_dls_uses() {
    [[ -n $1 && $1 != 0 ]]
}

_dls_transfer() {
    local tool=${DLS_USER_HOME_DIR:-$HOME}/modelarts-downloader.py
    if [[ ! -f $tool ]]; then
        echo "$tool is not there: object storage cannot be reached" >&2
        return 1
    fi
    python "$tool" -s "$1" -d "$2" "${@:3}"
}

# dls_upload_log FILE DIRECTORY
dls_upload_log() {
    _dls_transfer "$1" "${2%/}/dls-log-${DLS_DLKS_JOB_ID:-unknown-id}"
}

# dls_upload_train DIRECTORY PLACE: every entry of it.
dls_upload_train() {
    local entry code=0
    for entry in "$1"/*; do
        [[ -e $entry ]] || continue
        _dls_transfer "$entry" "${2%/}/${entry##*/}" -r || code=1
    done
    return "$code"
}

# dls_get_app PLACE: brings the code into the current directory. Without a place it is there already.
dls_get_app() {
    [[ -n $1 ]] || return 0
    if _dls_uses "$DLS_USE_DOWNLOADER"; then
        _dls_transfer "$1" ./ -r
    elif [[ ! $1 -ef . ]]; then
        cp -av "$1" ./
    fi
}

dls_fix_dns() {
    if _dls_uses "$DLS_USE_DNS_TCP" && command -v dls-dns-fixer > /dev/null; then
        dls-dns-fixer
    fi
}

# dls_get_executor FILE: the program that runs it.
dls_get_executor() {
    case $1 in
        *.sh | *.bash) echo bash ;;
        *.py | *.pyc | *.pyo | *.pyw | *.pyz) echo python ;;
        *) echo "no program is known to run $1" >&2; return 1 ;;
    esac
}
