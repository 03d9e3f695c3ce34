# What `provision shell` starts zsh with: the user's own settings, then the environment.
if [[ -f "${PROVISION_ZDOTDIR:-$HOME}/.zshenv" ]]; then
    . "${PROVISION_ZDOTDIR:-$HOME}/.zshenv"
fi
