# Enter this environment in fish:  source PREFIX/bin/activate.fish     Leave it:  deactivate
# Written by provision, and works without it. The environment is the one that this file lies in.

if set -q _provision_prefix
    deactivate
end

set -g _provision_prefix (realpath (dirname (status filename))/..)
set -g _provision_names PATH CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONNOUSERSITE PYTHONHOME PYTHONPATH \
    LD_LIBRARY_PATH

# What conda packages run in a shell that enters or leaves an environment.
function _provision_source_all
    for script in $argv[1]/*.fish
        source $script
    end
end

function deactivate -d "Leave the environment"
    _provision_source_all $_provision_prefix/etc/conda/deactivate.d
    for name in $_provision_names
        set -l saved _provision_old_$name
        if set -q $saved
            set -gx $name $$saved
            set -e $saved
        else
            set -e $name
        end
    end
    if functions -q _provision_old_prompt
        functions -e fish_prompt
        functions -c _provision_old_prompt fish_prompt
        functions -e _provision_old_prompt
    end
    set -e _provision_prefix
    set -e _provision_names
    functions -e _provision_source_all
    functions -e deactivate
end

for name in $_provision_names
    if set -q $name
        set -g _provision_old_$name $$name
    end
end

set -gx PATH $_provision_prefix/bin $PATH
set -gx CONDA_PREFIX $_provision_prefix
set -gx CONDA_DEFAULT_ENV (basename $_provision_prefix)
# Packages of ~/.local, and libraries of other builds, would come before the environment's own.
set -gx PYTHONNOUSERSITE 1
for name in PYTHONHOME PYTHONPATH LD_LIBRARY_PATH
    set -e $name
end
if functions -q fish_prompt
    functions -c fish_prompt _provision_old_prompt
    function fish_prompt
        printf '(%s) ' $CONDA_DEFAULT_ENV
        _provision_old_prompt
    end
end
_provision_source_all $_provision_prefix/etc/conda/activate.d
