if [[ -n "$PROVISION_ZDOTDIR" ]]; then
    ZDOTDIR=$PROVISION_ZDOTDIR
else
    unset ZDOTDIR
fi
unset PROVISION_ZDOTDIR
if [[ -f "${ZDOTDIR:-$HOME}/.zshrc" ]]; then
    . "${ZDOTDIR:-$HOME}/.zshrc"
fi
. "$PROVISION_SHELL_PREFIX/bin/activate"
unset PROVISION_SHELL_PREFIX
