"""The question of a ship that has nothing to do: is this image active there already?

A shell script, because starting Python on a node takes several times as long as the answer. It
prints the line that the node program would print. It replies no more than "yes"; any doubt is a
"no", and the node program then looks closer (provision_runtime/node/store_status.py).
"""

from __future__ import annotations

import shlex

from provision.cluster.pack import Pack
from provision_runtime.node.program import MARK, SIMULATED_NAME

# `stat` is the only program that it starts. Two of its words are compared with the records of the
# store; the shell's `read` takes a line of a file. Then owners and permissions: of everything that
# leads to the environment, without following links, it accepts the common ones, and all others are a
# doubt (41ed is drwxr-xr-x, as stat(2) has it). A server of FUSE may say what it likes.
_SCRIPT = """\
store={store}
key={key}
active=false is_verified=false is_installed=false
verified= installed=
{{ read -r verified < "$store/images/$key.verified"; }} 2>/dev/null
{{ read -r installed < "$store/envs/$key.installed"; }} 2>/dev/null
if [ -n "$verified" ] && [ -n "$installed" ] && [ "$store/"{name} -ef "$store/envs/$key" ]; then
  set -- $(stat -L -c '%i %s %Y %d %u:%f' "$store/images/$key"{suffix} "$store/envs/$key" \\
    "$store/envs" "$store/envs/$key/bin/python" 2>/dev/null)
  case "$verified" in
    *'"inode": '"$1,"*'"mtime_ns": '"$3"?????????,*{sha256}*'"size": '"$2}}"*) is_verified=true ;;
  esac
  case "$installed" in
    *'"method": "tree"'*{sha256}*) is_installed=true ;;
    *'"method": "kernel"'*{sha256}*) [ "$9" != "${{14}}" ] && is_installed=true ;;
  esac
  [ $# = 20 ] && $is_verified && $is_installed && active=true
  python=${{20}}
fi
if $active; then
  set -- "$store/images/$key"{suffix} "$store/images/$key.verified" "$store/envs/$key.installed" \\
    "$store/envs/$key/bin" "$store/envs/$key" "$store/envs" "$store/images" "$store/staging"
  folder=$store
  while [ -n "$folder" ]; do
    set -- "$@" "$folder"
    folder=${{folder%/*}}
  done
  count=$#
  set -- $(stat -c '%u:%f:%n' /proc/self/ "$store/"{name} / "$@" 2>/dev/null)
  me=${{1%%:*}} link=${{2%:*}} readers={readers}
  [ $# = $((count + 3)) ] || active=false
  [ "$link" = 0:a1ff ] || [ "$link" = "$me:a1ff" ] || active=false
  [ -n "$readers" ] || [ "$me" = 0 ] || readers=me
  shift 2
  for word in "$python:" "$@"; do
    owner=${{word%%:*}}
    [ "$owner" = 0 ] || [ "$owner" = "$me" ] || active=false
    case "${{word#*:}}" in
      41ed:* | 416d:* | 43ff:/tmp | 81a4:* | 8124:* | 81ed:* | 816d:*) ;;
      41c0:* | 41e8:* | 41c9:*) [ "$readers" = me ] || active=false ;;
      *) active=false ;;
    esac
  done
fi
read -r host < /proc/sys/kernel/hostname
read -r boot < /proc/sys/kernel/random/boot_id
if [ -n "$SLURMD_NODENAME" ]; then host=$SLURMD_NODENAME; fi
if [ -n "${simulated}" ]; then host=${simulated} boot=simulated; fi
printf '\\n%s{{"identity": ["%s", "%s"], "result": {{"active": %s}}}}\\n' \\
  {mark} "$host" "$boot" "$active"
"""


def probe_script(path: str, pack: Pack, suffix: str, readers: str = "") -> str:
    """The script for a store and a pack. suffix: of the image's file. readers: of nodes.yml."""
    parts = [shlex.quote(part) for part in path.split("%h")]
    return _SCRIPT.format(
        store=f'"${SIMULATED_NAME}"'.join(parts) if len(parts) > 1 else parts[0],
        key=shlex.quote(pack.key),
        name=shlex.quote(pack.name),
        suffix=suffix,
        readers=shlex.quote(readers),
        sha256=pack.sidecar["sha256"],
        simulated=SIMULATED_NAME,
        mark=shlex.quote(MARK),
    )
