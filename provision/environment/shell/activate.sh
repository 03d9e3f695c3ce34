# Enter this environment in bash or zsh:  . PREFIX/bin/activate     Leave it:  deactivate
# Written by provision, and works without it. The environment is the one that this file lies in.
# zsh ends with an error where a glob matches nothing, so `ls` lists files here.
# shellcheck shell=bash disable=SC1090,SC2045

if [ -n "${_provision_prefix-}" ]; then
    deactivate
fi

if [ -n "${BASH_VERSION-}" ]; then
    _provision_file=${BASH_SOURCE[0]}
elif [ -n "${ZSH_VERSION-}" ]; then
    eval '_provision_file=${(%):-%x}'
else
    echo "activate is for bash and zsh; fish has activate.fish" >&2
    return 1
fi
_provision_prefix=$(CDPATH='' cd -- "$(dirname -- "$_provision_file")/.." && pwd -P)
unset _provision_file

# What conda packages run in a shell that enters or leaves an environment.
_provision_source_all () {
    if [ -d "$1" ]; then
        for _provision_script in $(ls "$1"); do
            case $_provision_script in
                *.sh) . "$1/$_provision_script" ;;
            esac
        done
        unset _provision_script
    fi
}

deactivate () {
    _provision_source_all "$_provision_prefix/etc/conda/deactivate.d"
    for _provision_name in PATH PS1 CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONNOUSERSITE PYTHONHOME \
        PYTHONPATH LD_LIBRARY_PATH; do
        eval "
            if [ -n \"\${_provision_had_$_provision_name-}\" ]; then
                $_provision_name=\$_provision_old_$_provision_name
            else
                unset $_provision_name
            fi
            unset _provision_had_$_provision_name _provision_old_$_provision_name
        "
    done
    unset _provision_name _provision_prefix
    unset -f deactivate _provision_source_all
    hash -r 2>/dev/null
}

for _provision_name in PATH PS1 CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONNOUSERSITE PYTHONHOME \
    PYTHONPATH LD_LIBRARY_PATH; do
    eval "
        _provision_had_$_provision_name=\${$_provision_name+yes}
        _provision_old_$_provision_name=\${$_provision_name-}
    "
done
unset _provision_name

export PATH="$_provision_prefix/bin:$PATH"
export CONDA_PREFIX="$_provision_prefix"
export CONDA_DEFAULT_ENV="${_provision_prefix##*/}"
# Packages of ~/.local, and libraries of other builds, would come before the environment's own.
export PYTHONNOUSERSITE=1
unset PYTHONHOME PYTHONPATH LD_LIBRARY_PATH
if [ -n "${PS1-}" ]; then
    PS1="($CONDA_DEFAULT_ENV) $PS1"
fi
_provision_source_all "$_provision_prefix/etc/conda/activate.d"
hash -r 2>/dev/null
